"""Our plans with times that are never quite the same, as the event engine runs them."""

from dataclasses import replace

from recycle_compiler.fleet.setting import OurPlan, Setting
from recycle_compiler.ir.failure import failed_per_stage, failure_set
from recycle_compiler.simulator.engine import simulate
from recycle_compiler.simulator.jitter import Jitter
from recycle_runtime.plan.bundle import Bundle

_ITERATIONS = 9
"""The mean of eight iterations counts."""


def plans_of(bundle: Bundle) -> list[OurPlan]:
    """What the bundle's plans claim."""
    return [
        OurPlan(failed_per_stage(failure_set(plan.failed), bundle.stages), plan.period)
        for plan in bundle.plans
    ]


def with_jitter(setting: Setting, bundle: Bundle, variation: float, seed: int) -> Setting:
    """The setting with random op times, of this standard deviation around what they should be.

    Each plan of ours runs in the engine. All other periods, of other policies too, become longer as our plan
    with fewest failures does.
    """
    jitter, claimed = Jitter(variation, seed), plans_of(bundle)
    periods = [
        simulate(bundle, number, iterations=_ITERATIONS, jitter=jitter, keep_ops=False).period
        for number in range(len(claimed))
    ]
    fewest = min(range(len(claimed)), key=lambda number: sum(claimed[number].counts))
    longer = periods[fewest] / claimed[fewest].period
    measured = zip(claimed, periods, strict=True)
    plans = [OurPlan(plan.counts, round(period / longer)) for plan, period in measured]
    return replace(
        setting,
        plans=tuple(sorted(plans, key=lambda plan: (sum(plan.counts), plan.period))),
        second_ticks=setting.second_ticks / longer,
    )
