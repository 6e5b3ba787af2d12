"""A run in detail: how long ops of each kind took, what workers did, which ops were late. In microseconds."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from recycle_compiler.analysis.trace_diff.matching import Floats, Measured, traced_op_name
from recycle_compiler.ir.failure import Worker, worker_at
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.ir.schedule import Schedule

_LATEST = 5
"""Ops named as the latest."""
_TRIED = 6
"""Stages, and kinds on them, that are tried: those that differ most from their plan."""


@dataclass(frozen=True, slots=True)
class OpTime:
    """The ops of one kind on one stage, and for one chunk where it holds several; times in microseconds."""

    kind: OpKind
    stage: int
    chunk: int
    count: int
    planned: float
    median: float
    low: float
    """A tenth of the ops is faster."""
    high: float
    """A tenth of the ops is slower."""


@dataclass(frozen=True, slots=True)
class WorkerTime:
    """A worker from the end of its step before to the end of this one, in microseconds."""

    worker: Worker
    whole: float
    busy: float
    planned_busy: float
    waiting: float
    """For messages and peers, inside ops."""
    data: float = 0.0
    """Waiting for data, between ops."""

    @property
    def between(self) -> float:
        """None of these: what lies between ops."""
        return self.whole - self.busy - self.waiting - self.data


@dataclass(frozen=True, slots=True)
class LateOp:
    """An op that started later than planned; times from the start of the step's first op."""

    name: str
    worker: Worker
    planned: float
    started: float

    @property
    def late(self) -> float:
        return self.started - self.planned


def groups(schedule: Schedule) -> Iterator[tuple[OpKind, int, np.ndarray[tuple[int], np.dtype[np.intp]]]]:
    """The ops of each kind on each stage, as rows."""
    for kind in sorted({OpKind(kind) for kind in schedule.ops.kind.tolist()}):
        for stage in range(schedule.job.stages):
            here = schedule.ops.worker // schedule.job.pipelines == stage
            rows = np.flatnonzero((schedule.ops.kind == kind) & here)
            if len(rows):
                yield kind, stage, rows


def op_times(schedule: Schedule, work: Floats, planned: Floats) -> Iterator[OpTime]:
    chunks = schedule.ops.chunk
    for kind, stage, of_stage in groups(schedule):
        for chunk in np.unique(chunks[of_stage]).tolist():
            rows = of_stage[chunks[of_stage] == chunk]
            low, median, high = np.quantile(work[:, rows], (0.1, 0.5, 0.9)).tolist()
            yield OpTime(kind, stage, chunk, work[:, rows].size, float(planned[rows[0]]), median, low, high)


def typical_times(schedule: Schedule, times: Iterable[OpTime]) -> Floats:
    """For each op the median of its kind on its stage."""
    medians = {(row.kind, row.stage, row.chunk): row.median for row in times}
    ops = schedule.ops
    stages = ops.worker // schedule.job.pipelines
    places = zip(ops.kind.tolist(), stages.tolist(), ops.chunk.tolist(), strict=True)
    return np.array([medians[OpKind(kind), stage, chunk] for kind, stage, chunk in places])


def worker_times(
    schedule: Schedule,
    measured: Measured,
    work: Floats,
    inside: Floats,
    chosen: int,
    planned: Floats,
    data: Mapping[tuple[Worker, int], float],
) -> Iterator[WorkerTime]:
    waiting = measured.waited[chosen] + inside[chosen]
    for worker, rows in schedule.worker_starts():
        began = (measured.start - measured.waited)[chosen, rows].min()
        if chosen:
            began = measured.end[chosen - 1, rows].max()
        yield WorkerTime(
            worker,
            float(measured.end[chosen, rows].max() - began),
            float(work[chosen, rows].sum()),
            float(planned[rows].sum()),
            float(waiting[rows].sum()),
            data.get((worker, measured.steps[chosen]), 0.0),
        )


def latest_ops(schedule: Schedule, start: Floats, tick: float) -> tuple[LateOp, ...]:
    """Those furthest behind their plan, if both begin with the same op."""
    first = schedule.start.min()
    started = start - start[schedule.start == first].min()
    planned = (schedule.start - first) * tick
    late = started - planned
    rows = [row for row in np.argsort(-late, kind="stable")[:_LATEST].tolist() if late[row] > 0]
    ops = [(row, schedule.ops[row]) for row in rows]
    pipelines = schedule.job.pipelines
    return tuple(
        LateOp(
            traced_op_name(op),
            worker_at(op.worker, pipelines),
            float(planned[row]),
            float(started[row]),
        )
        for row, op in ops
    )


@dataclass(frozen=True, slots=True)
class Reason:
    """Time that the step would save, or lose if below zero, if these ops took as long as the profile says."""

    kind: OpKind
    stage: int | None
    """None: on all stages."""
    saving: float


def reasons(
    schedule: Schedule, replay: Callable[[Floats], float], typical: Floats, planned: Floats
) -> tuple[Reason, ...]:
    """Largest first; `replay` says how long a step takes when its ops take that long."""
    whole = replay(typical)
    kinds = sorted({OpKind(kind) for kind in schedule.ops.kind.tolist()})
    everywhere = [(kind, None, np.flatnonzero(schedule.ops.kind == kind)) for kind in kinds]
    single = sorted(groups(schedule), key=lambda group: -abs(float((typical - planned)[group[2]].sum())))
    found: list[Reason] = []
    for kind, stage, rows in (*everywhere, *single[:_TRIED]):
        as_planned = typical.copy()
        as_planned[rows] = planned[rows]
        found.append(Reason(kind, stage, whole - replay(as_planned)))
    return tuple(sorted(found, key=lambda reason: (-abs(reason.saving), reason.stage is not None)))


def main_reasons(found: tuple[Reason, ...], longer: float) -> tuple[Reason, ...]:
    """Up to two: what the difference is due to, and what makes up for at least half of that."""
    ours = _narrow([reason for reason in found if reason.saving * longer > 0])
    if ours is None or 2 * abs(ours.saving) < abs(longer):
        return ()
    against = _narrow([reason for reason in found if reason.saving * longer < 0])
    return (ours,) if against is None or 2 * abs(against.saving) < abs(ours.saving) else (ours, against)


def _narrow(candidates: list[Reason]) -> Reason | None:
    """The kind that counts most; on one stage only, if at least half of it is due to that."""
    kind = next((reason for reason in candidates if reason.stage is None), None)
    if kind is None:
        return None
    alike = (reason for reason in candidates if reason.kind is kind.kind and reason.stage is not None)
    return next((reason for reason in alike if 2 * abs(reason.saving) >= abs(kind.saving)), kind)
