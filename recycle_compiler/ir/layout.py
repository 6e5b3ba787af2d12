"""A layout: how the layers of a model are cut into stages, and how many workers each stage gets.

    8x4,8x4,7x5        three stages of 8, 8 and 7 layers on 4, 4 and 5 workers
    8x4*2 7x5          the same, as tables print it

A plan under another cut is an ordinary plan of a derived job, whose stages are those of the layout. Its grid
has as many pipelines as the largest stage has workers, or a few more, so that micro-batches divide; cells
without a worker count as failed. Micro-batch m of pipeline p has the number p * microbatches + m in every
cut, so that each cut trains on the same data.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import add

from recycle_compiler.ir.failure import FailureSet, failed_per_stage, normal_form
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layers import LayerCosts
from recycle_compiler.ir.sharding import Sharding

Ranges = tuple[tuple[int, int], ...]
"""First layers, and the first beyond."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Layers and workers of each stage."""

    layers: tuple[int, ...]
    workers: tuple[int, ...]

    def __str__(self) -> str:
        return ",".join(
            f"{layers}x{workers}" for layers, workers in zip(self.layers, self.workers, strict=True)
        )

    @property
    def stages(self) -> int:
        return len(self.layers)

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Of each stage, its first layer and the first beyond it."""
        return tuple(pairwise(accumulate(self.layers, initial=0)))


def parse_layout(text: str) -> Layout:
    """Read `8x4,8x4`, with commas or spaces, or `8x4*2`; ValueError says what is wrong."""
    layers: list[int] = []
    workers: list[int] = []
    for part in _BETWEEN_STAGES.split(text.strip()):
        found = _STAGES.fullmatch(part)
        first, second, count = (int(word) for word in found.groups("1")) if found else (0, 0, 0)
        if not (first and second and count):
            raise ValueError(
                f"a stage is LAYERSxWORKERS, such as 8x4, and 8x4*3 is three of them, got `{part}`"
            )
        layers += [first] * count
        workers += [second] * count
    return Layout(tuple(layers), tuple(workers))


_BETWEEN_STAGES = re.compile(r"\s*,\s*|\s+")
_STAGES = re.compile(r"([0-9]{1,9})x([0-9]{1,9})(?:\*([0-9]{1,4}))?")
"""One stage, or equal neighbours; with more digits it is no model's."""


def layout_of(job: JobSpec, failed: FailureSet) -> Layout | None:
    """The layers of each stage, and its workers that have not failed; None for a job that has no layers."""
    if not (job.cut and job.has_chunk_per_stage):
        return None
    gone = failed_per_stage(failed, job.stages)
    return Layout(job.cut, tuple(job.pipelines - count for count in gone))


def own_layout(job: JobSpec) -> Layout:
    """Layout that the job starts with."""
    return Layout(job.cut, (job.pipelines,) * job.stages)


def grid_width(units: int, most_workers: int) -> int:
    """The smallest divisor of all micro-batches that is no less than the workers of any stage."""
    return next(width for width in range(most_workers, units + 1) if units % width == 0)


def job_of_layout(job: JobSpec, layout: Layout) -> JobSpec:
    """The job with its layers cut this way; its plan leaves out `absent_cells`."""
    costs = job.layer_costs
    if costs is None or sum(layout.layers) != costs.count:
        raise ValueError(f"layout {layout} does not have the layers of the job")
    units = job.pipelines * job.microbatches
    if max(layout.workers) > units:
        raise ValueError(f"layout {layout} has more workers on a stage than there are micro-batches")
    made = cut_into(job, costs, layout.ranges, layout.ranges, layout.workers, layout.workers)
    tied = replace(job, cut=layout.layers).tied_chunks
    reduce = (time + job.tied_reduce * (stage in tied) for stage, time in enumerate(made.reduce))
    return replace(made, reduce=tuple(reduce))


