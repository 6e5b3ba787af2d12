"""What changed from one plan to another: numbers, where ops run, when, in which order, and memory."""

from bisect import bisect_left
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.failure import Worker, worker_at
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import Column, OpKind
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.streams import Program
from recycle_compiler.ir.text import op_name

Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Moved:
    """An op that runs on another worker."""

    op: str
    before: Worker
    after: Worker


@dataclass(frozen=True, slots=True)
class Shifted:
    """An op that starts at another time; ticks."""

    op: str
    worker: Worker
    """Where it runs afterwards."""
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Everything that differs between two plans."""

    before: Schedule
    after: Schedule
    job: tuple[tuple[str, object, object], ...]
    """Fields of the job with both their values."""
    claims: tuple[tuple[str, object, object], ...]
    """What a plan says of itself, where it differs, with both values; times in ticks."""
    removed: tuple[str, ...]
    """Ops only in the first plan."""
    added: tuple[str, ...]
    moved: tuple[Moved, ...]
    shifted: tuple[Shifted, ...]
    reordered: tuple[tuple[Worker, int], ...]
    """How many ops of a worker must change places for the new order, among those it runs in both."""
    memory: tuple[tuple[Worker, int | None, int | None], ...]
    """Peak memory before and after; None where the worker is not alive."""
    streams: tuple[Worker, ...]
    """Workers whose instructions differ; known only when both plans have instructions."""

    @property
    def is_empty(self) -> bool:
        changes = (self.job, self.claims, self.removed, self.added, self.moved, self.shifted)
        more = (self.reordered, self.memory, self.streams)
        return not any((*changes, *more)) and self.before.failed == self.after.failed


def compare(before: Schedule, after: Schedule, streams: tuple[Worker, ...] = ()) -> PlanDiff:
    """All differences between two plans; `streams` as `changed_streams` finds them."""
    common, rows_before, rows_after = _matched(before, after)
    return PlanDiff(
        before=before,
        after=after,
        job=_changed_fields(before.job, after.job),
        claims=_changed_claims(before, after),
        removed=_names_outside(before, rows_before),
        added=_names_outside(after, rows_after),
        moved=_moved(before, after, rows_before, rows_after),
        shifted=_shifted(before, after, rows_before, rows_after),
        reordered=_reordered(before, after, rows_before, rows_after) if len(common) else (),
        memory=_changed_memory(before, after),
        streams=streams,
    )


def changed_streams(before: Program, after: Program) -> tuple[Worker, ...]:
    """Workers of both programs that are told different things."""
    old, new = dict(before.streams()), dict(after.streams())
    return tuple(worker for worker in sorted(old.keys() & new.keys()) if old[worker] != new[worker])


def _changed_fields(before: JobSpec, after: JobSpec) -> tuple[tuple[str, object, object], ...]:
    pairs = (
        (field.name, getattr(before, field.name), getattr(after, field.name)) for field in fields(JobSpec)
    )
    return tuple((name, old, new) for name, old, new in pairs if old != new)


def _changed_claims(before: Schedule, after: Schedule) -> tuple[tuple[str, object, object], ...]:
    names = ("period", "makespan", "lower_bound", "status", "reason", "cut_short")
    pairs = ((name, getattr(before.claims, name), getattr(after.claims, name)) for name in names)
    return tuple((name, old, new) for name, old, new in pairs if old != new)


def _matched(before: Schedule, after: Schedule) -> tuple[Column, Rows, Rows]:
    """Ops that both have, and their rows in each."""
    bounds = tuple(max(a, b) for a, b in zip(_bounds(before), _bounds(after), strict=True))
    common, rows_before, rows_after = np.intersect1d(
        _identity(before, bounds), _identity(after, bounds), return_indices=True
    )
    return common, rows_before, rows_after


def _bounds(schedule: Schedule) -> tuple[int, ...]:
    """One more than the largest pipeline or worker, micro-batch and chunk."""
    ops = schedule.ops
    whose = max(int(ops.pipeline.max(initial=0)), int(ops.worker.max(initial=0)))
    return whose + 2, int(ops.microbatch.max(initial=0)) + 2, int(ops.chunk.max(initial=0)) + 1


def _identity(schedule: Schedule, bounds: tuple[int, ...]) -> Column:
    """One number per op that says which op it is, wherever it runs. A reduction belongs to its worker."""
    ops = schedule.ops
    whose = np.where(ops.kind <= OpKind.W, ops.pipeline, ops.worker)
    place = (ops.kind, whose + 1, ops.microbatch + 1, ops.chunk)
    return np.ravel_multi_index(place, (len(OpKind), *bounds)).astype(np.int64)


def _names_outside(schedule: Schedule, matched: Rows) -> tuple[str, ...]:
    alone = np.setdiff1d(np.arange(len(schedule.ops)), matched)
    return tuple(op_name(schedule.ops[row], schedule.job) for row in alone.tolist())


def _moved(before: Schedule, after: Schedule, rows_before: Rows, rows_after: Rows) -> tuple[Moved, ...]:
    changed = before.ops.worker[rows_before] != after.ops.worker[rows_after]
    return tuple(
        Moved(op_name(before.ops[old], before.job), _worker(before, old), _worker(after, new))
        for old, new in _pairs_in_time(before, rows_before[changed], rows_after[changed])
    )


def _shifted(before: Schedule, after: Schedule, rows_before: Rows, rows_after: Rows) -> tuple[Shifted, ...]:
    changed = before.start[rows_before] != after.start[rows_after]
    return tuple(
        Shifted(
            op_name(before.ops[old], before.job),
            _worker(after, new),
            int(before.start[old]),
            int(after.start[new]),
        )
        for old, new in _pairs_in_time(before, rows_before[changed], rows_after[changed])
    )


def _pairs_in_time(before: Schedule, rows_before: Rows, rows_after: Rows) -> list[tuple[int, int]]:
    """Pairs of rows, by when they started: the first difference is the one to look at."""
    order = np.lexsort((rows_before, before.start[rows_before]))
    return list(zip(rows_before[order].tolist(), rows_after[order].tolist(), strict=True))


def _reordered(
    before: Schedule, after: Schedule, rows_before: Rows, rows_after: Rows
) -> tuple[tuple[Worker, int], ...]:
    """Rows are sorted by worker and start, so positions within a worker are row numbers."""
    stays = before.ops.worker[rows_before] == after.ops.worker[rows_after]
    old, new = rows_before[stays], rows_after[stays]
    by_old = np.argsort(old)
    old, new = old[by_old], new[by_old]
    place = before.ops.worker[old]
    firsts = np.flatnonzero(np.diff(place, prepend=-1)).tolist()
    result: list[tuple[Worker, int]] = []
    for first, last in zip(firsts, [*firsts[1:], len(old)], strict=True):
        count = last - first - _longest_rising(new[first:last].tolist())
        if count:
            result.append((_worker(before, int(old[first])), count))
    return tuple(result)


def _longest_rising(numbers: list[int]) -> int:
    """The length of the longest rising subsequence: what can stay where it is."""
    ends: list[int] = []
    for number in numbers:
        position = bisect_left(ends, number)
        ends[position : position + 1] = [number]
    return len(ends)


def _changed_memory(before: Schedule, after: Schedule) -> tuple[tuple[Worker, int | None, int | None], ...]:
    old = {Worker(pipeline, stage): amount for pipeline, stage, amount in before.peak_memory()}
    new = {Worker(pipeline, stage): amount for pipeline, stage, amount in after.peak_memory()}
    workers = sorted(old.keys() | new.keys())
    return tuple((w, old.get(w), new.get(w)) for w in workers if old.get(w) != new.get(w))


def _worker(schedule: Schedule, row: int) -> Worker:
    return worker_at(int(schedule.ops.worker[row]), schedule.job.pipelines)
