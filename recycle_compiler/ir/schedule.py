"""Every op with its worker and its start: what a plan is, before it becomes instructions."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np

from recycle_compiler.ir.failure import FailureSet, Worker, worker_at
from recycle_compiler.ir.hops import hop_times
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import MICROBATCH_KINDS, SERVICE, Column, Op, OpKind, OpTable
from recycle_compiler.ir.rounds import broken_rounds
from recycle_compiler.ir.streams import Claims


class WorkEdge(NamedTuple):
    """An order between two ops on micro-batches that a pass has added to the flow of data.

    Ops are given by kind, pipeline, micro-batch and chunk.
    """

    before: tuple[OpKind, int, int, int]
    after: tuple[OpKind, int, int, int]
    lag: int


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Rows are sorted by worker and start; S ops have no place here. Times in ticks."""

    job: JobSpec
    failed: FailureSet
    ops: OpTable
    start: Column
    release: tuple[int, ...]
    """Start of the window of each stage."""
    claims: Claims
    edges: tuple[WorkEdge, ...] = ()
    """Edges beside those of the data that every job hands on."""

    @property
    def end(self) -> Column:
        return self.start + self.ops.duration

    @property
    def is_compute(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Rows that are work on a micro-batch, not reduction or optimizer."""
        return self.ops.kind <= OpKind.W

    def rows(self) -> Iterator[tuple[Op, int, int]]:
        """Each op with its start and end."""
        yield from zip(self.ops, self.start.tolist(), self.end.tolist(), strict=True)

    def worker_starts(self) -> list[tuple[Worker, slice]]:
        """The rows of each live worker."""
        firsts = np.flatnonzero(np.diff(self.ops.worker, prepend=-1))
        limits = [*firsts.tolist(), len(self.ops)]
        return [
            (worker_at(int(self.ops.worker[first]), self.job.pipelines), slice(first, last))
            for first, last in pairwise(limits)
        ]

    def peak_memory(self) -> list[tuple[int, int, int]]:
        """The most activation memory each live worker holds, as (pipeline, stage, amount)."""
        change = np.zeros(len(self.ops), dtype=np.int64)
        before = np.zeros(len(self.ops), dtype=np.int64)
        activation = np.array(self.job.activation)[self.ops.chunk]
        kept = np.array(self.job.kept_for_weight)[self.ops.chunk]
        kind = self.ops.kind
        # F takes memory as it starts; the others give it back as they end, so it counts from the next op on.
        takes = (kind == OpKind.F) | (kind == OpKind.SF)
        before[takes] = activation[takes]
        for which, amount in ((OpKind.B, activation), (OpKind.I, activation - kept), (OpKind.W, kept)):
            gives = (kind == which) | (kind == SERVICE[which])
            change[gives] = -amount[gives]
        peaks: list[tuple[int, int, int]] = []
        for worker, rows in self.worker_starts():
            total = np.cumsum(before[rows] + change[rows])
            # What a row frees is still held while it runs.
            held = total - change[rows]
            peaks.append((worker.pipeline, worker.stage, int(held.max(initial=0))))
        return peaks

    def verify(self) -> Iterator[str]:
        """Yield every broken invariant; a good schedule yields nothing."""
        if not np.array_equal(schedule_order(self.ops, self.start), np.arange(len(self.ops))):
            yield "rows are not sorted by worker and start"
            return
        end = self.end
        for worker, rows in self.worker_starts():
            if (end[rows][:-1] > self.start[rows][1:]).any():
                yield f"worker {worker} runs two ops at once"
        for pipeline, stage, amount in self.peak_memory():
            capacity = self.job.capacity[stage]
            if capacity is not None and amount > capacity:
                yield f"worker {pipeline}:{stage} holds {amount}, its capacity is {capacity}"
        yield from _wrong_order(self)
        yield from _broken_edges(self)
        if self.job.slots:
            yield from broken_rounds(self.job, self.failed, self.ops, self.start)
        if measured(self) != (self.claims.makespan, self.claims.period):
            yield f"claims {self.claims.makespan}, {self.claims.period} but measures {measured(self)}"
        if not 0 <= self.claims.lower_bound <= self.claims.period:
            yield f"lower bound {self.claims.lower_bound} exceeds the period {self.claims.period}"


def schedule_order(ops: OpTable, start: Column) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The canonical order of rows: what starts at one time by kind and chunk, but G right after its O, and
    before all else a W that takes no time of its own."""
    is_over = (ops.duration == 0) & np.isin(ops.kind, (OpKind.W, OpKind.SW))
    return np.lexsort((ops.kind, ops.chunk, np.minimum(ops.kind, OpKind.O), ~is_over, start, ops.worker))


def measured(schedule: Schedule) -> tuple[int, int]:
    """Makespan and period, from the starts alone."""
    compute = schedule.is_compute
    makespan = int(schedule.end[compute].max() - schedule.start[compute].min())
    job = schedule.job
    if not job.techniques.stagger:
        return makespan, makespan + max(job.finish)
    first = np.full(job.stages, np.iinfo(np.int64).max)
    last = np.zeros(job.stages, dtype=np.int64)
    stage = schedule.ops.worker // job.pipelines
    np.minimum.at(first, stage[compute], schedule.start[compute])
    np.maximum.at(last, stage, schedule.end)
    return makespan, int((last - first).max())


def _wrong_order(schedule: Schedule) -> Iterator[str]:
    """Data dependencies between the ops of each micro-batch."""
    job, ops = schedule.job, schedule.ops
    shape = (4, job.pipelines, job.microbatches, job.chunks)
    compute = schedule.is_compute
    place = (ops.kind[compute], ops.pipeline[compute], ops.microbatch[compute], ops.chunk[compute])
    start = np.full(shape, -1, dtype=np.int64)
    end = np.full(shape, -1, dtype=np.int64)
    start[place] = schedule.start[compute]
    end[place] = schedule.end[compute]
    forward, coupled, split, weight = (int(kind) for kind in MICROBATCH_KINDS)
    whole = start[coupled] >= 0
    back_start = cast(Column, np.where(whole, start[coupled], start[split]))
    back_end = cast(Column, np.where(whole, end[coupled], end[split]))
    if (start[forward] < 0).any() or (back_start < 0).any():
        yield "a micro-batch misses an F or a backward on some chunk"
        return
    places = np.indices((job.pipelines * job.microbatches, job.chunks - 1))
    transfer = hop_times(job, *places).reshape(job.pipelines, job.microbatches, job.chunks - 1)
    if (start[forward][..., 1:] < end[forward][..., :-1] + transfer).any():
        yield "an F starts before its input has arrived"
    if (back_start[..., :-1] < back_end[..., 1:] + transfer).any():
        yield "a backward starts before its gradient has arrived"
    if (back_start[..., -1] < end[forward][..., -1]).any():
        yield "a backward on the last chunk starts before its F has ended"
    if (~whole & (start[weight] < back_end)).any():
        yield "a W starts before its I has ended"


def _broken_edges(schedule: Schedule) -> Iterator[str]:
    """Orders that a pass has added."""
    if not schedule.edges:
        return
    times = {
        (op.kind, op.pipeline, op.microbatch, op.chunk): (start, end) for op, start, end in schedule.rows()
    }
    for edge in schedule.edges:
        if times[edge.after][0] < times[edge.before][1] + edge.lag:
            yield f"{edge.after[0].name} of {edge.after[1:]} starts before an edge of the graph allows it"