def cut_into(
    job: JobSpec,
    costs: LayerCosts,
    chunks: Ranges,
    stages: Ranges,
    workers: tuple[int, ...],
    holders: tuple[int, ...],
    groups: tuple[tuple[int, ...], ...] = (),
) -> JobSpec:
    """The job with chunks and stages of these layers, for so many workers of each stage and so many that hold
    each chunk."""

    def summed(values: tuple[int, ...], over: Ranges = chunks) -> tuple[int, ...]:
        return tuple(sum(values[first:end]) for first, end in over)

    def of_ring(values: tuple[int, ...], owners: int = 0) -> tuple[int, ...]:
        return tuple(ring_time(whole, n, owners) for whole, n in zip(summed(values), holders, strict=True))

    units = job.pipelines * job.microbatches
    width = grid_width(units, max(workers))
    exchange = of_ring(costs.exchange)
    resident = summed(costs.resident, stages)
    owners = job.owners
    made = replace(
        job,
        stages=len(stages),
        pipelines=width,
        microbatches=units // width,
        forward=tuple(map(add, summed(costs.forward), exchange)),
        backward_input=tuple(map(add, summed(costs.backward_input), exchange)),
        backward_weight=summed(costs.backward_weight),
        optimizer=summed(costs.optimizer),
        reduce=of_ring(costs.reduce, owners),
        transfer=tuple(costs.transfer[end - 1] for _, end in chunks[:-1]),
        activation=summed(costs.activation),
        kept_for_weight=summed(costs.kept_for_weight),
        capacity=tuple(None if costs.capacity is None else costs.capacity - taken for taken in resident),
        parameters=summed(costs.parameters),
        counts=summed(costs.counts) if job.counts else (),
        chunk_stages=groups[0] if groups else (),
        cut=tuple(end - first for first, end in chunks),
        layer_costs=None,
        free_workers=0,
        vacant=0,
        split_ppm=None,
        grouping=True,
        failures=0,
        groups=groups,
        sharding=None,
        **(_experts_of(costs, chunks, exchange, summed) if job.slots else {}),
    )
    if not owners:
        return made
    absent = tuple(width - count for count in workers)
    return shared_out(made, owners, holders, of_ring(costs.gather), summed(costs.state), absent)


def _experts_of(
    costs: LayerCosts,
    chunks: Ranges,
    exchange: tuple[int, ...],
    summed: Callable[[tuple[int, ...]], tuple[int, ...]],
) -> dict[str, tuple[int, ...]]:
    """Fields of a job with experts, of each chunk; empty where nothing is known of any layer."""
    most = tuple(max(costs.expert_counts[first:end]) for first, end in chunks)
    found = {
        "exchange": exchange,
        "state_counts": summed(costs.state_counts),
        "expert_counts": most,
        "slot_transfer": summed(costs.slot_transfer),
    }
    return {name: values if any(values) else () for name, values in found.items()}


def shared_out(
    job: JobSpec,
    owners: int,
    shards: tuple[int, ...],
    gather: tuple[int, ...],
    state: tuple[int, ...],
    absent: tuple[int, ...],
) -> JobSpec:
    """The job with a sharded state; given with `optimizer` for all shards, and none of them in `capacity`."""
    nothing = (0,) * job.chunks
    sharding = Sharding(owners, shards, gather, job.optimizer, state, nothing, absent)
    capacity = tuple(
        None if room is None else room - sum(sharding.kept(chunk, 0) for chunk in held)
        for room, held in zip(job.capacity, job.held, strict=True)
    )
    steps = tuple(sharding.step_time(chunk, 0) for chunk in range(job.chunks))
    return replace(job, optimizer=steps, capacity=capacity, sharding=sharding).with_messages()


def halved(job: JobSpec) -> JobSpec:
    """The job with every micro-batch split in two, as plans under other cuts may have it.

    Half h of micro-batch u has the number 2 u + h.
    """
    costs, over = job.layer_costs, job.split_ppm
    if costs is None or over is None:
        raise ValueError("the micro-batches of this job are never split")

    def timed(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(-(-value * (1_000_000 + over) // 2_000_000) for value in values)

    def half(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(-(-value // 2) for value in values)

    layers = replace(
        costs,
        forward=timed(costs.forward),
        backward_input=timed(costs.backward_input),
        backward_weight=timed(costs.backward_weight),
        transfer=half(costs.transfer),
        activation=half(costs.activation),
        kept_for_weight=half(costs.kept_for_weight),
    )
    return replace(job, microbatches=2 * job.microbatches, layer_costs=layers, split_ppm=None, parts=2)


def absent_cells(job: JobSpec, layout: Layout) -> FailureSet:
    """Cells of the derived job's grid that no worker of the layout takes."""
    return normal_form(tuple(job.pipelines - workers for workers in layout.workers), job.pipelines)


def ring_time(whole: int, workers: int, owners: int = 0) -> int:
    """Ticks of so many workers for a sum that takes very many of them `whole` ticks.

    Each worker sends all but one part in so many. Where each sum goes to several owners, it sends a part more
    for every owner after the first.
    """
    further = max(0, min(owners, workers) - 1)
    return -(-whole * (workers - 1 + further) // workers)
