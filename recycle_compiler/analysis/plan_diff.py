"""Differences between two plans: numbers, where ops run, when, in which order, and memory."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.failure import FailureSet, Worker, worker_at
from recycle_compiler.ir.groups import any_layout_of
from recycle_compiler.ir.job import JobSpec, SolverOptions, Techniques
from recycle_compiler.ir.layers import LayerCosts
from recycle_compiler.ir.ops import Column, OpKind
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.text import op_name
from recycle_compiler.ir.units import in_memory_unit, in_unit, memory_text, plural, time_text, unit_name

Rows = NDArray[np.intp]
_TIMES = ("period", "makespan", "lower_bound", "bound_over_cuts")
_TIME_FIELDS = ("forward", "backward_input", "backward_weight", "optimizer", "reduce", "gather", "transfer")
_MEMORY_FIELDS = ("activation", "kept_for_weight", "capacity", "resident", "state", "overhead")
_OF_LAYERS = "layer_"
"""Begins the names of costs by layer."""
_EXAMPLES = 5
"""Ops or workers of a kind that are named before the rest is counted."""


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
    """Worker that runs the op afterwards."""
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
    """Claims that differ, with both values; times in ticks."""
    removed: tuple[str, ...]
    """Ops only in the first plan."""
    added: tuple[str, ...]
    moved: tuple[Moved, ...]
    shifted: tuple[Shifted, ...]
    reordered: tuple[tuple[Worker, int], ...]
    """Number of a worker's ops in both plans that must change places for the new order."""
    memory: tuple[tuple[Worker, int | None, int | None], ...]
    """Peak memory before and after; None where the worker is not alive."""
    streams: tuple[Worker, ...]
    """Workers whose instructions differ; known only when both plans have instructions."""

    @property
    def is_empty(self) -> bool:
        changes = (self.job, self.claims, self.removed, self.added, self.moved, self.shifted)
        more = (self.reordered, self.memory, self.streams)
        return not any((*changes, *more)) and self.before.failed == self.after.failed


def compare_plans(before: Schedule, after: Schedule, streams: tuple[Worker, ...] = ()) -> PlanDiff:
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


def changed_streams(before: Streams, after: Streams) -> tuple[Worker, ...]:
    """Workers of both plans whose streams differ."""
    old, new = dict(before.items()), dict(after.items())
    return tuple(worker for worker in sorted(old.keys() & new.keys()) if old[worker] != new[worker])


def _changed_fields(before: JobSpec, after: JobSpec) -> tuple[tuple[str, object, object], ...]:
    apart = ("layer_costs", "sharding")
    names = (*(field.name for field in fields(JobSpec) if field.name not in apart), "owners", "gather")
    pairs = ((name, getattr(before, name), getattr(after, name)) for name in names)
    whole = (*pairs, *_layer_fields(before.layer_costs, after.layer_costs))
    return tuple((name, old, new) for name, old, new in whole if old != new)


def _layer_fields(
    before: LayerCosts | None, after: LayerCosts | None
) -> Iterator[tuple[str, object, object]]:
    """Costs by layer, or how many layers there are where one of the jobs does not have them."""
    if before is None or after is None:
        yield "layers", before and before.count, after and after.count
        return
    for field in fields(LayerCosts):
        yield f"{_OF_LAYERS}{field.name}", getattr(before, field.name), getattr(after, field.name)


def _changed_claims(before: Schedule, after: Schedule) -> tuple[tuple[str, object, object], ...]:
    names = ("period", "makespan", "lower_bound", "bound_over_cuts", "status", "reason", "cut_short")
    pairs = ((name, _claimed(before, name), _claimed(after, name)) for name in names)
    return tuple((name, old, new) for name, old, new in pairs if old != new)


def _claimed(schedule: Schedule, name: str) -> object:
    value = getattr(schedule.claims, name)
    # Plans of a job that keeps its cut have no bound over others.
    return None if name == "bound_over_cuts" and not value else value


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


def plan_title(failures: int) -> str:
    """`plan for 1 failure`: what pairs the plans of two bundles."""
    return f"plan for {plural(failures, 'failure')}"


def schedule_title(schedule: Schedule) -> str:
    """Title of a plan by its failures; under another cut, `plan under 2x2,2x4`."""
    layout = any_layout_of(schedule.job, schedule.failed)
    if layout is None or not schedule.job.is_recut:
        return plan_title(len(schedule.failed))
    return f"plan under {layout}"


def difference_lines(diff: PlanDiff) -> Iterator[str]:
    """Changes, most important first, indented to stand below a title."""
    for name, values in _summary(diff):
        yield f"  {name:12} {values}"
    yield from _examples("gone", "op", diff.removed)
    yield from _examples("new", "op", diff.added)
    moved = [f"{one.op}  {one.before} -> {one.after}" for one in diff.moved]
    yield from _examples("moved", "op", moved, " to another worker")
    shifted = [f"{one.op} on {one.worker}  {_retimed(diff, one)}" for one in diff.shifted]
    workers = _count_by_worker([one.worker for one in diff.shifted])
    yield from _examples("retimed", "op", shifted, f", by worker: {workers}")
    yield from _examples(
        "reordered", "worker", [f"{worker}  {plural(count, 'op')}" for worker, count in diff.reordered]
    )
    memory = [
        f"{worker}  {_memory(diff.before.job, old)} -> {_memory(diff.after.job, new)}"
        for worker, old, new in diff.memory
    ]
    yield from _examples("peak memory", "worker", memory)
    if not (moved or shifted or diff.reordered):
        # Otherwise it goes without saying.
        yield from _examples("instructions", "worker", [str(worker) for worker in diff.streams])


