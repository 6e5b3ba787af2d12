"""Gain of a change of the job in the same failure state: plans made quickly, or bounds alone."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from recycle_compiler.ir.groups import groups_in_plan
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.units import plural
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.bounds import lower_bound
from recycle_compiler.scheduling.problem import problem_of
from recycle_compiler.scheduling.search import Effort

_MORE = (1, 2)
"""Numbers of activations that are added."""
PLANS, BOUNDS, NONE = "plans", "bounds", "none"
_FEW_OPS = 20_000
"""Below, planning a dozen changes takes seconds."""
_WORTH_TELLING = 0.001


@dataclass(frozen=True, slots=True)
class JobVariant:
    """A job that differs in one thing."""

    what: str
    """`with 1 more activation on stage 0`."""
    job: JobSpec
    relaxes: bool
    """Every plan for the job as it is can be run on the changed one, and is no slower there."""

    def includes(self, other: "JobVariant") -> bool:
        """It differs from the other at most in having more memory."""
        if replace(self.job, capacity=other.job.capacity) != other.job:
            return False
        return all(
            mine is None or (theirs is not None and mine >= theirs)
            for mine, theirs in zip(self.job.capacity, other.job.capacity, strict=True)
        )


def changes_to(job: JobSpec, bottleneck: int) -> tuple[JobVariant, ...]:
    """Everything worth asking, in a fixed order."""
    whole = (*_memory(job, bottleneck), *_techniques(job), *_network(job))
    # A grid that only serves another cut has no pipelines that could have a micro-batch more.
    return whole if job.is_recut else (*whole, _one_more_microbatch(job))


def _memory(job: JobSpec, bottleneck: int) -> Iterator[JobVariant]:
    every = tuple(range(job.stages))
    places = {(bottleneck,): f"on stage {bottleneck}", (0,): "on stage 0", every: "on every stage"}
    for stages, where in places.items():
        for count in _MORE:
            more = _with_more(job, stages, count)
            if more is not None:
                yield JobVariant(f"with {count} more {_activations(count)} {where}", more, relaxes=True)


def _with_more(job: JobSpec, stages: tuple[int, ...], count: int) -> JobSpec | None:
    """The job with room for `count` more activations on these stages; None if nothing limits them."""
    capacity = list(job.capacity)
    for stage in stages:
        limit = capacity[stage]
        whole = sum(job.activation[chunk] for chunk in job.held[stage])
        capacity[stage] = None if limit is None else limit + count * whole
    return None if tuple(capacity) == job.capacity else replace(job, capacity=tuple(capacity))


def _activations(count: int) -> str:
    return "activation" if count == 1 else "activations"


def _techniques(job: JobSpec) -> Iterator[JobVariant]:
    now = job.techniques
    for name in ("adaptive", "decouple", "stagger"):
        if (job.is_recut or job.slots) and name == "adaptive":
            # Stages with different numbers of workers need it, and so do rounds.
            continue
        on = not getattr(now, name)
        other: Techniques = replace(now, **{name: on})
        word = "with" if on else "without"
        yield JobVariant(f"{word} `{name}`", replace(job, techniques=other), relaxes=on)


def _network(job: JobSpec) -> Iterator[JobVariant]:
    if any(job.transfer):
        free = replace(job, transfer=(0,) * len(job.transfer))
        yield JobVariant("with transfers that take no time", free, relaxes=True)
    if any(job.exchange_left):
        forward, back = (
            # Ops take some time, whatever of them is left.
            tuple(max(1, whole - part) for whole, part in zip(ticks, job.exchange_left, strict=True))
            for ticks in (job.forward, job.backward_input)
        )
        local = replace(job, forward=forward, backward_input=back, exchange=())
        yield JobVariant("with exchanges of tokens that take no time", local, relaxes=True)
        alone = replace(job, exchange=())
        yield JobVariant("without W computed during exchanges of tokens", alone, relaxes=False)


def _one_more_microbatch(job: JobSpec) -> JobVariant:
    more = job.microbatches + 1
    what = f"with {plural(more, 'micro-batch')} in each pipeline"
    return JobVariant(what, replace(job, microbatches=more), relaxes=False)


@dataclass(frozen=True, slots=True)
class WhatIfOutcome:
    """Gain of one change; times in ticks."""

    what: str
    microbatches: int
    period: int | None
    """Of the best plan found quickly; None if none was made."""
    lower_bound: int
    gain: float
    """Micro-batches per hour, against the reference: 0.031 is 3.1 % faster. If no plan was made, no plan can
    gain more."""

    @property
    def cost(self) -> int:
        """Ticks that the change is judged by: its period or, where no plan was made, its bound."""
        return self.period or self.lower_bound


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Changes that make a difference, the best first."""

    mode: str
    reference: int
    """The period that changes are compared with: of the plan, or of a better one found by planning again."""
    outcomes: tuple[WhatIfOutcome, ...]


