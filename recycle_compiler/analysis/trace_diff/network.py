"""Dependencies of each op of a plan, and the length of a step when ops take given times.

Steps follow each other: a worker begins the next one when its optimizer step has ended, and the reduction of
a stage begins when the last of its workers is done; where groups of pipelines have cuts of their own, that
of a chunk when the last of its holders is done with its work and with the reductions before it. A step then
takes, on average over many, the maximum cycle mean of the graph between the ends of stages, found by Karp's
algorithm. For the times of the profile that is the period of the plan. Without stagger all stages end
together, as the plan counts it.

A network also tells what of an op's time was waiting that a trace did not set apart. All workers of a trace
have one clock, so an op that starts before its input exists has waited inside: for the op that makes its
input, or for the last peer to begin a reduction. A run that knew what its ops waited for leaves
little to find.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.analysis.trace_diff.matching import Floats, Measured
from recycle_compiler.ir.failure import Worker, worker_number
from recycle_compiler.ir.graph import data_edges
from recycle_compiler.ir.job import JobSpec, leading_chunks
from recycle_compiler.ir.ops import SERVICE, UNSET, Column, OpKind, OpTable
from recycle_compiler.ir.rounds import PART, with_overlap
from recycle_compiler.ir.schedule import Schedule

Rows = NDArray[np.intp]
NOTHING = -1
"""In a column of rows: there is no such op."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Columns have one value for each row of the schedule; times in ticks."""

    staggered: bool
    ends_with: tuple[int, ...]
    """Of each stage the first of those whose work ends together with its own: itself, unless it is tied."""
    workers: tuple[Worker, ...]
    worker: Column
    """Index in `workers` of the one that runs the op."""
    source: Column
    """The row whose result it consumes."""
    lag: Column
    """Ticks that the result travels, as planned."""
    order: tuple[tuple[int, ...], ...]
    """Rows of work, each after all that it waits for: those of a round of peers together, others alone."""
    sums: tuple[Rows, ...]
    """The rows of each reduction that workers begin together, in the order in which each worker has them."""
    steps: Rows
    """The rows of all optimizer steps."""
    gathers: tuple[Rows, ...]
    """Rows in which the workers of each chunk get its weights together, where state is sharded."""

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
    work = np.flatnonzero(PART[ops.kind] != UNSET)
    order = work[np.argsort(schedule.start[work], kind="stable")]
    workers = tuple(name for name, _ in spans)
    job = schedule.job
    return Network(
        job.techniques.stagger,
        tuple(leading_chunks(job)) if job.has_chunk_per_stage else tuple(range(job.stages)),
        workers,
        worker,
        source,
        lag,
        tuple(_together(schedule, order.tolist())),
        _sums(job, ops),
        np.flatnonzero(ops.kind == OpKind.O),
        _gathers(job, ops),
    )


def _together(schedule: Schedule, order: list[int]) -> Iterator[tuple[int, ...]]:
    """Rows that begin together, by start: forwards and backwards of a chunk, where peers meet in rounds."""
    if not schedule.job.slots:
        yield from ((row,) for row in order)
        return
    ops, start = schedule.ops, schedule.start.tolist()
    part, chunk = PART[ops.kind].tolist(), ops.chunk.tolist()
    rounds: dict[tuple[int, int, int], list[int]] = {}
    alone = PART[OpKind.W]
    for row in order:
        place = (start[row], chunk[row], part[row]) if part[row] != alone else (start[row], NOTHING, row)
        rounds.setdefault(place, []).append(row)
    yield from map(tuple, rounds.values())


def without_end(schedule: Schedule) -> Iterator[str]:
    """Yield every worker without a reduction or an optimizer step, whose next step could not begin."""
    for worker, rows in schedule.worker_starts():
        for kind in sorted({OpKind.R, OpKind.O} - set(schedule.ops.kind[rows].tolist())):
            yield f"worker {worker} has no {kind.name}"


def steady_step(network: Network, duration: Floats, lag: Floats) -> float:
    """Duration of a step with these times of its ops and messages, if no op waits for more."""
    return _largest_cycle_mean(_from_end_to_end(network, duration, lag))


def _sums(job: JobSpec, ops: OpTable) -> tuple[Rows, ...]:
    """Rows of reductions of one chunk, or of chunks that are tied."""
    begins_with = np.array(leading_chunks(job))[ops.chunk]
    return tuple(
        np.flatnonzero((ops.kind == OpKind.R) & (begins_with == chunk))
        for chunk in sorted(set(leading_chunks(job)))
    )


