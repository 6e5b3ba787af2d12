"""The scheduler's knowledge comes from the graph: edges that a pass adds, and chunks wherever they lie."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings

from recycle_compiler.ir.failure import FailureSet, failure_set
from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.text import parse_graph, parse_schedule, print_graph, print_schedule
from recycle_compiler.passes.assign_slots import AssignSlots
from recycle_compiler.passes.canonicalize_schedule import CanonicalizeSchedule
from recycle_compiler.passes.pipeline import Pass
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.scheduling import loops
from recycle_compiler.scheduling.search import Effort
from tests.support.chunks import broken_rules, chunked_job, chunked_jobs
from tests.support.jobs import SLOT, unit_job

Place = tuple[OpKind, int, int, int]
QUICK = AssignSlots(effort=replace(Effort().quick(), exact=True))


@dataclass(frozen=True, slots=True)
class AddEdge(Pass[Graph, Graph]):
    """A pass from outside: one more edge."""

    name = "add-edge"
    before: Place
    after: Place
    lag: int

    def run(self, graph: Graph) -> Graph:
        return replace(
            graph,
            before=np.append(graph.before, _row(graph, self.before)),
            after=np.append(graph.after, _row(graph, self.after)),
            lag=np.append(graph.lag, self.lag),
        )


def _row(graph: Graph, place: Place) -> int:
    return next(row for row, op in enumerate(graph.ops) if (op.kind, *op[1:4]) == place)


def _wait(schedule: Schedule, edge: AddEdge) -> int:
    """From the end of one op to the start of the other."""
    times = {(op.kind, *op[1:4]): (start, end) for op, start, end in schedule.rows()}
    return times[edge.after][0] - times[edge.before][1]


EDGES = [
    AddEdge((OpKind.I, 0, 0, 0), (OpKind.F, 0, 1, 0), 0),
    AddEdge((OpKind.F, 0, 3, 2), (OpKind.F, 1, 0, 1), 2 * SLOT),
    AddEdge((OpKind.F, 0, 1, 1), (OpKind.F, 0, 0, 1), SLOT),
    AddEdge((OpKind.I, 1, 0, 1), (OpKind.F, 0, 2, 0), 5 * SLOT),
    AddEdge((OpKind.W, 1, 2, 2), (OpKind.I, 0, 0, 0), 0),
]


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_pass_that_adds_an_edge_changes_the_schedule(
    edge: AddEdge, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled:
        monkeypatch.setattr(loops, "Sizes", SimpleNamespace(COMPILED=0))
    target = Target(unit_job(3, 2, 4, capacity=5), ())
    plain = (GRAPH_PASSES >> QUICK >> CanonicalizeSchedule()).run(target)
    changed = (GRAPH_PASSES >> edge >> QUICK >> CanonicalizeSchedule()).run(target)
    assert _wait(plain, edge) < edge.lag <= _wait(changed, edge)
    assert not broken_rules(changed)
    assert plain.claims.lower_bound <= changed.claims.lower_bound <= changed.claims.period
    assert print_schedule(parse_schedule(print_schedule(changed))) == print_schedule(changed)


def test_a_longer_op_and_more_memory_count_too() -> None:
    graph = GRAPH_PASSES.run(Target(unit_job(2, 1, 3, capacity=3), ()))
    row = _row(graph, (OpKind.F, 0, 1, 1))
    duration = graph.ops.duration.copy()
    duration[row] = 4 * SLOT
    longer = QUICK.run(replace(graph, ops=replace(graph.ops, duration=duration)))
    assert longer.claims.period == QUICK.run(graph).claims.period + 3 * SLOT
    takes, frees = graph.takes.copy(), graph.frees.copy()
    takes[_row(graph, (OpKind.F, 0, 1, 0))] = frees[_row(graph, (OpKind.W, 0, 1, 0))] = 3 * SLOT
    larger = replace(graph, takes=takes, frees=frees)
    alone = QUICK.run(larger)
    times = {(op.kind, *op[1:4]): (start, end) for op, start, end in alone.rows()}
    entered, left = times[OpKind.F, 0, 1, 0][0], times[OpKind.W, 0, 1, 0][1]
    for other in (0, 2):
        assert times[OpKind.F, 0, other, 0][0] >= left or times[OpKind.W, 0, other, 0][1] <= entered
    again = parse_graph(print_graph(larger))
    assert again.takes.tolist() == takes.tolist() and again.frees.tolist() == frees.tolist()


@pytest.mark.parametrize("chunk_stages", [(0, 1, 1, 0), (0, 1, 0, 1), (0, 0, 1, 1), (1, 0)])
@pytest.mark.parametrize("failed", [(), failure_set([(1, 0)])])
@pytest.mark.parametrize("capacity", [None, 2, 3])
def test_two_chunks_on_a_worker(
    chunk_stages: tuple[int, ...], failed: FailureSet, capacity: int | None
) -> None:
    job = chunked_job(chunk_stages, 2, 4, capacity, transfer=1)
    schedule = _planned(job, failed)
    assert broken_rules(schedule) == []
    held = [{c for c, s in enumerate(chunk_stages) if s == stage} for stage in range(job.stages)]
    for worker, rows in schedule.worker_starts():
        assert set(schedule.ops.chunk[rows].tolist()) == held[worker.stage]


@settings(max_examples=60, deadline=None)
@given(chunked_jobs())
def test_chunks_anywhere_give_valid_schedules(job: JobSpec) -> None:
    schedule = _planned(job, ())
    assert broken_rules(schedule) == []
    text = print_schedule(schedule)
    assert print_schedule(parse_schedule(text)) == text


def _planned(job: JobSpec, failed: FailureSet) -> Schedule:
    assert not list(job.verify())
    passes = GRAPH_PASSES >> QUICK >> CanonicalizeSchedule()
    return passes.run(Target(job, failed))