@dataclass(frozen=True, slots=True)
class _Reference:
    period: int
    lower_bound: int
    """Without what the planner may have proven beyond it, since bounds of changed jobs lack that, too."""
    microbatches: int

    def gain(self, period: int, microbatches: int) -> float:
        return _faster(self.period, self.microbatches, period, microbatches)

    def bound_gain(self, bound: int, microbatches: int) -> float:
        return _faster(self.lower_bound, self.microbatches, bound, microbatches)


def mode_for(schedule: Schedule) -> str:
    """Default mode: plans for small schedules, bounds for large ones."""
    return PLANS if len(schedule.ops) < _FEW_OPS else BOUNDS


def what_if(schedule: Schedule, bottleneck: int, mode: str) -> WhatIf:
    """Try every change; keep those that make a difference."""
    if mode == NONE:
        return WhatIf(mode, schedule.claims.period, ())
    # Two plans that are merely near their bounds could not be compared.
    job = replace(schedule.job, solver=replace(schedule.job.solver, gap_ppm=0))
    reference = _Reference(schedule.claims.period, _bound(_target(schedule, job)), job.microbatches)
    again = JobVariant("as it is, planned again with `gap = 0%`", job, relaxes=True)
    found: list[tuple[JobVariant, WhatIfOutcome]] = []
    for change in (again, *changes_to(job, bottleneck)):
        outcome = _outcome(schedule, change, mode, reference, _known_to_do(change, found))
        if outcome is None or _buys_no_more(change, outcome, found):
            continue
        found.append((change, outcome))
        if change is again and outcome.period is not None:
            # What planning again gains is not to the credit of the changes that follow.
            reference = replace(reference, period=outcome.period)
    ordered = sorted((outcome for _, outcome in found), key=lambda outcome: -outcome.gain)
    return WhatIf(mode, reference.period, tuple(ordered))


def _known_to_do(change: JobVariant, found: list[tuple[JobVariant, WhatIfOutcome]]) -> list[int]:
    """Periods of plans for jobs with the same or less memory, which this job can run as well."""
    return [outcome.period for less, outcome in found if outcome.period and change.includes(less)]


def _buys_no_more(
    change: JobVariant, outcome: WhatIfOutcome, found: list[tuple[JobVariant, WhatIfOutcome]]
) -> bool:
    """Less memory does it as well."""
    return any(change.includes(less) and other.cost <= outcome.cost for less, other in found)


def _outcome(
    schedule: Schedule, change: JobVariant, mode: str, reference: _Reference, known: list[int]
) -> WhatIfOutcome | None:
    """None if the change makes no difference worth telling; `known` are periods that need no plan."""
    microbatches = change.job.microbatches
    target = _target(schedule, change.job)
    bound = _bound(target)
    most = reference.gain(bound, microbatches)
    if change.relaxes and most < _WORTH_TELLING:
        return None
    if mode == BOUNDS:
        # What a plan above its bound could gain without the change is not to the credit of the change.
        moved = reference.bound_gain(bound, microbatches)
        telling = moved * most > 0 and min(abs(moved), abs(most)) >= _WORTH_TELLING
        return WhatIfOutcome(change.what, microbatches, None, bound, most) if telling else None
    claims = plan_failed(target.job, target.failed, effort=Effort().quick()).claims
    period = min(claims.period, reference.period, *known) if change.relaxes else claims.period
    gain = reference.gain(period, microbatches)
    if abs(gain) < _WORTH_TELLING:
        return None
    return WhatIfOutcome(change.what, microbatches, period, claims.lower_bound, gain)


def _target(schedule: Schedule, job: JobSpec) -> Target:
    """The changed job in the failure state of the plan."""
    return Target(job, schedule.failed).normal


def _bound(target: Target) -> int:
    """Of groups of pipelines the largest, each with its share alone."""
    if target.job.groups:
        groups = groups_in_plan(target.job, target.failed)
        return max(_bound(Target(group.job, group.failed)) for group in groups)
    graph = GRAPH_PASSES.run(target)
    return lower_bound(problem_of(graph)).period


def _faster(period: int, microbatches: int, new_period: int, new_microbatches: int) -> float:
    """Gain in micro-batches done in the same time, as a share."""
    return (period * new_microbatches) / (new_period * microbatches) - 1
