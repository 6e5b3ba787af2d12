"""Explanation of groups of pipelines: what one cut takes, which group binds, and what else could be done.

Bounds of changed groups and shares are those of each group alone, the larger of which counts: no plan of
these groups and shares is faster.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations

from recycle_compiler.analysis.explain.cuts import (
    NO_ROOM,
    Neighbour,
    bound_over_one_cut,
    cut_periods,
    fastest_plan,
    plan_for,
)
from recycle_compiler.ir.groups import (
    GroupedLayout,
    absent_of_groups,
    grouped_layout_of,
    groups_in_plan,
    job_of_groups,
)
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.planner.group_bounds import TwoGroups
from recycle_compiler.planner.recut import can_recut
from recycle_compiler.scheduling.bounds import Bound, lower_bound
from recycle_compiler.scheduling.problem import problem_of
from recycle_runtime.plan.bundle import Bundle


@dataclass(frozen=True, slots=True)
class OneGroup:
    """A group alone."""

    workers: int
    share: int
    """Micro-batches."""
    bound: int
    """Lower bound on the group's period, in ticks."""
    reason: str


@dataclass(frozen=True, slots=True)
class ShareMove:
    """One micro-batch of a group in another."""

    source: int
    target: int
    layout: GroupedLayout
    bound: int


@dataclass(frozen=True, slots=True)
class OneWorkerMore:
    """One worker more on the stage of a group where that helps most."""

    group: int
    stage: int
    """In the grid of all groups."""
    layout: GroupedLayout
    """With shares that suit."""
    bound: int


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """Figures of a plan's groups; times in ticks."""

    job: JobSpec
    """The job with its layers, under its own cut."""
    failures: int
    layout: GroupedLayout
    groups: tuple[OneGroup, ...]
    one_cut: Neighbour | None
    """The fastest plan under one cut for as many failures; None if the bundle has none."""
    bound_one_cut: int
    """Lower bound on the period under one cut with as many workers; 0 when it is not known."""
    bound_two_groups: int
    """Lower bound on the period of two groups with as many workers; 0 when it is not known."""
    fewer: Neighbour | None
    """The fastest plan for one failure fewer."""
    moves: tuple[ShareMove, ...]
    one_more: tuple[OneWorkerMore, ...]
    """For each group, the best first."""
    one_more_one_cut: int | None
    """Lower bound on the period under one cut with one worker more; None if there is no such cut."""
    one_more_two_groups: int | None
    """The same for one cut and two groups; None if there is no such cut."""

    @property
    def workers(self) -> int:
        """Live ones; some may be on standby."""
        return self.job.workers - self.failures

    @property
    def bound(self) -> int:
        """Of these groups and shares."""
        return max(group.bound for group in self.groups)

    @property
    def binding(self) -> int:
        """The group that the bound is about."""
        return max(range(len(self.groups)), key=lambda number: (self.groups[number].bound, -number))


def group_facts(bundle: Bundle | None, job: JobSpec, schedule: Schedule, failures: int) -> GroupFacts | None:
    """The facts for a plan of a bundle, made for so many failures; None if the job cannot be re-cut.

    Without a bundle nothing is known of other plans.
    """
    layout = grouped_layout_of(schedule.job, schedule.failed)
    if layout is None or not can_recut(job):
        return None
    bounds = _bounds(job, layout)
    assert bounds is not None, "the groups of a plan have room"
    bound_one_cut = bound_over_one_cut(bundle, job, failures)
    workers, more = job.workers - failures, job.workers - failures + 1
    over_cuts = 0
    if bundle is None:
        over_cuts = TwoGroups(job, workers).least_period(workers, 1, bound_one_cut or NO_ROOM)
    elif (own := plan_for(bundle, failures)) is not None:
        over_cuts = bundle.plans[own].bound_over_cuts
    one_more = min(cut_periods(job, more), default=None)
    over_groups = None if one_more is None else TwoGroups(job, more).least_period(more, 1, one_more)
    return GroupFacts(
        job=job,
        failures=failures,
        layout=layout,
        groups=tuple(
            OneGroup(sum(group.workers), share, bound.period, bound.reason)
            for group, share, bound in zip(layout.groups, layout.shares, bounds, strict=True)
        ),
        one_cut=fastest_plan(bundle, job, failures, groups=False),
        bound_one_cut=bound_one_cut,
        # One that is no lower is about one cut.
        bound_two_groups=over_cuts if 0 < over_cuts < (bound_one_cut or NO_ROOM) else 0,
        fewer=fastest_plan(bundle, job, failures - 1),
        moves=tuple(_share_moves(job, layout)),
        one_more=tuple(sorted(_with_one_more(job, layout), key=lambda one: (one.bound, one.group))),
        one_more_one_cut=one_more,
        one_more_two_groups=over_groups,
    )


