"""The work of a schedule with what each op waited for, and the window of every stage.

Rows are the F, B, I and W of the schedule, in its order: by stage, worker and start. An op starts when the op
before it on its worker has ended, its input has arrived and the window of its stage is open.

Where groups of pipelines have cuts of their own, a stage may hold several chunks, and runs an op of each in a
row: here they are one op, as each group alone has them, and the chunk of an op is its stage.

Where peers share experts, services are work too, and all ops of a round wait for the input that comes last.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from recycle_compiler.ir.failure import Worker, worker_at
from recycle_compiler.ir.graph import data_edges
from recycle_compiler.ir.groups import groups_in_plan
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import SERVICES, Column, OpKind, OpTable
from recycle_compiler.ir.rounds import PART
from recycle_compiler.ir.schedule import Schedule, measured
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.scheduling.problem import Problem, problem_of
from recycle_compiler.scheduling.schedules import graph_of

NOTHING = -1
"""In a column of rows: there is no such op."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Figures of each stage; times in ticks."""

    finish: tuple[int, ...]
    """Of reduction and optimizer."""
    capacity: tuple[int, ...]
    activation: tuple[int, ...]
    kept: tuple[int, ...]
    waits_for: tuple[tuple[int, ...], ...]
    """The stages whose work its last reduction waits for: itself, all that it is tied to, or one that ends
    later and takes part in the same sums."""

    def __len__(self) -> int:
        return len(self.finish)


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Columns have one value per op, tuples one per stage; times in ticks."""

    schedule: Schedule
    problems: tuple[Problem, ...]
    """The timing problem of each group; mostly there is one."""
    stages: Stages
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
    """Ticks that the result travels."""
    opens: tuple[int, ...]
    """The start of the stage's first op; without stagger, of anybody's."""
    last: tuple[int, ...]
    """The end of the last op that its reduction waits for: mostly its own."""
    closes: tuple[int, ...]
    """The end of the stage's optimizer step; without stagger, of all stages' steps."""

    @property
    def staggered(self) -> bool:
        return self.schedule.job.techniques.stagger

    @property
    def pipelines(self) -> int:
        return self.schedule.job.pipelines

    @property
    def arrival(self) -> Column:
        """Time at which the input has arrived; 0 for ops that need none."""
        return np.where(self.source == NOTHING, 0, self.end[self.source] + self.lag)

    def workers(self) -> list[tuple[Worker, slice]]:
        """The rows of every worker that has work."""
        firsts = [*np.flatnonzero(self.before == NOTHING).tolist(), len(self.ops)]
        return [
            (worker_at(int(self.ops.worker[first]), self.pipelines), slice(first, until))
            for first, until in pairwise(firsts)
        ]

    def label(self, row: int) -> str:
        """`F1.0`: micro-batch 0 of pipeline 1; under another cut the number among all, as `F8`."""
        op = self.ops[row]
        if op.kind in SERVICES:
            return f"{op.kind.name}{op.microbatch}"
        if self.schedule.job.is_recut:
            return f"{op.kind.name}{op.pipeline * self.schedule.job.microbatches + op.microbatch}"
        return f"{op.kind.name}{op.pipeline}.{op.microbatch}"


class ApartError(ValueError):
    """Ops of one micro-batch on a stage of a group that do not follow each other at once."""


def timeline_of(schedule: Schedule) -> Timeline:
    """Timeline with the op that each op waited for; ApartError if the schedule is not one of whole groups."""
    job = schedule.job
    problems = _problems(schedule)
    makespan, period = measured(schedule)
    ops, start, source, lag = _work(schedule)
    end = start + ops.duration
    before = np.where(np.diff(ops.worker, prepend=-1) != 0, NOTHING, np.arange(len(ops)) - 1)
    stages = sum(problem.chunks for problem in problems)
    first = np.full(stages, np.iinfo(np.int64).max)
    last = np.zeros(stages, dtype=np.int64)
    np.minimum.at(first, ops.chunk, start)
    np.maximum.at(last, ops.chunk, end)
    finish = tuple(ticks for problem in problems for ticks in problem.finish)
    waits_for = _waits_for(job, last.tolist())
    last = np.array([max(last[list(others)]) for others in waits_for])
    if not job.techniques.stagger:
        opens = np.full(stages, first.min())
        closes = opens + period
    elif job.groups:
        opens, closes = first, _closes(schedule)
    else:
        opens, closes = first, last + np.array(finish)
    windows = (tuple(map(int, column.tolist())) for column in (opens, last, closes))
    facts = Stages(
        finish,
        tuple(room for problem in problems for room in problem.capacity),
        tuple(sum(job.activation[chunk] for chunk in held) for held in job.held),
        tuple(sum(job.kept_for_weight[chunk] for chunk in held) for held in job.held),
        waits_for,
    )
    return Timeline(
        schedule, problems, facts, period, makespan, ops, start, end, before, source, lag, *windows
    )


def _problems(schedule: Schedule) -> tuple[Problem, ...]:
    """Of the whole plan, or of each group alone."""
    job, failed = schedule.job, schedule.failed
    if job.groups:
        groups = groups_in_plan(job, Target(job, failed).normal.failed)
        return tuple(problem_of(GRAPH_PASSES.run(Target(group.job, group.failed))) for group in groups)
    # Bounds count peers, and without adaptive pipelining only the normal form counts them right.
    return (replace(problem_of(graph_of(schedule)), hosts=Target(job, failed).normal.hosts),)


def _work(schedule: Schedule) -> tuple[OpTable, Column, Column, Column]:
    """Ops and their starts, the row that each waits for, and how long the result of that one travels."""
    job = schedule.job
    chosen = schedule.is_compute | np.isin(schedule.ops.kind, SERVICES)
    ops = schedule.ops.take(chosen)
    start = schedule.start[chosen]
    source, lag = _sources(job, ops)
    if job.slots:
        return ops, start, *_in_rounds(ops, start, source, lag)
    if not job.groups:
        return ops, start, source, lag
    stage = ops.worker // job.pipelines
    first, last = (np.array([held[end] for held in job.held], dtype=np.int64)[stage] for end in (0, -1))
    heads = np.equal(ops.chunk, np.where(ops.kind == OpKind.F, first, last))
    row_of: Column = np.cumsum(heads) - 1
    rows = np.flatnonzero(heads)
    duration = np.add.reduceat(ops.duration, rows) if heads[0] else ops.duration
    # Each op must be one of the op that it is put together with, right after the one before.
    alike = (ops.worker, ops.kind, ops.pipeline, ops.microbatch)
    in_a_row = start[1:] == (start + ops.duration)[:-1]
    if (
        not heads[0]
        or not all(np.array_equal(column, column[rows][row_of]) for column in alike)
        or not in_a_row[~heads[1:]].all()
    ):
        raise ApartError("ops of one micro-batch on one stage are apart")
    whole = replace(ops.take(rows), chunk=stage[rows], duration=duration)
    known = source[rows]
    return whole, start[rows], np.where(known == NOTHING, NOTHING, row_of[known]), lag[rows]


def _waits_for(job: JobSpec, last: list[int]) -> tuple[tuple[int, ...], ...]:
    """For each stage those whose work its last reduction waits for; `last` has when the work of each ends."""
    if not job.groups:
        tied = job.tied_chunks
        return tuple(tied if stage in tied else (stage,) for stage in range(len(last)))
    free = list(last)
    decides = list(range(job.stages))
    for stages, reduce in zip(job.holders, job.reduce, strict=True):
        latest = max(stages, key=lambda stage: (free[stage], -stage))
        begins, who = free[latest], decides[latest]
        for stage in stages:
            decides[stage] = decides[stage] if free[stage] == begins else who
            free[stage] = begins + reduce
    return tuple((stage,) for stage in decides)


def _closes(schedule: Schedule) -> Column:
    """The end of the last optimizer step of each stage."""
    closes = np.zeros(schedule.job.stages, dtype=np.int64)
    np.maximum.at(closes, schedule.ops.worker // schedule.job.pipelines, schedule.end)
    return closes


def _in_rounds(ops: OpTable, start: Column, source: Column, lag: Column) -> tuple[Column, Column]:
    """The same where all who begin a round wait for the last input that one of them needs."""
    end = start + ops.duration
    part = PART[ops.kind]
    arrival = np.where(source == NOTHING, NOTHING, end[source] + lag)
    order = np.lexsort((-arrival, part, ops.chunk, start))
    fresh = np.ones(len(order), dtype=np.bool_)
    for column in (start, ops.chunk, part):
        fresh[1:] &= column[order][1:] == column[order][:-1]
    fresh[1:] = ~fresh[1:]
    latest = np.empty(len(order), dtype=np.int64)
    latest[order] = order[np.maximum.accumulate(np.where(fresh, np.arange(len(order)), 0))]
    # A gradient of weights is nobody else's business.
    latest = np.where(part == PART[OpKind.W], np.arange(len(order)), latest)
    return source[latest], lag[latest]


def _sources(job: JobSpec, ops: OpTable) -> tuple[Column, Column]:
    """For every op the row it waits for, and how long the result of that one travels."""
    edges = data_edges(job, ops)
    source = np.full(len(ops), NOTHING, dtype=np.int64)
    lag = np.zeros(len(ops), dtype=np.int64)
    source[edges.after], lag[edges.after] = edges.before, edges.lag
    return source, lag
