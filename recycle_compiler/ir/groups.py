"""Groups of pipelines, each with a cut and a share of the micro-batches of its own.

    26x28@448+13x1,13x1@64      28 workers with all 26 layers each have 448 micro-batches together, a pipeline
                                of two stages has 64

Every group passes all its micro-batches through all layers; gradients are summed layer by layer over all
groups. The chunks of such a job are the common refinement of all cuts: a worker holds one or several
neighbouring chunks, and a chunk is held by one stage of each group. Stages of all groups stand in one grid,
group after group; cells without a worker count as failed. Between two chunks of one stage nothing is sent.

Alone, a group is an ordinary job (`groups_in_plan`) whose stages are those of its cut. What binds groups
together is the end of a step: a worker that has done all its work sums its chunks in order, and each sum
begins when all holders of the chunk are there.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

from recycle_compiler.ir.failure import FailureSet, failed_per_stage, normal_form
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout, cut_into, grid_width, layout_of, parse_layout
from recycle_compiler.ir.sharding import Sharding, shares_of


@dataclass(frozen=True, slots=True)
class GroupedLayout:
    """The layout of each group, and how many micro-batches it has."""

    groups: tuple[Layout, ...]
    shares: tuple[int, ...]

    def __str__(self) -> str:
        return "+".join(f"{layout}@{share}" for layout, share in zip(self.groups, self.shares, strict=True))

    @property
    def workers(self) -> tuple[int, ...]:
        """Of each stage of each group."""
        return tuple(count for layout in self.groups for count in layout.workers)

    @property
    def stages(self) -> int:
        """Of all groups together."""
        return sum(layout.stages for layout in self.groups)

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Of each stage of each group, its first layer and the first beyond it."""
        return tuple(span for layout in self.groups for span in layout.ranges)

    @property
    def layers(self) -> tuple[int, ...]:
        """Of each chunk: what is left between any two borders of any cut."""
        borders = {0} | {end for _, end in self.ranges}
        return tuple(end - first for first, end in pairwise(sorted(borders)))


AnyLayout = Layout | GroupedLayout


def parse_any_layout(text: str) -> AnyLayout:
    """Read `8x4,8x4` or `16x3@24+8x1,8x1@8`, also as tables print it: `16x3 @24 + 8x1*2 @8`.

    ValueError says what is wrong.
    """
    parts = text.split("+")
    if len(parts) == 1 and "@" not in text:
        return parse_layout(text)
    if len(parts) == 1:
        raise ValueError("one group has all micro-batches: leave out the number behind @")
    groups: list[Layout] = []
    shares: list[int] = []
    for part in parts:
        layout, at, share = part.strip().partition("@")
        if not (at and _SHARE.fullmatch(share.strip()) and int(share)):
            raise ValueError(
                f"a group is a layout and its micro-batches, such as 8x4,8x4@32, got `{part.strip()}`"
            )
        groups.append(parse_layout(layout))
        shares.append(int(share))
    if len({sum(layout.layers) for layout in groups}) > 1:
        raise ValueError("every group must have all layers")
    return GroupedLayout(tuple(groups), tuple(shares))


_SHARE = re.compile("[0-9]{1,9}")


def grouped_layout_of(job: JobSpec, failed: FailureSet) -> GroupedLayout | None:
    """The layout of a job in groups, with the workers that have not failed; None if it has none."""
    if not job.groups:
        return None
    live = [job.pipelines - count for count in failed_per_stage(failed, job.stages)]
    layers = [sum(job.cut[chunk] for chunk in held) for held in job.held]
    layouts: list[Layout] = []
    for stages in stages_of_groups(job):
        layouts.append(Layout(tuple(layers[s] for s in stages), tuple(live[s] for s in stages)))
    return GroupedLayout(tuple(layouts), job.shares)


def any_layout_of(job: JobSpec, failed: FailureSet) -> AnyLayout | None:
    """The layout of a plan, in groups or not; None for a job that has no layers."""
    return grouped_layout_of(job, failed) or layout_of(job, failed)


def stages_of_groups(job: JobSpec) -> tuple[range, ...]:
    """The stages of each group, in the grid of all."""
    return tuple(range(group[0], group[-1] + 1) for group in job.groups)


def job_of_groups(job: JobSpec, layout: GroupedLayout) -> JobSpec:
    """The job with its pipelines in groups; its plan leaves out `absent_of_groups`."""
    costs = job.layer_costs
    if costs is None or any(sum(group.layers) != costs.count for group in layout.groups):
        raise ValueError(f"layout {layout} does not have the layers of the job")
    units = job.pipelines * job.microbatches
    if sum(layout.shares) != units:
        raise ValueError(f"layout {layout} does not share {units} micro-batches")
    if job.tied:
        raise ValueError("groups cannot share parameters among layers")
    if any(max(group.workers) > share for group, share in zip(layout.groups, layout.shares, strict=True)):
        raise ValueError(f"layout {layout} has more workers on a stage than its group has micro-batches")
    ranges = tuple(pairwise(accumulate(layout.layers, initial=0)))
    groups = _chunk_stages(layout, ranges)
    holders = tuple(sum(layout.workers[group[chunk]] for group in groups) for chunk, _ in enumerate(ranges))
    made = cut_into(job, costs, ranges, layout.ranges, layout.workers, holders, groups)
    return replace(made, shares=layout.shares)