def _bounds(job: JobSpec, layout: GroupedLayout) -> tuple[Bound, ...] | None:
    """Of each group alone; None if one has more workers on a stage than micro-batches."""
    if any(max(group.workers) > share for group, share in zip(layout.groups, layout.shares, strict=True)):
        return None
    derived = job_of_groups(job, layout)
    return tuple(
        lower_bound(problem_of(GRAPH_PASSES.run(Target(group.job, group.failed))))
        for group in groups_in_plan(derived, absent_of_groups(derived, layout))
    )


def _bound(job: JobSpec, layout: GroupedLayout) -> int:
    bounds = _bounds(job, layout)
    return NO_ROOM if bounds is None else max(bound.period for bound in bounds)


def _moved(layout: GroupedLayout, source: int, target: int, units: int) -> GroupedLayout:
    shares = list(layout.shares)
    shares[source] -= units
    shares[target] += units
    return replace(layout, shares=tuple(shares))


def _share_moves(job: JobSpec, layout: GroupedLayout) -> Iterator[ShareMove]:
    for source, target in permutations(range(len(layout.groups)), 2):
        if layout.shares[source] > 1:
            moved = _moved(layout, source, target, 1)
            yield ShareMove(source, target, moved, _bound(job, moved))


def _with_one_more(job: JobSpec, layout: GroupedLayout) -> Iterator[OneWorkerMore]:
    """Of each group the stage where one worker more helps most, with as many micro-batches as suit it."""
    before = 0
    for number, group in enumerate(layout.groups):
        if max(group.workers) < layout.shares[number]:
            grown = [_grown(layout, number, stage) for stage in range(group.stages)]
            # By what the group itself takes: the others wait for it, or it takes some of theirs.
            stage = min(range(group.stages), key=lambda stage: (_alone(job, grown[stage], number), stage))
            best = _shared(job, grown[stage], number)
            yield OneWorkerMore(number, before + stage, best, _bound(job, best))
        before += group.stages


def _grown(layout: GroupedLayout, number: int, stage: int) -> GroupedLayout:
    groups = list(layout.groups)
    workers = list(groups[number].workers)
    workers[stage] += 1
    groups[number] = replace(groups[number], workers=tuple(workers))
    return replace(layout, groups=tuple(groups))


def _alone(job: JobSpec, layout: GroupedLayout, number: int) -> int:
    bounds = _bounds(job, layout)
    return NO_ROOM if bounds is None else bounds[number].period


def _shared(job: JobSpec, layout: GroupedLayout, number: int) -> GroupedLayout:
    """With micro-batches moved to this group from that which takes longest, as long as that helps."""
    others = [other for other in range(len(layout.groups)) if other != number]
    source = max(others, key=lambda other: (_alone(job, layout, other), -other))
    low, high = 0, layout.shares[source] - max(layout.groups[source].workers)
    # The more it has, the longer it takes, and the shorter the other: bisect to where they meet.
    while low < high:
        middle = (low + high) // 2
        moved = _moved(layout, source, number, middle)
        if _alone(job, moved, number) < _alone(job, moved, source):
            low = middle + 1
        else:
            high = middle
    tried = [_moved(layout, source, number, units) for units in {low, max(0, low - 1)}]
    return min(tried, key=lambda one: (_bound(job, one), one.shares))