def _gathers(job: JobSpec, ops: OpTable) -> tuple[Rows, ...]:
    rows = (np.flatnonzero((ops.kind == OpKind.G) & (ops.chunk == chunk)) for chunk in range(job.chunks))
    return tuple(each for each in rows if len(each))


def _sources(schedule: Schedule) -> tuple[Column, Column]:
    """For every op the row whose result it needs, and how long that result travels."""
    edges = data_edges(schedule.job, schedule.ops)
    source = np.full(len(schedule.ops), NOTHING, dtype=np.int64)
    lag = np.zeros(len(schedule.ops), dtype=np.int64)
    source[edges.after], lag[edges.after] = edges.before, edges.lag
    return source, lag


def _from_end_to_end(network: Network, duration: Floats, lag: Floats) -> Floats:
    """[from, to]: the longest way from the end of one stage's work to the next such end of another's."""
    ends_with = np.array(network.ends_with)[network.stage] if network.staggered else 0 * network.stage
    _, group = np.unique(ends_with, return_inverse=True)
    groups = int(group.max()) + 1
    clock = np.full((len(network.workers), groups), -np.inf)
    clock[np.arange(len(group)), group] = 0.0
    for rows in network.sums:
        together = network.worker[rows]
        clock[together] = clock[together].max(axis=0) + duration[rows, None]
    np.add.at(clock, network.worker[network.steps], duration[network.steps, None])
    for rows in network.gathers:
        together = network.worker[rows]
        clock[together] = clock[together].max(axis=0) + duration[rows, None]
    if not network.staggered:
        clock[:] = clock.max()
    worker, source = network.worker.tolist(), network.source.tolist()
    lengths, lags = duration.tolist(), lag.tolist()
    end = np.empty((len(duration), groups))
    for rows in network.order:
        for row in rows:
            now = clock[worker[row]]
            if source[row] != NOTHING:
                np.maximum(now, end[source[row]] + lags[row], out=now)
        if len(rows) > 1:
            there = [worker[row] for row in rows]
            clock[there] = clock[there].max(axis=0)
        for row in rows:
            now = clock[worker[row]]
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


def retimed_step(schedule: Schedule, job: JobSpec, slow: Mapping[Worker, float]) -> float:
    """Ticks of a step if ops and messages take the times of this job of the same shape.

    A slow worker takes so many times longer for all that it computes. Sums over peers are not its work.
    """
    network = network_of(replace(schedule, job=job))
    planned = network_of(schedule)
    ops = schedule.ops
    whole = steady_step(planned, ops.duration.astype(np.float64), planned.lag.astype(np.float64))
    # For nearly all plans this is the period itself; one that could be faster keeps what it gives away.
    share = schedule.claims.period / whole
    return share * steady_step(network, _durations(schedule, job, slow), network.lag.astype(np.float64))


def _durations(schedule: Schedule, job: JobSpec, slow: Mapping[Worker, float]) -> Floats:
    ops = schedule.ops
    forward, back, weight, reduce, step, gather = (
        np.array(getattr(job, name), dtype=np.float64)
        for name in ("forward", "backward_input", "backward_weight", "reduce", "optimizer", "gather")
    )
    times = {
        OpKind.F: forward,
        OpKind.B: back + weight,
        OpKind.I: back,
        OpKind.W: weight,
        OpKind.R: reduce,
        OpKind.O: step,
        OpKind.G: gather,
    }
    times |= {service: times[work] for work, service in SERVICE.items()}
    durations = np.zeros(len(ops))
    for kind, per_chunk in times.items():
        rows = ops.kind == kind
        durations[rows] = per_chunk[ops.chunk[rows]]
    durations = with_overlap(job, replace(ops, duration=durations)).duration.astype(np.float64)
    for worker, factor in slow.items():
        own = (ops.worker == worker_number(worker, job.pipelines)) & ~np.isin(ops.kind, (OpKind.R, OpKind.G))
        durations[own] *= factor
    return durations


def waiting_inside(network: Network, measured: Measured) -> Floats:
    """Time that each op of each step waited after it had started."""
    ready = np.full_like(measured.start, -np.inf)
    fed = np.flatnonzero(network.source != NOTHING)
    ready[:, fed] = measured.end[:, network.source[fed]]
    for rows in (*network.sums, *network.gathers):
        ready[:, rows] = measured.start[:, rows].max(axis=1, keepdims=True)
    # One that has ended before that did not wait for it, whatever the plan says.
    waited = (measured.start < ready) & (ready <= measured.end)
    return np.where(waited, ready - measured.start, 0.0)
