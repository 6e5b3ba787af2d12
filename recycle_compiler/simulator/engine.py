"""Runs the instruction streams of a plan, event by event: what will really run, with the times of the job.

A worker runs its instructions one after another. Sends and receives take it no time; a message is there when
its way is done, and the op that consumes it waits for it. A sum over peers begins when the last of them is
there, and all are done with it together. In the first iteration the workers of a stage begin when the plan
opens its window, in all others as soon as they are done with the one before; without stagger, as soon as all
are. Nothing of the planner is used, and nothing that a plan says of itself is believed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from recycle_compiler.ir.bundled import read_job
from recycle_compiler.ir.failure import Worker, failed_per_stage, failure_set
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import Column
from recycle_compiler.simulator.costs import Jitter, SimulatedCosts, costs_of, durations
from recycle_compiler.simulator.errors import check_labels
from recycle_compiler.simulator.machine import Iteration, SimulatedMachine
from recycle_compiler.simulator.pace import SimulatedPace, pace_of, steady_period
from recycle_compiler.simulator.streams import TIMED, WORK, EngineStreams, engine_streams, streams_peak_memory
from recycle_compiler.simulator.wiring import Wiring, wire
from recycle_runtime.plan.bundle import Bundle


@dataclass(frozen=True, slots=True, eq=False)
class Ops:
    """Everything that takes time, in columns: a row for each, by worker, in the order in which it runs."""

    worker: Column
    """Index of the op's worker among the outcome's workers."""
    opcode: Column
    chunk: Column
    pipeline: Column
    microbatch: Column
    start: Column
    """A row for each iteration that was kept, a column for each op; so is the end."""
    end: Column


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedRun:
    """A plan that has been run."""

    workers: tuple[Worker, ...]
    """By stage, then pipeline."""
    ops: Ops
    ends: tuple[int, ...]
    """Time at which the last worker was done with each iteration."""
    period: float
    """Of an iteration in the long run. Exact without jitter, else the mean over those that were run."""
    spread: float
    """Standard deviation of the time from end to end; 0 without jitter."""
    makespan: int
    """Of the first iteration: from the start of its first work on a micro-batch to the end of the last."""
    peak_memory: tuple[tuple[Worker, int], ...]
    """The most of activations that each worker holds."""
    busy: tuple[tuple[Worker, float], ...]
    """Time that each worker works in an iteration, sums over peers and optimizer steps included."""

    @property
    def idle(self) -> tuple[tuple[Worker, float], ...]:
        """Rest of the period for each worker."""
        return tuple((worker, self.period - time) for worker, time in self.busy)


def simulate(
    bundle: Bundle,
    plan_index: int,
    *,
    iterations: int = 2,
    jitter: Jitter | None = None,
    slow: Mapping[Worker, float] | None = None,
    costs: SimulatedCosts | None = None,
    keep_ops: bool = True,
) -> SimulatedRun:
    """Run a plan of a bundle for some iterations.

    `slow` has workers that take so many times longer to compute, `costs` other times than those of the job.
    Without `keep_ops` the starts and ends of ops are forgotten, which long runs of large plans should do.
    Raises StreamError if the streams do not run to their end, BundleError if they cannot be read.
    """
    job = read_job(bundle)
    failed = failed_per_stage(failure_set(bundle.plans[plan_index].failed), job.stages)
    return run_streams(
        engine_streams(bundle, plan_index),
        job.left_by(failed),
        bundle.plans[plan_index].release,
        iterations=iterations,
        jitter=jitter,
        slow=slow,
        costs=costs,
        keep_ops=keep_ops,
    )


def run_streams(
    streams: EngineStreams,
    job: JobSpec,
    release: Sequence[int],
    *,
    iterations: int = 2,
    jitter: Jitter | None = None,
    slow: Mapping[Worker, float] | None = None,
    costs: SimulatedCosts | None = None,
    keep_ops: bool = True,
) -> SimulatedRun:
    """The same for streams from elsewhere; `release` has when the window of each stage opens."""
    noise = None if jitter is None or jitter.is_none else jitter
    slow, costs = slow or {}, costs or costs_of(job)
    _check(streams, iterations, noise, slow)
    wiring = wire(streams, job)
    machine = SimulatedMachine(streams, wiring, iterations)
    pace = pace_of(machine, job, costs, durations(streams, costs, slow), noise)
    first = begins = np.array(release, dtype=np.int64)[streams.stages]
    record = _Record(streams, wiring, keep_ops)
    for number in range(iterations):
        done = pace.run(begins, number)
        if number == 0:
            # A message that goes astray is told only where no worker is blocked, which says more.
            check_labels(streams, wiring, job)
        record.add(done)
        begins = pace.next_begins(done)
    return record.outcome(pace, first, streams_peak_memory(streams, job))


class _Record:
    """Record of iterations."""

    def __init__(self, streams: EngineStreams, wiring: Wiring, keep_ops: bool) -> None:
        self._streams, self._keep = streams, keep_ops
        timed = streams.is_any(TIMED)[wiring.row]
        self._steps = np.flatnonzero(timed)
        self._rows = wiring.row[timed]
        self._worker = streams.worker[self._rows]
        self._kept: list[tuple[Column, Column]] = []
        self._ends: list[int] = []
        self._busy = np.zeros(len(streams.workers))
        self._makespan = 0

    def add(self, done: Iteration) -> None:
        start, end = done.start[self._steps], done.end[self._steps]
        if not self._ends:
            work = self._streams.is_any(WORK)[self._rows]
            self._makespan = int(end[work].max(initial=0) - start[work].min(initial=int(done.clock.max())))
        self._ends.append(int(done.clock.max()))
        self._busy += np.bincount(self._worker, weights=end - start, minlength=len(self._busy))
        if self._keep:
            self._kept.append((start, end))

    def outcome(
        self, pace: SimulatedPace, begins: Column, peaks: tuple[tuple[Worker, int], ...]
    ) -> SimulatedRun:
        streams, rows = self._streams, self._rows
        start, end = (
            np.array([each[which] for each in self._kept], dtype=np.int64).reshape(len(self._kept), len(rows))
            for which in (0, 1)
        )
        apart = np.diff(self._ends)
        if pace.jitter is None:
            period, spread = float(steady_period(begins, pace.advance)), 0.0
        else:
            period, spread = float(apart.mean()), float(apart.std())
        return SimulatedRun(
            streams.workers,
            Ops(
                self._worker,
                streams.opcode[rows],
                streams.chunk[rows],
                streams.pipeline[rows],
                streams.microbatch[rows],
                start,
                end,
            ),
            tuple(self._ends),
            period,
            spread,
            self._makespan,
            peaks,
            tuple(zip(streams.workers, (self._busy / len(self._ends)).tolist(), strict=True)),
        )


def _check(
    streams: EngineStreams, iterations: int, jitter: Jitter | None, slow: Mapping[Worker, float]
) -> None:
    least = 1 if jitter is None else 2
    if iterations < least:
        words = "iterations" if jitter is None else "iterations with jitter"
        raise ValueError(f"{words} must be at least {least}, got {iterations}")
    for worker, factor in slow.items():
        if worker not in streams.workers:
            raise ValueError(f"worker {worker[0]}:{worker[1]} cannot be slow: this plan has no such worker")
        if not (isfinite(factor) and factor > 0):
            raise ValueError(f"worker {worker[0]}:{worker[1]} cannot be {factor} times as slow")