def shares_by_stage(job: JobSpec, layout: AnyLayout) -> tuple[int, ...]:
    """Part of the state of its layers that a worker of each stage keeps, where that is shared out."""
    costs = job.layer_costs
    if not job.owners or costs is None:
        return (0,) * layout.stages
    stages = list(zip(layout.ranges, layout.workers, strict=True))
    found: list[int] = []
    for first, end in layout.ranges:
        holders = [
            sum(count for (low, high), count in stages if low <= layer < high) for layer in range(first, end)
        ]
        shares = (
            shares_of((state,), job.owners, n)
            for state, n in zip(costs.state[first:end], holders, strict=True)
        )
        found.append(sum(share for (share,) in shares))
    return tuple(found)


def _chunk_stages(layout: GroupedLayout, chunks: tuple[tuple[int, int], ...]) -> tuple[tuple[int, ...], ...]:
    """For each group the stage that holds each chunk."""
    found: list[tuple[int, ...]] = []
    before = 0
    for group in layout.groups:
        ends = [end for _, end in group.ranges]
        found.append(tuple(before + bisect_right(ends, first) for first, _ in chunks))
        before += group.stages
    return tuple(found)


def absent_of_groups(job: JobSpec, layout: GroupedLayout) -> FailureSet:
    """Cells of the derived job's grid that no worker of the layout takes."""
    return normal_form(tuple(job.pipelines - workers for workers in layout.workers), job.pipelines)


@dataclass(frozen=True, slots=True)
class Group:
    """One group as a job of its own, and where it stands in the job of all groups."""

    job: JobSpec
    failed: FailureSet
    first_unit: int
    """Its micro-batches are those from this number on, in order."""
    stages: range
    """Its stages, in the grid of all."""
    held: tuple[tuple[int, ...], ...]
    """For each of its stages, the chunks."""


def groups_in_plan(job: JobSpec, failed: FailureSet) -> tuple[Group, ...]:
    """The groups of a job, each with the workers that have not failed, as the normal form has them."""
    firsts = accumulate(job.shares, initial=0)
    return tuple(
        _group(job, failed, number, first)
        for number, first in zip(range(len(job.groups)), firsts, strict=False)
    )


def _group(job: JobSpec, failed: FailureSet, number: int, first_unit: int) -> Group:
    stages = stages_of_groups(job)[number]
    held = tuple(job.held[stage] for stage in stages)
    gone = failed_per_stage(failed, job.stages)
    live = [job.pipelines - gone[stage] for stage in stages]
    width = grid_width(job.shares[number], max(1, *live))

    def summed(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sum(values[chunk] for chunk in chunks) for chunks in held)

    derived = replace(
        job,
        stages=len(stages),
        pipelines=width,
        microbatches=job.shares[number] // width,
        forward=summed(job.forward),
        backward_input=summed(job.backward_input),
        backward_weight=summed(job.backward_weight),
        optimizer=summed(job.optimizer),
        reduce=summed(job.reduce),
        transfer=tuple(job.transfer[chunks[-1]] for chunks in held[:-1]),
        activation=summed(job.activation),
        kept_for_weight=summed(job.kept_for_weight),
        capacity=tuple(job.capacity[stage] for stage in stages),
        parameters=summed(job.parameters),
        counts=summed(job.counts) if job.counts else (),
        chunk_stages=(),
        cut=summed(job.cut),
        groups=(),
        shares=(),
        sharding=None if job.sharding is None else _sharding_alone(job, held, summed),
    )
    absent = normal_form(tuple(width - count for count in live), width)
    return Group(derived, absent, first_unit, stages, held)


def _sharding_alone(
    job: JobSpec, held: tuple[tuple[int, ...], ...], summed: Callable[[tuple[int, ...]], tuple[int, ...]]
) -> Sharding:
    """Of one group: times and memory as they are for all groups together, whoever has failed."""
    ones, nothing = (1,) * len(held), (0,) * len(held)
    return Sharding(
        job.owners,
        ones,
        summed(job.gather),
        summed(job.optimizer),
        nothing,
        nothing,
        (job.pipelines,) * len(held),
    )


class EndingStarts(NamedTuple):
    """Beginnings of what ends a step."""

    sums: list[int]
    """Of each chunk."""
    steps: dict[tuple[int, int], int]
    """Of each stage, and each chunk that it holds."""
    gathers: list[int]
    """Of each chunk, where the state is sharded."""


def ending_starts(job: JobSpec, last: Sequence[int]) -> EndingStarts:
    """Start of the sum of each chunk, and of the step of each chunk on each stage that holds it.

    `last` has when the work of each stage ends. Without stagger all wait for each other.
    """
    free = list(last) if job.techniques.stagger else [max(last)] * job.stages
    sums: list[int] = []
    for stages, reduce in zip(job.holders, job.reduce, strict=True):
        sums.append(max(free[stage] for stage in stages))
        for stage in stages:
            free[stage] = sums[-1] + reduce
    steps: dict[tuple[int, int], int] = {}
    gathers: list[int] = []
    for chunk, stages in enumerate(job.holders):
        for stage in stages:
            steps[stage, chunk] = free[stage]
            free[stage] += job.optimizer[chunk]
        if job.owners:
            gathers.append(max(free[stage] for stage in stages))
            for stage in stages:
                free[stage] = gathers[-1] + job.gather[chunk]
    return EndingStarts(sums, steps, gathers)
