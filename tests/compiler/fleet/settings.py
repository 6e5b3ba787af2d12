"""Settings that need no planning: small jobs in slots, with plans made up for them."""

from dataclasses import replace

from recycle_compiler.fleet.comparison import Comparison, batch_of, compare
from recycle_compiler.fleet.course import Course, as_seen_by, lead
from recycle_compiler.fleet.machines import Fleet, lay_out
from recycle_compiler.fleet.policy import Policy
from recycle_compiler.fleet.report import FleetReport
from recycle_compiler.fleet.setting import ChangeCosts, FleetSetting, Known, make_setting
from recycle_compiler.fleet.traces.generated import Machines, generate, parse_words
from recycle_compiler.fleet.traces.read import parse_trace
from recycle_compiler.fleet.traces.trace import FleetTrace, JobGrid
from recycle_runtime.plan.plan_choice import Planned
from tests.support.jobs import figure3

COSTS = ChangeCosts(
    detection=1.0,
    regroup=2.0,
    undone=0.5,
    start_up=20.0,
    planning=4.0,
    checkpoint_every=100.0,
    checkpoint_save=10.0,
    restart=30.0,
)
"""Round numbers."""

PERIODS = {
    (0, 0, 0, 0): 21_000,
    (1, 0, 0, 0): 30_000,
    (1, 1, 0, 0): 31_000,
    (1, 1, 1, 0): 32_000,
}
"""Ticks; a slot is a second."""


def setting(costs: ChangeCosts = COSTS, parameters: int = 0) -> FleetSetting:
    """The running example: 3 pipelines of 4 stages, without a limit of memory."""
    job = replace(figure3(None), parameters=(parameters,) * 4)
    plans = [Planned(counts, period) for counts, period in PERIODS.items()]
    return make_setting(job, plans, Known(costs=costs, exact_plans=0))


def fleet_of(trace: FleetTrace) -> Fleet:
    return Fleet(trace, lay_out(3, 4, 1))


def read_fleet(*lines: str) -> Fleet:
    """From JSON lines."""
    return fleet_of(parse_trace("\n".join(lines), "made-up", JobGrid(3, 4)))


def made_fleet(words: str, hours: float = 12, seed: int = 0) -> Fleet:
    return fleet_of(generate(parse_words(words), Machines(12, 1), hours * 3600, seed))


def course_of(policy: Policy, fleet: Fleet) -> Course:
    changes = as_seen_by(policy.name, fleet.changes(), COSTS.start_up)
    return lead(policy, fleet.start, changes, fleet.trace.span)


def report_of(
    fleet: Fleet, *names: str, samples: int | None = None, given: FleetSetting | None = None
) -> FleetReport:
    given = given or setting()
    return compare(Comparison(given, fleet, batch_of(given, samples)), names)
