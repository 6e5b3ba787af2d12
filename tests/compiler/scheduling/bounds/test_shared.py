"""Bounds against the best of all orders: workers with several chunks, edges that a pass added, uneven ops.

Every order of every worker is tried, and its period found by a few lines that share nothing with the planner.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.scheduling.bounds import lower_bound
from recycle_compiler.scheduling.problem import problem_of
from tests.support.chunks import chunked_job
from tests.support.jobs import SLOT, routed

Edge = tuple[int, int, int]
_MOST_ORDERS = 30_000


@st.composite
def tiny_graphs(draw: st.DrawFn) -> Graph:
    """Two micro-batches at most on two workers at most, with uneven times and perhaps another edge."""
    order = draw(st.sampled_from([(0, 1, 0), (0, 1, 1), (0, 0), (1, 0), (0, 1)]))
    stagger, decouple = draw(st.booleans()), draw(st.booleans())
    microbatches = 1 if decouple and len(order) > 2 else 2
    capacity = draw(st.sampled_from([None, 2, 3]))
    plain = chunked_job(order, 1, microbatches, capacity, Techniques(True, decouple, stagger))
    graph = routed(_with_times(draw, plain))
    if draw(st.booleans()):
        work = np.flatnonzero(graph.ops.kind <= OpKind.W)
        duration = graph.ops.duration.copy()
        duration[draw(st.sampled_from(work.tolist()))] += SLOT * draw(st.integers(1, 3))
        graph = replace(graph, ops=replace(graph.ops, duration=duration))
    if draw(st.booleans()):
        work = np.flatnonzero(graph.ops.kind <= OpKind.W).tolist()
        before, after = draw(st.sampled_from(work)), draw(st.sampled_from(work))
        more = replace(
            graph,
            before=np.append(graph.before, before),
            after=np.append(graph.after, after),
            lag=np.append(graph.lag, SLOT * draw(st.integers(0, 3))),
        )
        assume(not list(more.verify()))
        graph = more
    return graph


def _with_times(draw: st.DrawFn, job: JobSpec) -> JobSpec:
    def times(least: int, count: int = job.chunks) -> tuple[int, ...]:
        return tuple(SLOT * draw(st.integers(least, 3)) for _ in range(count))

    return replace(
        job,
        forward=times(1),
        backward_input=times(1),
        backward_weight=times(1),
        optimizer=times(0),
        reduce=times(0),
        transfer=times(0, job.chunks - 1),
    )


@settings(max_examples=120, deadline=None)
@given(tiny_graphs())
def test_no_order_beats_the_bound(graph: Graph) -> None:
    found = _shortest(graph)
    assume(found is not None)
    bound = lower_bound(problem_of(graph))
    assert found is not None and bound.period <= found, bound.reason


def test_the_load_of_two_chunks_is_met() -> None:
    """One worker, two chunks: it is never idle, and the bound says so."""
    graph = routed(chunked_job((0, 0), 1, 2))
    bound = lower_bound(problem_of(graph))
    assert (bound.period, bound.reason) == (16 * SLOT, "load of the workers with chunks 0, 1")
    assert _shortest(graph) == bound.period


def test_an_added_edge_raises_the_bound() -> None:
    graph = routed(chunked_job((0, 1), 1, 2))
    names = {(op.kind, op.microbatch, op.chunk): row for row, op in enumerate(graph.ops)}
    before, after = names[OpKind.I, 0, 0], names[OpKind.F, 1, 0]
    changed = replace(
        graph,
        before=np.append(graph.before, before),
        after=np.append(graph.after, after),
        lag=np.append(graph.lag, 5 * SLOT),
    )
    bound = lower_bound(problem_of(changed))
    assert bound.reason == "the longest path through the graph"
    assert lower_bound(problem_of(graph)).period < bound.period == _shortest(changed)


def _shortest(graph: Graph) -> int | None:
    """The least period over all orders within memory; None if they are too many or there is none."""
    ops, job = graph.ops, graph.job
    rows: list[int] = np.flatnonzero(ops.kind <= OpKind.W).tolist()
    edges = [
        (before, after, lag)
        for before, after, lag in zip(
            *(c.tolist() for c in (graph.before, graph.after, graph.lag)), strict=True
        )
        if ops.kind[before] <= OpKind.W and ops.kind[after] <= OpKind.W
    ]
    reach = _reachable(rows, edges)
    workers: list[int] = sorted({int(worker) for worker in ops.worker[rows]})
    orders: list[list[tuple[int, ...]]] = []
    for worker in workers:
        mine = [row for row in rows if ops.worker[row] == worker]
        capacity = job.capacity[worker // job.pipelines]
        orders.append(list(_orders(mine, reach, graph, capacity)))
        if not orders[-1] or len(orders[-1]) > _MOST_ORDERS:
            return None
    if np.prod([len(one) for one in orders]) > _MOST_ORDERS:
        return None
    best: int | None = None
    for chosen in product(*orders):
        found = _period(graph, rows, edges, chosen, workers, best)
        best = best if found is None else found
    return best


def _reachable(rows: list[int], edges: list[Edge]) -> dict[int, set[int]]:
    after: dict[int, set[int]] = {row: set() for row in rows}
    for _ in rows:
        for before, then, _lag in edges:
            after[before] |= {then} | after[then]
    return after


def _orders(
    mine: list[int], reach: dict[int, set[int]], graph: Graph, capacity: int | None
) -> Iterator[tuple[int, ...]]:
    """Every order of one worker's ops that respects what waits for what, within its memory."""

    def extend(done: tuple[int, ...], left: frozenset[int], held: int) -> Iterator[tuple[int, ...]]:
        if not left:
            yield done
        for row in sorted(left):
            holds = held + int(graph.takes[row])
            if any(row in reach[other] for other in left) or (capacity is not None and holds > capacity):
                continue
            yield from extend((*done, row), left - {row}, holds - int(graph.frees[row]))

    yield from extend((), frozenset(mine), 0)


