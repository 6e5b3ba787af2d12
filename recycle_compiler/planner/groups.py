"""Groups of pipelines with cuts of their own: where some workers apart from the others make a plan faster.

    shares      for every size of the smaller group, shares of the micro-batches with which bounds over all
                cuts of either group are best
    layouts     for the best shares, the cuts of either group with the best quick plans, each group alone
    planned     quick plans of pairs of these, whole plans of the best

Where workers or micro-batches do not divide well, one worker with all layers, or a short pipeline, takes what
would be one micro-batch more for some; or either half of the workers divides better than all of them. The
large group holds every layer as often as the job asks for, so that it can go on alone when a worker of the
small one fails.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from recycle_compiler.ir.failure import failed_per_stage, normal_form
from recycle_compiler.ir.groups import GroupedLayout, absent_of_groups, job_of_groups
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout, job_of_layout
from recycle_compiler.ir.sharding import shares_of
from recycle_compiler.ir.streams import Claims, Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.assign_slots import AssignSlots
from recycle_compiler.passes.standard import GRAPH_PASSES, all_passes
from recycle_compiler.planner.cut_bounds import FAR
from recycle_compiler.planner.group_bounds import Fewest, TwoGroups
from recycle_compiler.planner.layout_bounds import has_room
from recycle_compiler.planner.layouts import Layouts
from recycle_compiler.planner.recut import (
    RecutPlans,
    can_recut,
    climbed,
    is_large,
    plan_layout,
    quick_plan,
    with_bound,
)
from recycle_compiler.planner.worker_processes import Run
from recycle_compiler.scheduling.budget import Guard
from recycle_compiler.scheduling.search import Effort

_WORTH = 999
"""Thousandths of the fastest period under one cut that groups must stay below to be in a bundle."""
_WORTH_LOOKING = 998
"""Thousandths of it that no groups go below: then none are looked for."""
_LADDER = (*range(11), 15, 20, 30, 40, 60, 80, 120, 160, 240)
"""In thousandths above the least period of two groups: shares are collected up to there."""
_OF_EACH_SIZE = 2
"""Shares of a small group of one size that are looked at."""
_SHARES = 5
"""Shares of which layouts are looked for."""
_TRIED = 8
"""Layouts of a group that get a quick plan, those with the best bounds."""
_EACH = 3
"""Layouts of either group that are paired, and pairs that get a quick plan for a share."""
_HOPEFUL = 1010
"""Thousandths of the period to beat: a whole plan is seldom faster than a quick one by more."""
_WHOLE = 2
"""Pairs that get a whole plan, of different shares."""


@dataclass(frozen=True, slots=True)
class GroupedPlan:
    """The plan of a layout in groups."""

    layout: GroupedLayout
    plan: Streams


class GroupedRecut(NamedTuple):
    """Plans of a bundle for a layout in groups."""

    layout: GroupedLayout
    plans: tuple[Streams, ...]
    """For all its workers, and one that covers a failure more on every stage with several of them."""
    alone: tuple[RecutPlans, ...]
    """Of each group with all micro-batches, for when a stage of the other has no worker left: the large one
    first, then the small one if its memory holds them."""

    @property
    def workers(self) -> int:
        return sum(self.layout.workers)

    @property
    def claims(self) -> Claims:
        return self.plans[0].claims

    @property
    def split(self) -> int:
        """Micro-batches in halves cannot be in groups."""
        return 1


class GroupShare(NamedTuple):
    """A small group, by what is known of it before any layout is."""

    bound: int
    """About what a plan takes at least in which so many workers have so many micro-batches."""
    workers: int
    units: int


def why_no_groups(job: JobSpec) -> str | None:
    """Reason why pipelines of a job cannot be in groups, in words; None if they can."""
    if not can_recut(job):
        return "it keeps its own cut"
    if job.slots:
        return "its workers share experts"
    return "some of its layers share parameters" if job.tied else None


def fastest_groups(job: JobSpec, workers: int, period: int, guard: Guard) -> GroupedPlan | None:
    """The fastest plan found in which so many workers form two groups; None if none is below this period."""
    quick: list[tuple[int, str, GroupedLayout]] = []
    for share in group_shares(job, workers, period)[:_SHARES]:
        found = [
            (_quick_period(job, layout, expected, guard), str(layout), layout)
            for expected, layout in _pairs(job, workers, share, guard)[:_EACH]
            if expected * 1000 < period * _HOPEFUL
        ]
        quick += sorted(found)[:1]
    best: GroupedPlan | None = None
    for found, _, layout in sorted(quick)[:_WHOLE]:
        if found * 1000 >= period * _HOPEFUL:
            break
        plan = plan_groups(job, layout, guard)
        if plan.claims.period < period:
            best, period = GroupedPlan(layout, plan), plan.claims.period
    return best


def grouped_recuts(
    job: JobSpec, periods: Mapping[int, int], bounds: Mapping[int, int], run: Run, guard: Guard
) -> tuple[list[GroupedRecut], frozenset[int]]:
    """Layouts in groups that are worth a place in a bundle whose fastest plans have these periods.

    Periods, and bounds over one cut or two groups, are by the number of failures. With it the numbers of
    failures for which there was no time to compare all groups.
    """
    wanted = [
        failures
        for failures, period in sorted(periods.items(), reverse=True)
        if bounds[failures] * 1000 < period * _WORTH_LOOKING
    ]
    tasks = ((job, failures, periods[failures] * _WORTH // 1000, guard) for failures in wanted)
    best: dict[int, GroupedPlan] = {}
    cut_short: set[int] = set()
    for failures, found, was_cut_short in run(_fastest_for, tasks):
        best |= {} if found is None else {failures: found}
        cut_short |= {failures} if was_cut_short else set()
    kept: list[tuple[int, GroupedPlan]] = []
    least: int | None = None
    for failures in sorted(best, reverse=True):
        # What fewer workers run, more can run too.
        period = best[failures].plan.claims.period
        if least is None or period * 1000 < least * _WORTH:
            kept.append((bounds[failures], best[failures]))
            least = period
    whole = ((job, *one, guard) for one in kept)
    made: list[GroupedRecut] = sorted(run(_bundled, whole), key=lambda one: (-one.workers, str(one.layout)))
    return made, frozenset(cut_short)


def _fastest_for(task: tuple[JobSpec, int, int, Guard]) -> tuple[int, GroupedPlan | None, bool]:
    """The fastest groups with so many failures, if they are faster than this, and whether time was short."""
    job, failures, period, guard = task
    if guard.strikes():
        return failures, None, True
    found = fastest_groups(job, job.workers - failures, period, guard)
    return failures, found, guard.strikes()


def _bundled(task: tuple[JobSpec, int, GroupedPlan, Guard]) -> GroupedRecut:
    """All plans that a bundle has of these groups."""
    job, bound, groups, guard = task
    plan = with_bound(groups.plan, min(bound, groups.plan.claims.lower_bound))
    cover = _covering(groups, guard)
    plans = (plan,) if cover is None else (plan, cover)
    large, *small = groups.layout.groups
    others = (one for one in small if has_room(job_of_layout(job, one)))
    alone = tuple(plan_layout(job, one, guard) for one in (large, *others))
    return GroupedRecut(groups.layout, plans, alone)


def _covering(groups: GroupedPlan, guard: Guard) -> Streams | None:
    """A quick plan that covers one failure more on every stage with several workers."""
    job, workers = groups.plan.job, groups.layout.workers
    missing = failed_per_stage(groups.plan.failed, job.stages)
    covering = tuple(count + (here > 1) for count, here in zip(missing, workers, strict=True))
    if covering == missing or not has_room(job.left_by(covering)):
        return None
    passes = all_passes(AssignSlots(Effort().least(), guard))
    return passes.run(Target(job, normal_form(covering, job.pipelines)))


def plan_groups(job: JobSpec, layout: GroupedLayout, guard: Guard) -> Streams:
    """The whole plan of a layout."""
    derived = job_of_groups(job, layout)
    passes = all_passes(AssignSlots(Effort(), guard))
    return passes.run(Target(derived, absent_of_groups(derived, layout)))


def group_shares(job: JobSpec, workers: int, period: int) -> list[GroupShare]:
    """Small groups whose bound is below this period, the best first; a few shares for each size."""
    groups = TwoGroups(job, workers)
    least = groups.least_period(workers, 1, period)
    found: dict[tuple[int, int], GroupShare] = {}
    sizes: Counter[int] = Counter()
    for thousandths in _LADDER:
        limit = least + least * thousandths // 1000
        if limit >= period:
            break
        for few, share in _feasible(groups.fewest(limit), workers):
            if (few, share) not in found and sizes[few] < _OF_EACH_SIZE:
                found[few, share] = GroupShare(limit, few, share)
                sizes[few] += 1
    return sorted(found.values())


def _feasible(fewest: Fewest, workers: int) -> Iterator[tuple[int, int]]:
    """Workers and micro-batches of small groups that keep to a period, and so do the other workers."""
    units = len(fewest.large) - 1
    every = np.arange(1, workers)
    most_small, most_large = (
        np.searchsorted(side, every, side="right") - 1 for side in (fewest.small, fewest.large)
    )
    for few in range(1, workers):
        least, most = units - int(most_large[workers - few - 1]), int(most_small[few - 1])
        most = min(most, units // 2)
        if 1 <= least <= most:
            # As much as the small group can have, which leaves the large one, deeper mostly, room to idle.
            yield few, most
            yield few, (least + most) // 2


def _sized(job: JobSpec, units: int, holders: int) -> JobSpec:
    """The job of one group, all of whose sums take as long as with very many holders."""
    costs = job.layer_costs
    assert costs is not None, "a job in layers"
    after, resident = tuple(map(sum, zip(costs.optimizer, costs.reduce, strict=True))), costs.resident
    if job.owners:
        # As much of the state as a worker of the job's own cut has.
        steps, kept = (
            shares_of(values, job.owners, job.pipelines) for values in (costs.optimizer, costs.state)
        )
        after = tuple(map(sum, zip(steps, costs.reduce, costs.gather, strict=True)))
        resident = tuple(map(sum, zip(resident, kept, strict=True)))
    layers = replace(costs, optimizer=after, reduce=(0,) * costs.count, resident=resident)
    return replace(
        job,
        pipelines=1,
        microbatches=units,
        redundancy=holders,
        layer_costs=layers,
        split_ppm=None,
        sharding=None,
    )


def _pairs(job: JobSpec, workers: int, share: GroupShare, guard: Guard) -> list[tuple[int, GroupedLayout]]:
    """Layouts of both groups that are fast alone, and what is expected of them together; the best first."""
    units = job.pipelines * job.microbatches
    many = _fastest_of(job, workers - share.workers, units - share.units, job.redundancy, guard)
    few = _fastest_of(job, share.workers, share.units, 1, guard)
    pairs: list[tuple[int, str, GroupedLayout]] = []
    for large, one in many:
        for small, other in few:
            layout = GroupedLayout((one, other), (units - share.units, share.units))
            pairs.append((_expected(job, layout, (large, small)), str(layout), layout))
    return [(expected, layout) for expected, _, layout in sorted(pairs)]


def _expected(job: JobSpec, layout: GroupedLayout, alone: tuple[int, int]) -> int:
    """Period of groups together, from those of each alone, in which sums are of very many holders."""
    costs = job.layer_costs
    assert costs is not None, "a job in layers"
    holders = [0] * costs.count
    for (first, end), count in zip(layout.ranges, layout.workers, strict=True):
        holders[first:end] = (held + count for held in holders[first:end])
    saved = [reduce // held for reduce, held in zip(costs.reduce, holders, strict=True)]
    return max(
        period - min(sum(saved[first:end]) for first, end in group.ranges)
        for period, group in zip(alone, layout.groups, strict=True)
    )


def _fastest_of(
    job: JobSpec, workers: int, units: int, holders: int, guard: Guard
) -> list[tuple[int, Layout]]:
    """Layouts of one group with the fastest quick plans, and their periods."""
    sized = _sized(job, units, holders)
    choices = [
        one for one in climbed(sized, Layouts(sized, workers), workers) if max(one[1].workers) <= units
    ]
    tried: list[tuple[int, int, Layout]] = []
    for number, (_, layout) in enumerate(choices[:_TRIED]):
        if tried and guard.strikes():
            break
        found = quick_plan(sized, layout, guard).period
        tried.append((found, number, layout))
    return [(found, layout) for found, _, layout in sorted(tried)[:_EACH]]


def _quick_period(job: JobSpec, layout: GroupedLayout, expected: int, guard: Guard) -> int:
    """Of a quick plan of both; in a small job quick plans err, and what is expected of them may be better."""
    derived = job_of_groups(job, layout)
    if not has_room(derived):
        return FAR
    large = is_large(job, layout.groups[0])
    effort = Effort().least() if large else Effort().quick()
    passes = GRAPH_PASSES >> AssignSlots(effort, guard)
    period = passes.run(Target(derived, absent_of_groups(derived, layout))).claims.period
    return period if large else min(period, expected)
