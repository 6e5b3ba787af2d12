"""One failure fewer is never slower: a plan for more failures, with one more worker.

    stage of 3, one failed  0: a b c d e f    -->    0: a c e
                            1: g h i j k l           1: g h i j k l
                                                     2: b d f

The worker that lives after all takes every second micro-batch of the peer that has most, at the times they
had there. So nothing gets later, memory has more room, and ops may even move forward.

Where peers share experts, rounds stay what they were, and the worker has its part in them. They may take
longer: more tokens are then for experts of others.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from recycle_compiler.ir.failure import FailureSet, failed_per_stage, worker_number
from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.ops import Column, OpKind
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.pipeline import Pass
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.scheduling.bounds import lower_bound
from recycle_compiler.scheduling.problem import Problem, problem_of, rerouted, with_times_of
from recycle_compiler.scheduling.rounds.routes import Shape
from recycle_compiler.scheduling.rounds.search import schedule_in_order
from recycle_compiler.scheduling.schedules import SearchedPlan, schedule_from
from recycle_compiler.scheduling.timing import Clock
from recycle_runtime.plan.isa import Opcode

_SERVED = {
    Opcode.SERVE_FORWARD: Opcode.FORWARD,
    Opcode.SERVE_BACKWARD: Opcode.BACKWARD,
    Opcode.SERVE_BACKWARD_INPUT: Opcode.BACKWARD_INPUT,
    Opcode.SERVE_BACKWARD_WEIGHT: Opcode.BACKWARD_WEIGHT,
}
_KIND = {Opcode.FORWARD: 0, Opcode.BACKWARD: 1, Opcode.BACKWARD_INPUT: 1, Opcode.BACKWARD_WEIGHT: 2}


@dataclass(frozen=True, slots=True)
class AddWorker(Pass[Streams, Schedule]):
    """Streams -> Schedule for one failure fewer, on the stage where that helps most."""

    name = "add-worker"
    wanted: FailureSet = ()
    """Failures that stay where stages gain as much; else those where least can still be gained stay."""

    def run(self, streams: Streams) -> Schedule:
        job, claims = streams.job, streams.claims
        if job.slots:
            return _in_rounds(streams, self.wanted)
        planned = problem_of(GRAPH_PASSES.run(Target(job, streams.failed)))
        crowded = rerouted(planned, planned.hosts, _hosts(streams))
        start = _starts(streams, crowded)
        found: dict[tuple[int, bool], list[tuple[Clock, FailureSet]]] = {}
        for failed in _with_one_fewer(streams):
            left = job.left_by(failed_per_stage(failed, job.stages))
            clock = Clock(with_times_of(_shared(crowded, Target(job, failed).hosts), left))
            # A stage that opens later may make the period shorter than this, but hardly change which is best.
            at_once = clock.time_at_once(clock.order_of(start)).period
            found.setdefault((at_once, failed != self.wanted), []).append((clock, failed))
        clock, failed = max(found[min(found)], key=lambda entry: lower_bound(entry[0].problem).period)
        timed = clock.time(clock.order_of(start), claims.period)
        assert timed is not None, "one more worker made a plan slower"
        graph = _on_workers(GRAPH_PASSES.run(Target(job, failed)), clock.problem.host)
        return schedule_from(
            graph, clock.problem, SearchedPlan(timed, lower_bound(clock.problem), claims.cut_short)
        )


def _in_rounds(streams: Streams, wanted: FailureSet) -> Schedule:
    """The same rounds, in the same order: whoever lives after all has its part in them."""
    shape, orders = _rounds(streams)
    found: dict[tuple[int, bool], Schedule] = {}
    for failed in _with_one_fewer(streams):
        graph = GRAPH_PASSES.run(Target(streams.job, failed))
        schedule = schedule_in_order(graph, shape, orders, streams.claims.cut_short)
        found.setdefault((schedule.claims.period, failed != wanted), schedule)
    return found[min(found)]


def _rounds(streams: Streams) -> tuple[Shape, list[list[tuple[int, int]]]]:
    """Sizes of each chunk's rounds in micro-batches; part and chunk of each op of a stage, in order."""
    sizes: list[list[int]] = [[] for _ in range(streams.job.chunks)]
    orders: dict[int, list[tuple[int, int]]] = {}
    for worker, stream in streams.items():
        ranks = [0] * streams.job.chunks
        order: list[tuple[int, int]] = []
        for opcode, chunk, *_ in stream:
            kind = _KIND.get(_SERVED.get(opcode, opcode))
            if kind is None:
                continue
            order.append((kind, chunk))
            if kind == 0:
                sizes[chunk] += [0] * (ranks[chunk] == len(sizes[chunk]))
                sizes[chunk][ranks[chunk]] += opcode is Opcode.FORWARD
                ranks[chunk] += 1
        orders.setdefault(worker.stage, order)
    return tuple(map(tuple, sizes)), [orders[stage] for stage in range(streams.job.stages)]


