"""Between schedules and timing problems: times put on the ops of a graph, and the graph behind a schedule."""

from dataclasses import dataclass, replace

import numpy as np

from recycle_compiler.ir.graph import Edges, Graph, data_edges, memory_of
from recycle_compiler.ir.job import leading_chunks
from recycle_compiler.ir.ops import UNSET, Column, Op, OpKind, OpTable, concatenate, op_table
from recycle_compiler.ir.schedule import Schedule, WorkEdge, schedule_order
from recycle_compiler.ir.streams import Claims
from recycle_compiler.scheduling.bounds import Bound
from recycle_compiler.scheduling.problem import Ints, Problem, op_numbers
from recycle_compiler.scheduling.timing import Timed


@dataclass(frozen=True, slots=True)
class SearchedPlan:
    """Times, what they are compared with, and whether the time limit cut the search for them short."""

    timed: Timed
    bound: Bound
    cut_short: bool = False
    host: Ints | None = None
    """host[unit, chunk]: who runs it, where that is not whom the graph names."""


def schedule_from(graph: Graph, problem: Problem, plan: SearchedPlan) -> Schedule:
    """Times put back on the ops of the graph, with the reductions and optimizer steps they lead to."""
    job, ops = graph.job, graph.ops.take(graph.ops.kind != OpKind.S)
    if plan.host is not None:
        number = op_numbers(job, ops)
        named = np.tile(plan.host.ravel(), 3)[number]
        ops = replace(ops, worker=np.where(number == UNSET, ops.worker, named))
    start = np.zeros(len(ops), dtype=np.int64)
    work = ops.kind <= OpKind.W
    start[work] = plan.timed.start.ravel()[op_numbers(job, ops)[work]]
    ends = start + ops.duration
    window = np.array(problem.window)[list(problem.pool)][ops.chunk]
    last = np.zeros(int(window.max()) + 1, dtype=np.int64)
    np.maximum.at(last, window[work], ends[work])
    start[~work] = finish_starts(ops, last[window])
    makespan = int(ends[work].max() - start[work].min())
    order = schedule_order(ops, start)
    claims = Claims(makespan, plan.timed.period, plan.bound.period, plan.bound.reason, plan.cut_short)
    release = [0] * job.stages
    for pool, workers in enumerate(problem.pool_hosts):
        for stage in {worker // job.pipelines for worker in workers}:
            release[stage] = plan.timed.release[pool]
    return Schedule(
        job, graph.failed, ops.take(order), start[order], tuple(release), claims, added_edges(graph)
    )


def finish_starts(ops: OpTable, worked: Column) -> Column:
    """Start of reductions and optimizer steps: when all work of their window is done, one after the other.

    A worker reduces all its chunks before it steps, so that peers stay together whoever steps slower. Where
    state is sharded, the weights of a chunk follow its step.
    """
    ending = np.isin(ops.kind, (OpKind.R, OpKind.O, OpKind.G))
    rows = np.flatnonzero(ending)
    by_worker = rows[schedule_order(ops.take(rows), np.zeros(len(rows), dtype=np.int64))]
    before = np.cumsum(ops.duration[by_worker]) - ops.duration[by_worker]
    firsts = np.flatnonzero(np.diff(ops.worker[by_worker], prepend=-1))
    before -= np.repeat(before[firsts], np.diff(np.append(firsts, len(by_worker))))
    start = np.zeros(len(ops), dtype=np.int64)
    start[by_worker] = worked[by_worker] + before
    return start[ending]


def added_edges(graph: Graph) -> tuple[WorkEdge, ...]:
    """The edges between work on micro-batches that are not the flow of data which every job has."""
    work = graph.ops.kind <= OpKind.W
    usual = data_edges(graph.job, graph.ops)
    source, lag = np.full(len(graph.ops), UNSET), np.zeros(len(graph.ops), dtype=np.int64)
    source[usual.after], lag[usual.after] = usual.before, usual.lag
    between = work[graph.before] & work[graph.after]
    is_usual = (source[graph.after] == graph.before) & (lag[graph.after] == graph.lag)
    return tuple(
        WorkEdge(_place(graph.ops[before]), _place(graph.ops[after]), lag)
        for before, after, lag in zip(
            *(column[between & ~is_usual].tolist() for column in (graph.before, graph.after, graph.lag)),
            strict=True,
        )
    )


def _place(op: Op) -> tuple[OpKind, int, int, int]:
    return op.kind, op.pipeline, op.microbatch, op.chunk


def graph_of(schedule: Schedule) -> Graph:
    """The graph that a schedule is a schedule of."""
    job, ops = schedule.job, schedule.ops
    leads = leading_chunks(job) if job.techniques.stagger else [UNSET] * job.chunks
    chunks = sorted(set(leads))
    syncs = op_table([Op(OpKind.S, UNSET, UNSET, chunk, UNSET, 0) for chunk in chunks])
    sync_of = len(ops) + np.array([chunks.index(lead) for lead in leads])[ops.chunk]
    split = np.zeros(job.chunks, dtype=np.bool_)
    split[ops.chunk[ops.kind == OpKind.W]] = True
    ends = np.flatnonzero((ops.kind == OpKind.B) | (ops.kind == OpKind.W))
    reductions, steps, gathers = (np.flatnonzero(ops.kind == kind) for kind in (OpKind.R, OpKind.O, OpKind.G))
    reduction_of, step_of = (np.full((job.workers, job.chunks), UNSET) for _ in range(2))
    reduction_of[ops.worker[reductions], ops.chunk[reductions]] = reductions
    step_of[ops.worker[steps], ops.chunk[steps]] = steps
    at_once = [
        (ends, sync_of[ends]),
        (sync_of[reductions], reductions),
        (reduction_of[ops.worker[steps], ops.chunk[steps]], steps),
        (step_of[ops.worker[gathers], ops.chunk[gathers]], gathers),
    ]
    parts = [
        data_edges(job, ops),
        *(Edges(before, after, np.zeros(len(after), dtype=np.int64)) for before, after in at_once),
        _edges_between(schedule),
    ]
    table = concatenate([ops, syncs])
    edges = Edges(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    return Graph(job, schedule.failed, table, *edges, *memory_of(job, table))


def _edges_between(schedule: Schedule) -> Edges:
    """The added edges of a schedule, between its rows."""
    if not schedule.edges:
        return Edges(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
    row_of = {_place(op): row for row, op in enumerate(schedule.ops) if op.kind <= OpKind.W}
    rows = [(row_of[before], row_of[after], lag) for before, after, lag in schedule.edges]
    columns = np.array(rows, dtype=np.int64)
    return Edges(columns[:, 0], columns[:, 1], columns[:, 2])


def starts_of(schedule: Schedule, problem: Problem) -> Ints:
    """start[kind, unit, chunk] of a schedule; -1 where there is no such op."""
    start = np.full(3 * problem.units * problem.chunks, -1, dtype=np.int64)
    work = schedule.is_compute
    start[op_numbers(schedule.job, schedule.ops)[work]] = schedule.start[work]
    return start.reshape(3, problem.units, problem.chunks)
