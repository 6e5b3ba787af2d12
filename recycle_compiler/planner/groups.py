"""Groups of pipelines with cuts of their own: where a few workers apart from the others make a plan faster.

    shares      for a small group of up to three workers, shares of the micro-batches near an even one, by the
                slower bound of either group over all its cuts
    layouts     for the best shares, the cuts of either group with the best quick plans, each group alone
    planned     quick plans of pairs of these, whole plans of the best

Where workers or micro-batches do not divide well, one worker with all layers, or a short pipeline, takes what
would be one micro-batch more for some. The large group holds every layer as often as the job asks for, so
that it can go on alone when a worker of the small one fails.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from recycle_compiler.ir.failure import failed_per_stage, normal_form
from recycle_compiler.ir.groups import GroupedLayout, absent_of_groups, job_of_groups
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.assign_slots import AssignSlots
from recycle_compiler.passes.standard import GRAPH_PASSES, all_passes
from recycle_compiler.planner.layouts import Layouts
from recycle_compiler.planner.recut import Recut, can_recut, fastest_layouts, is_large, plan_layout
from recycle_compiler.scheduling.budget import Deadline
from recycle_compiler.scheduling.search import Effort

_WORTH = 998
"""Thousandths of the fastest period under one cut that groups must stay below to be in a bundle."""
_MOST = 3
"""Workers of the smaller group."""
_SHARES = 4
"""Shares of which layouts are looked for."""
_EACH = 2
"""Layouts of either group that are paired."""
_WHOLE = 2
"""Pairs that get a whole plan."""


@dataclass(frozen=True, slots=True)
class GroupedPlan:
    """The plan of a layout in groups."""

    layout: GroupedLayout
    plan: Streams


class GroupedRecut(NamedTuple):
    """What a bundle has of a layout in groups."""

    layout: GroupedLayout
    plans: tuple[Streams, ...]
    """For all its workers, and one that covers a failure more on every stage with several of them."""
    alone: Recut
    """Of the large group with all micro-batches, for when a worker of the small one fails."""

    @property
    def workers(self) -> int:
        return sum(self.layout.workers)


class Share(NamedTuple):
    """A small group, by what is known of it before any layout is."""

    bound: int
    """About what a plan takes at least in which so many workers have so many micro-batches."""
    workers: int
    units: int


def why_no_groups(job: JobSpec) -> str | None:
    """Why pipelines of a job cannot be in groups, in words; None if they can."""
    if not can_recut(job):
        return "it keeps its own cut"
    return "some of its layers share parameters" if job.tied else None


def fastest_groups(job: JobSpec, workers: int, period: int, deadline: Deadline) -> GroupedPlan | None:
    """The fastest plan found in which so many workers form two groups; None if none is below this period."""
    quick: list[tuple[int, str, GroupedLayout]] = []
    half = Deadline(deadline.nanoseconds_left // 2)
    for share in shares(job, workers, period)[:_SHARES]:
        for layout in _layouts(job, workers, share, half):
            found = _quick_period(job, layout, half.nanoseconds_left)
            quick.append((found, str(layout), layout))
    best: GroupedPlan | None = None
    for _, _, layout in sorted(quick)[:_WHOLE]:
        plan = plan_groups(job, layout, deadline)
        if plan.claims.period < period:
            best, period = GroupedPlan(layout, plan), plan.claims.period
    return best


def grouped_recuts(job: JobSpec, periods: Mapping[int, int], deadline: Deadline) -> list[GroupedRecut]:
    """Layouts in groups that are worth a place in a bundle whose fastest plans have these periods.

    Periods are by the number of failures.
    """
    found: list[GroupedRecut] = []
    for left, (failures, period) in enumerate(sorted(periods.items(), reverse=True)):
        # What fewer workers run, more can run too.
        least = min([period, *(one.plans[0].claims.period for one in found)])
        each = Deadline(deadline.nanoseconds_left // (len(periods) - left))
        best = fastest_groups(job, job.workers - failures, least * _WORTH // 1000, each)
        if best is not None:
            cover = _covering(best, deadline)
            plans = (best.plan,) if cover is None else (best.plan, cover)
            found.append(GroupedRecut(best.layout, plans, plan_layout(job, best.layout.groups[0], deadline)))
    return found


def _covering(groups: GroupedPlan, deadline: Deadline) -> Streams | None:
    """A quick plan that covers one failure more on every stage with several workers."""
    job, workers = groups.plan.job, groups.layout.workers
    missing = failed_per_stage(groups.plan.failed, job.stages)
    covering = tuple(count + (here > 1) for count, here in zip(missing, workers, strict=True))
    if covering == missing:
        return None
    passes = all_passes(AssignSlots(Effort().least(), deadline.nanoseconds_left))
    return passes.run(Target(job, normal_form(covering, job.pipelines)))


def plan_groups(job: JobSpec, layout: GroupedLayout, deadline: Deadline) -> Streams:
    """The whole plan of a layout."""
    derived = job_of_groups(job, layout)
    passes = all_passes(AssignSlots(Effort(), deadline.nanoseconds_left))
    return passes.run(Target(derived, absent_of_groups(derived, layout)))


def shares(job: JobSpec, workers: int, period: int) -> list[Share]:
    """Small groups whose bound is below this period, the best first."""
    units = job.pipelines * job.microbatches
    found: list[Share] = []
    for few in range(1, min(_MOST, workers - 1) + 1):
        even = units * few // workers
        for share in range(max(1, few, even - 3 * few), min(units - 1, even + 2) + 1):
            small = least_period(job, few, share)
            if small is None or small >= period:
                continue
            large = least_period(job, workers - few, units - share, job.redundancy)
            if large is not None and large < period:
                found.append(Share(max(small, large), few, share))
    return sorted(found)


def least_period(job: JobSpec, workers: int, units: int, holders: int = 1) -> int | None:
    """What one group takes at least, under any cut; None if so few workers cannot hold all layers.

    That is by sums that take as long as with very many holders: a little less is possible.
    """
    return Layouts(_sized(job, units, holders), workers).least_period(workers)


def _sized(job: JobSpec, units: int, holders: int) -> JobSpec:
    """The job of one group, all of whose sums take as long as with very many holders."""
    costs = job.layer_costs
    assert costs is not None, "a job in layers"
    after = tuple(map(sum, zip(costs.optimizer, costs.reduce, strict=True)))
    layers = replace(costs, optimizer=after, reduce=(0,) * costs.count)
    return replace(
        job, pipelines=1, microbatches=units, redundancy=holders, layer_costs=layers, split_ppm=None
    )


def _layouts(job: JobSpec, workers: int, share: Share, deadline: Deadline) -> Iterator[GroupedLayout]:
    """Pairs of layouts that are fast alone."""
    units = job.pipelines * job.microbatches
    many = _fastest_of(job, workers - share.workers, units - share.units, job.redundancy, deadline)
    few = _fastest_of(job, share.workers, share.units, 1, deadline)
    for one in many:
        for other in few:
            yield GroupedLayout((one, other), (units - share.units, share.units))


def _fastest_of(job: JobSpec, workers: int, units: int, holders: int, deadline: Deadline) -> list[Layout]:
    sized = _sized(job, units, holders)
    fastest = fastest_layouts(sized, workers, deadline)
    return [layout for layout in fastest if max(layout.workers) <= units][:_EACH]


def _quick_period(job: JobSpec, layout: GroupedLayout, nanoseconds: int) -> int:
    derived = job_of_groups(job, layout)
    effort = Effort().least() if is_large(job, layout.groups[0]) else Effort().quick()
    passes = GRAPH_PASSES >> AssignSlots(effort, nanoseconds)
    return passes.run(Target(derived, absent_of_groups(derived, layout))).claims.period