def difference_object(diff: PlanDiff) -> dict[str, Any]:
    """The same for streams; times and memory in the units of each side's job."""
    before, after = diff.before.job, diff.after.job
    return {
        "failures": len(diff.after.failed),
        "same": diff.is_empty,
        "failed": [[list(worker) for worker in side.failed] for side in (diff.before, diff.after)],
        "job": {name: [_field(before, name, old), _field(after, name, new)] for name, old, new in diff.job},
        "claims": {
            name: [_claim(before, name, old), _claim(after, name, new)] for name, old, new in diff.claims
        },
        "removed": list(diff.removed),
        "added": list(diff.added),
        "moved": [{"op": one.op, "before": list(one.before), "after": list(one.after)} for one in diff.moved],
        "retimed": [
            {
                "op": one.op,
                "worker": list(one.worker),
                "before": in_unit(before, one.before),
                "after": in_unit(after, one.after),
            }
            for one in diff.shifted
        ],
        "reordered": [{"worker": list(worker), "ops": count} for worker, count in diff.reordered],
        "peak_memory": [
            {"worker": list(worker), "before": _amount(before, old), "after": _amount(after, new)}
            for worker, old, new in diff.memory
        ],
        "instructions": [list(worker) for worker in diff.streams],
    }


def _summary(diff: PlanDiff) -> Iterator[tuple[str, str]]:
    if diff.before.failed != diff.after.failed:
        yield "failed", f"{_names(diff.before.failed)} -> {_names(diff.after.failed)}"
    for name, old, new in diff.job:
        before, after = _field_text(diff.before.job, name, old), _field_text(diff.after.job, name, new)
        yield f"job {name}", f"{before} -> {after}"
    for name, old, new in diff.claims:
        yield name.replace("_", " "), _claim_text(diff, name, old, new)


def _claim_text(diff: PlanDiff, name: str, old: object, new: object) -> str:
    before, after = diff.before.job, diff.after.job
    if name not in _TIMES:
        return f"{_words(old)} -> {_words(new)}"
    if not isinstance(old, int) or not isinstance(new, int):
        return " -> ".join(_time_or_none(job, value) for job, value in ((before, old), (after, new)))
    text = f"{time_text(before, old)} -> {time_text(after, new)} {unit_name(after)}"
    if before.unit != after.unit or not old:
        return text
    return f"{text} ({100 * (new - old) / old:+.1f} %)"


def _time_or_none(job: JobSpec, value: object) -> str:
    return f"{time_text(job, value)} {unit_name(job)}" if isinstance(value, int) else "none"


def _examples(name: str, noun: str, items: Sequence[str], note: str = "") -> Iterator[str]:
    """Number of items, and the first of them."""
    if not items:
        return
    yield f"  {name:12} {plural(len(items), noun)}{note}"
    for item in items[:_EXAMPLES]:
        yield f"    {item}"
    if len(items) > _EXAMPLES:
        yield f"    and {len(items) - _EXAMPLES} more"


def _count_by_worker(workers: Sequence[Worker]) -> str:
    counts = sorted(Counter(workers).items())
    named = [f"{worker} {count}" for worker, count in counts[: 2 * _EXAMPLES]]
    if len(counts) > len(named):
        named.append(f"and {len(counts) - len(named)} more")
    return ", ".join(named)


def _retimed(diff: PlanDiff, one: Shifted) -> str:
    return f"{time_text(diff.before.job, one.before)} -> {time_text(diff.after.job, one.after)}"


def _names(failed: FailureSet) -> str:
    return ", ".join(map(str, failed)) or "none"


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _field_text(job: JobSpec, name: str, value: object) -> str:
    plain = _field(job, name, value)
    if not isinstance(plain, list):
        return _words(plain)
    words = ["unlimited" if item is None else str(item) for item in cast(list[object], plain)]
    if name.startswith(_OF_LAYERS):
        # There may be a hundred layers, and most of them alike.
        runs = [(word, len(list(same))) for word, same in groupby(words)]
        words = [word if count == 1 else f"{count}*{word}" for word, count in runs]
    return " ".join(words) or "none"


def _field(job: JobSpec, name: str, value: object) -> object:
    """A field of the job as JSON can hold it, in the units of the job."""
    if isinstance(value, Techniques):
        return list(value.names)
    if isinstance(value, SolverOptions):
        return str(value)
    name = name.removeprefix(_OF_LAYERS)
    if not isinstance(value, tuple):
        return _amount(job, value) if name == "capacity" and isinstance(value, int) else value
    numbers = cast(tuple[int | None, ...], value)
    if name in _MEMORY_FIELDS:
        return [_amount(job, number) for number in numbers]
    if name in _TIME_FIELDS:
        return [in_unit(job, number or 0) for number in numbers]
    return list(numbers)


def _claim(job: JobSpec, name: str, value: object) -> object:
    return in_unit(job, value) if name in _TIMES and isinstance(value, int) else value


def _memory(job: JobSpec, amount: int | None) -> str:
    return "none" if amount is None else memory_text(job, amount)


def _amount(job: JobSpec, amount: int | None) -> int | float | None:
    return None if amount is None else in_memory_unit(job, amount)
