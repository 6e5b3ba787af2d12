"""What each op of a plan waits for, and how long a step takes when ops take as long as they are told to.

Steps follow each other: a worker begins the next one when its optimizer step has ended, and the reduction of
a stage begins when the last of its workers is done. A step then takes, on average over many, as long as the
slowest loop through the ends of stages: the largest mean of a cycle, found as Karp does. For the times of the
profile that is the period of the plan. Without stagger all stages end together, as the plan counts it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recycle_compiler.analysis.trace_diff.matching import Floats
from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.ops import Column, OpKind, OpTable
from recycle_compiler.ir.schedule import Schedule

NOTHING = -1
"""In a column of rows: there is no such op."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Columns have one value for each row of the schedule; times in ticks."""

    staggered: bool
    stages: int
    workers: tuple[Worker, ...]
    worker: Column
    """Which of `workers` runs the op."""
    source: Column
    """The row whose result it consumes."""
    lag: Column
    """How long that result travels, as planned."""
    order: tuple[int, ...]
    """Rows of work on micro-batches, each after all that it waits for."""
    reduction: Column
    """The row of each worker's reduction; its optimizer step is in `step`."""
    step: Column

    @property
    def stage(self) -> Column:
        """Of each worker."""
        return np.array([worker.stage for worker in self.workers], dtype=np.int64)


def network_of(schedule: Schedule) -> Network:
    """The dependencies of a schedule."""
    ops = schedule.ops
    spans = schedule.worker_starts()
    worker = np.empty(len(ops), dtype=np.int64)
    for number, (_, rows) in enumerate(spans):
        worker[rows] = number
    source, lag = _sources(schedule)
    work = np.flatnonzero(schedule.is_compute)
    order = work[np.argsort(schedule.start[work], kind="stable")]
    reduction, step = (_of_worker(ops, worker, len(spans), kind) for kind in (OpKind.R, OpKind.O))
    workers = tuple(name for name, _ in spans)
    job = schedule.job
    return Network(
        job.techniques.stagger,
        job.stages,
        workers,
        worker,
        source,
        lag,
        tuple(order.tolist()),
        reduction,
        step,
    )


def without_end(schedule: Schedule) -> Iterator[str]:
    """Yield every worker without a reduction or an optimizer step, whose next step could not begin."""
    for worker, rows in schedule.worker_starts():
        for kind in sorted({OpKind.R, OpKind.O} - set(schedule.ops.kind[rows].tolist())):
            yield f"worker {worker} has no {kind.name}"


def steady_step(network: Network, duration: Floats, lag: Floats) -> float:
    """How long a step takes when these are the times of its ops and messages, and nobody waits for more."""
    return _largest_cycle_mean(_from_end_to_end(network, duration, lag))


def _of_worker(ops: OpTable, worker: Column, workers: int, kind: OpKind) -> Column:
    found = np.full(workers, NOTHING, dtype=np.int64)
    rows = np.flatnonzero(ops.kind == kind)
    found[worker[rows]] = rows
    return found


def _sources(schedule: Schedule) -> tuple[Column, Column]:
    """For every op the row whose result it needs, and how long that result travels."""
    job, ops = schedule.job, schedule.ops
    rows = np.arange(len(ops))
    forward, weight = ops.kind == OpKind.F, ops.kind == OpKind.W
    backward = (ops.kind == OpKind.B) | (ops.kind == OpKind.I)
    place = (ops.pipeline, ops.microbatch, ops.chunk)
    found = np.full((2, job.pipelines, job.microbatches, job.chunks + 1), NOTHING, dtype=np.int64)
    for number, chosen in enumerate((forward, backward)):
        found[(number, *(column[chosen] for column in place))] = rows[chosen]
    source = np.full(len(ops), NOTHING, dtype=np.int64)
    lag = np.zeros(len(ops), dtype=np.int64)
    # One more than there are, for the last stage, which sends nothing on.
    transfer = np.array([*job.transfer, 0], dtype=np.int64)
    last = ops.chunk == job.chunks - 1
    for chosen, number, step in (
        (forward & (ops.chunk > 0), 0, -1),
        (backward & last, 0, 0),
        (backward & ~last, 1, 1),
        (weight, 1, 0),
    ):
        pipeline, microbatch, stage = (column[chosen] for column in place)
        source[chosen] = found[number, pipeline, microbatch, stage + step]
        if step:
            lag[chosen] = transfer[stage + min(step, 0)]
    return source, lag


def _from_end_to_end(network: Network, duration: Floats, lag: Floats) -> Floats:
    """[from, to]: the longest way from the end of one stage's work to the next such end of another's."""
    finish = duration[network.reduction] + duration[network.step]
    group = network.stage if network.staggered else np.zeros(len(network.workers), dtype=np.int64)
    groups = network.stages if network.staggered else 1
    clock = np.full((len(network.workers), groups), -np.inf)
    clock[np.arange(len(group)), group] = finish if network.staggered else finish.max()
    worker, source = network.worker.tolist(), network.source.tolist()
    lengths, lags = duration.tolist(), lag.tolist()
    end = np.empty((len(duration), groups))
    for row in network.order:
        now = clock[worker[row]]
        if source[row] != NOTHING:
            np.maximum(now, end[source[row]] + lags[row], out=now)
        now += lengths[row]
        end[row] = now
    ends = np.full((groups, groups), -np.inf)
    np.maximum.at(ends, group, clock)
    return ends.T


def _largest_cycle_mean(length: Floats) -> float:
    """Karp: over the ends of longest walks of n arcs, the largest of the smallest means of last arcs."""
    size = len(length)
    walks = [np.zeros(size)]
    for _ in range(size):
        walks.append((walks[-1][:, None] + length).max(axis=0))
    shorter, count = np.array(walks[:-1]), size - np.arange(size)[:, None]
    return float(((walks[-1] - shorter) / count).min(axis=0).max())