def _on_workers(graph: Graph, host: Column) -> Graph:
    """The graph with every micro-batch on the worker that host[unit, chunk] says."""
    ops = graph.ops
    work = ops.kind <= OpKind.W
    unit = ops.pipeline[work] * graph.job.microbatches + ops.microbatch[work]
    worker = ops.worker.copy()
    worker[work] = host[unit, ops.chunk[work]]
    return replace(graph, ops=replace(ops, worker=worker))


def _with_one_fewer(streams: Streams) -> Iterator[FailureSet]:
    """Failures without the first one of a stage, for every stage that has any."""
    for stage in sorted({worker.stage for worker in streams.failed}):
        lives = min(worker for worker in streams.failed if worker.stage == stage)
        yield tuple(worker for worker in streams.failed if worker != lives)


def _rows(streams: Streams) -> tuple[Column, Column, Column, Column, Column]:
    """Of every op in the streams: kind, unit, chunk, the number of its worker, and its row."""
    kinds = np.full(max(Opcode) + 1, -1)
    kinds[list(_KIND)] = list(_KIND.values())
    rows = np.flatnonzero(kinds[streams.opcode] >= 0)
    worker = np.searchsorted(streams.offsets, rows, side="right") - 1
    unit = streams.pipeline[rows] * streams.job.microbatches + streams.microbatch[rows]
    pipelines = streams.job.pipelines
    number = np.array([worker_number(worker, pipelines) for worker in streams.workers])[worker]
    return kinds[streams.opcode[rows]], unit, streams.chunk[rows], number, rows


def _hosts(streams: Streams) -> Column:
    """host[unit, chunk]: the number of the worker that runs it."""
    kind, unit, chunk, worker, _ = _rows(streams)
    job = streams.job
    host = np.empty((job.pipelines * job.microbatches, job.chunks), dtype=np.int64)
    host[unit[kind == 0], chunk[kind == 0]] = worker[kind == 0]
    return host


def _starts(streams: Streams, problem: Problem) -> Column:
    """Numbers that rise along every stream, as start[kind, unit, chunk]; -1 where there is no such op."""
    kind, unit, chunk, _, rows = _rows(streams)
    start = np.full((3, problem.units, problem.chunks), -1, dtype=np.int64)
    start[kind, unit, chunk] = rows
    return start


def _shared(problem: Problem, hosts: tuple[tuple[int, ...], ...]) -> Problem:
    """The problem with more workers: each takes every second micro-batch of the peer that has most."""
    host = problem.host.copy()
    for chunk, (before, after) in enumerate(zip(problem.hosts, hosts, strict=True)):
        for worker in after:
            if worker not in before:
                busiest = int(np.bincount(host[:, chunk]).argmax())
                host[np.flatnonzero(host[:, chunk] == busiest)[1::2], chunk] = worker
    return rerouted(problem, hosts, host)