def _period(
    graph: Graph,
    rows: list[int],
    edges: list[Edge],
    orders: tuple[tuple[int, ...], ...],
    workers: list[int],
    best: int | None,
) -> int | None:
    """The least period of these orders; None if they wait for each other or it is not below the best.

    Workers reduce and step after all work of their chunks' window; all of a stage share one, without stagger
    everybody does. Shorter and shorter ones are tried: a longest path with windows that repeat must not grow
    forever.
    """
    duration: list[int] = graph.ops.duration.tolist()
    arcs = [(before, after, duration[before] + lag) for before, after, lag in edges]
    arcs += [(a, b, duration[a]) for order in orders for a, b in pairwise(order)]
    start = _longest(rows, arcs)
    if start is None:
        return None
    finish = [sum(_ends(graph, worker)) for worker in workers]
    if not graph.job.techniques.stagger:
        last = max(start[row] + duration[row] for row in rows)
        period = last - min(start.values()) + max(finish)
        return period if best is None or period < best else None

    def fits(period: int) -> bool:
        closing = [
            (order[-1], order[0], duration[order[-1]] + ends - period)
            for order, ends in zip(orders, finish, strict=True)
        ]
        return _longest(rows, [*arcs, *closing]) is not None

    # One after another everything fits.
    period = sum(duration) + sum(lag for *_, lag in edges) if best is None else best
    assert best is not None or fits(period)
    while period > SLOT and fits(period - SLOT):
        period -= SLOT
    return period if best is None or period < best else None


def _ends(graph: Graph, worker: int) -> list[int]:
    own = (graph.ops.worker == worker) & (graph.ops.kind > OpKind.S)
    return graph.ops.duration[own].tolist()


def _longest(rows: list[int], arcs: list[Edge]) -> dict[int, int] | None:
    """Earliest starts; None if there is a cycle of positive length (Bellman and Ford)."""
    start = dict.fromkeys(rows, 0)
    for _ in range(len(rows) + 1):
        changed = False
        for before, after, length in arcs:
            if start[before] + length > start[after]:
                start[after] = start[before] + length
                changed = True
        if not changed:
            return start
    return None
