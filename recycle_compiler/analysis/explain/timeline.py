"""The work of a schedule with what each op waited for, and the window of every stage.

Rows are the F, B, I and W of the schedule, in its order: by stage, worker and start. An op starts when the op
before it on its worker has ended, its input has arrived and the window of its stage is open.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from recycle_compiler.ir.failure import Worker, worker_at
from recycle_compiler.ir.graph import data_edges
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import Column, OpTable
from recycle_compiler.ir.schedule import Schedule, measured
from recycle_compiler.ir.target import Target
from recycle_compiler.scheduling.problem import Problem, problem_of
from recycle_compiler.scheduling.schedules import graph_of

NOTHING = -1
"""In a column of rows: there is no such op."""


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Columns have one value per op, tuples one per stage; times in ticks."""

    schedule: Schedule
    problem: Problem
    period: int
    makespan: int
    ops: OpTable
    start: Column
    end: Column
    before: Column
    """The row that its worker ran before it."""
    source: Column
    """The row whose result it consumes."""
    lag: Column
    """How long that result travels."""
    opens: tuple[int, ...]
    """The start of the stage's first op; without stagger, of anybody's."""
    last: tuple[int, ...]
    """The end of the stage's last op, or of those that it shares parameters with."""
    closes: tuple[int, ...]
    """The end of the stage's optimizer step; without stagger, of all stages' steps."""

    @property
    def arrival(self) -> Column:
        """When the input is there; 0 for ops that need none."""
        return np.where(self.source == NOTHING, 0, self.end[self.source] + self.lag)

    def workers(self) -> list[tuple[Worker, slice]]:
        """The rows of every worker that has work."""
        firsts = [*np.flatnonzero(self.before == NOTHING).tolist(), len(self.ops)]
        return [
            (worker_at(int(self.ops.worker[first]), self.problem.pipelines), slice(first, until))
            for first, until in pairwise(firsts)
        ]

    def label(self, row: int) -> str:
        """`F1.0`: micro-batch 0 of pipeline 1; under another cut the number among all, as `F8`."""
        op = self.ops[row]
        if self.schedule.job.is_recut:
            return f"{op.kind.name}{op.pipeline * self.schedule.job.microbatches + op.microbatch}"
        return f"{op.kind.name}{op.pipeline}.{op.microbatch}"


def timeline_of(schedule: Schedule) -> Timeline:
    """What each op of a schedule waited for."""
    ops = schedule.ops.take(schedule.is_compute)
    start = schedule.start[schedule.is_compute]
    end = start + ops.duration
    # Bounds count peers, and without adaptive pipelining only the normal form counts them right.
    normal = Target(schedule.job, schedule.failed).normal
    problem = replace(problem_of(graph_of(schedule)), hosts=normal.hosts)
    makespan, period = measured(schedule)
    before = np.where(np.diff(ops.worker, prepend=-1) != 0, NOTHING, np.arange(len(ops)) - 1)
    source, lag = _sources(schedule.job, ops)
    first = np.full(problem.chunks, np.iinfo(np.int64).max)
    last = np.zeros(problem.chunks, dtype=np.int64)
    np.minimum.at(first, ops.chunk, start)
    np.maximum.at(last, ops.chunk, end)
    if tied := list(schedule.job.tied_chunks):
        last[tied] = last[tied].max()
    if problem.staggered:
        opens, closes = first, last + np.array(problem.finish)
    else:
        opens = np.full(problem.chunks, first.min())
        closes = opens + period
    windows = (tuple(map(int, column.tolist())) for column in (opens, last, closes))
    return Timeline(schedule, problem, period, makespan, ops, start, end, before, source, lag, *windows)


def _sources(job: JobSpec, ops: OpTable) -> tuple[Column, Column]:
    """For every op the row it waits for, and how long the result of that one travels."""
    edges = data_edges(job, ops)
    source = np.full(len(ops), NOTHING, dtype=np.int64)
    lag = np.zeros(len(ops), dtype=np.int64)
    source[edges.after], lag[edges.after] = edges.before, edges.lag
    return source, lag
