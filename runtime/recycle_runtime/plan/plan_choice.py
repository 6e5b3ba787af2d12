"""Choice of the plan of a bundle that fits the live workers, and of the role of each. Standard library only.

Peers of a stage are interchangeable, so a plan for one failed worker of stage 2 fits whichever of them has
failed: those that are left take the roles that the plan has, in order.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.moves import Counts


class NoFittingPlanError(ValueError):
    """No plan of the bundle fits: one sentence says why and what to do."""


class MissingPlanError(NoFittingPlanError):
    """These failures can happen, but the bundle has no plan for them."""


class PlanChoice(NamedTuple):
    """A plan, and the role that each live worker has in it."""

    plan: int
    roles: dict[Worker, Worker]
    """From a worker's place to the worker whose stream it runs."""


class Planned(NamedTuple):
    """Properties of a plan for a choice among several."""

    counts: Counts
    """Failures on each stage that it is for."""
    period: int
    """Ticks."""
    age: int = 0
    """Of its op times; newer ones are smaller."""


def quickest_fit(plans: Iterable[Planned], failed: Counts) -> int | None:
    """The number of the plan to use with these failures on each stage; None if none has few enough workers.

    One for exactly these failures is best, then the one with the newest op times, then the quickest. Else it
    is the quickest of those for more failures: workers without work in it are standbys.
    """
    fitting: list[tuple[bool, int, int, int]] = []
    for number, (counts, period, age) in enumerate(plans):
        if all(has >= must for has, must in zip(counts, failed, strict=True)):
            is_exact = counts == failed
            fitting.append((not is_exact, age if is_exact else 0, period, number))
    return min(fitting)[-1] if fitting else None


def quickest_placement(plans: Iterable[Planned], failures: int) -> Planned | None:
    """The quickest plan for so many failures, wherever it has them; the first of equals."""
    return min((plan for plan in plans if sum(plan.counts) == failures), key=_period, default=None)


def _period(plan: Planned) -> int:
    return plan.period


def choose_plan(bundle: Bundle, failed: Collection[Worker]) -> PlanChoice:
    """The plan for exactly these failed workers, or for as many on each stage."""
    for pipeline, stage in failed:
        if not (0 <= pipeline < bundle.pipelines and 0 <= stage < bundle.stages):
            raise NoFittingPlanError(
                f"there is no worker {pipeline}:{stage}: pipelines go from 0 to {bundle.pipelines - 1}, "
                f"stages from 0 to {bundle.stages - 1}"
            )
    gone = set(failed)
    for number, plan in enumerate(bundle.plans):
        if set(plan.failed) == gone:
            return PlanChoice(number, {worker: worker for worker in bundle.workers(number)})
    counts = [sum(stage == other for _, stage in gone) for other in range(bundle.stages)]
    number = bundle.find(counts)
    if number is None:
        names = ",".join(f"{pipeline}:{stage}" for pipeline, stage in sorted(gone))
        raise MissingPlanError(
            f"the bundle has no plan for failures {counts} per stage; make one with "
            f"`recyclec plan JOB --failed {names} -o PLAN`"
        )
    roles: dict[Worker, Worker] = {}
    for stage in range(bundle.stages):
        here = [(p, stage) for p in range(bundle.pipelines) if (p, stage) not in gone]
        planned = [worker for worker in bundle.workers(number) if worker[1] == stage]
        roles.update(zip(here, planned, strict=True))
    return PlanChoice(number, roles)


def parse_workers(words: Collection[str]) -> tuple[Worker, ...]:
    """Workers as users write them: `1:2,0:3`, in one word or several; ValueError with a sentence."""
    found: list[Worker] = []
    for word in ",".join(words).split(","):
        pipeline, _, stage = word.strip().partition(":")
        if not (pipeline.isascii() and pipeline.isdigit() and stage.isascii() and stage.isdigit()):
            raise ValueError(f"a worker must be like 0:2 (pipeline:stage, from 0), got {word!r}")
        found.append((int(pipeline), int(stage)))
    return tuple(dict.fromkeys(found))
