"""Rounds put into a graph: who has which micro-batch, and who serves where none is left for him.

    4 pipelines, one worker failed      0: 0 3 6 ...     micro-batches by turn:
                                        1: 1 4 7         round 0 has 0 1 2, round 1 has 3 4 5
                                        2: 2 5 8

All live workers of a chunk are in every round of it. Micro-batches go into rounds in order of turn: the first
one of every pipeline, then the second ones ... Each stays at home where its worker lives and has none in that
round yet.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from recycle_compiler.ir.graph import Edges, Graph, memory_of
from recycle_compiler.ir.ops import (
    SERVICE,
    SERVICES,
    UNSET,
    Column,
    Op,
    OpKind,
    concatenate,
    op_duration,
    op_table,
)
from recycle_compiler.ir.rounds import turn_of

Sizes = tuple[int, ...]
"""Sizes of a chunk's rounds in micro-batches: at most one for each of its workers."""


Shape = tuple[Sizes, ...]
"""Of every chunk."""


def in_rounds(graph: Graph, shape: Shape) -> Graph:
    """The graph with rounds of these sizes on each chunk."""
    graph = _without_services(graph)
    job, ops = graph.job, graph.ops
    hosts = graph.target.live
    worker = ops.worker.copy()
    work = ops.kind <= OpKind.W
    turn = turn_of(job, ops)
    services: list[Op] = []
    for chunk, sizes in enumerate(shape):
        assert sum(sizes) == job.pipelines * job.microbatches, f"rounds of {sizes} have not all micro-batches"
        host, idle = _dealt(sizes, job.pipelines, hosts[chunk])
        rows = work & (ops.chunk == chunk)
        worker[rows] = host[turn[rows]]
        kinds = [SERVICE[OpKind(kind)] for kind in np.unique(ops.kind[rows]).tolist()]
        services += [
            Op(kind, UNSET, number, chunk, who, op_duration(job, kind, chunk))
            for number, who in idle
            for kind in kinds
        ]
    routed = replace(graph, ops=replace(ops, worker=worker))
    return _with_services(routed, services) if services else routed


def fewest_rounds(graph: Graph) -> Shape:
    """As many micro-batches in a round as a chunk has live workers; what is left is in the last one."""
    units = graph.job.pipelines * graph.job.microbatches
    return tuple(in_sizes(units, len(workers)) for workers in graph.target.live)


def in_sizes(units: int, size: int) -> Sizes:
    """Rounds of one size for so many micro-batches, with what is left in the last."""
    whole, rest = divmod(units, size)
    return (size,) * whole + (rest,) * (rest > 0)


def _dealt(sizes: Sizes, pipelines: int, hosts: Sequence[int]) -> tuple[Column, list[tuple[int, int]]]:
    """Of each turn its worker; and in which round who serves."""
    assert 1 <= min(sizes) <= max(sizes) <= len(hosts), f"rounds of {sizes} for {len(hosts)} workers"
    host = np.empty(sum(sizes), dtype=np.int64)
    home_of = {worker % pipelines: worker for worker in hosts}
    idle: list[tuple[int, int]] = []
    end = 0
    for number, size in enumerate(sizes):
        turns = range(end, end + size)
        end += size
        homes = {turn: home_of[turn % pipelines] for turn in turns if turn % pipelines in home_of}
        taken = set(homes.values())
        # Those that take what has no home change from round to round.
        shift = number % len(hosts)
        free = [worker for worker in (*hosts[shift:], *hosts[:shift]) if worker not in taken]
        for turn in turns:
            host[turn] = homes[turn] if turn in homes else free.pop(0)
        idle += [(number, worker) for worker in sorted(free)]
    return host, idle


def _without_services(graph: Graph) -> Graph:
    keep = ~np.isin(graph.ops.kind, SERVICES)
    if keep.all():
        return graph
    place = np.cumsum(keep) - 1
    edges = keep[graph.before] & keep[graph.after]
    return replace(
        graph,
        ops=graph.ops.take(keep),
        before=place[graph.before[edges]],
        after=place[graph.after[edges]],
        lag=graph.lag[edges],
        takes=graph.takes[keep],
        frees=graph.frees[keep],
    )


def _with_services(graph: Graph, services: list[Op]) -> Graph:
    """Each goes back after it went forward, and chunks synchronize when that is done."""
    ops = graph.ops
    table = op_table(services)
    first = len(ops)
    row_of = {(op.kind, op.microbatch, op.chunk, op.worker): first + row for row, op in enumerate(services)}
    syncs = np.flatnonzero(ops.kind == OpKind.S)
    sync_of = {int(ops.chunk[row]): row for row in syncs.tolist()}
    edges: list[tuple[int, int]] = []
    for (kind, number, chunk, worker), row in row_of.items():
        after = {
            OpKind.SF: row_of.get((OpKind.SB, number, chunk, worker)),
            OpKind.SI: row_of.get((OpKind.SW, number, chunk, worker)),
        }.get(kind, sync_of.get(chunk, sync_of.get(UNSET)))
        if after is None:
            # It goes back in two halves.
            after = row_of[OpKind.SI, number, chunk, worker]
        edges.append((row, after))
    columns = np.array(edges, dtype=np.int64).reshape(-1, 2)
    more = Edges(columns[:, 0], columns[:, 1], np.zeros(len(columns), dtype=np.int64))
    takes, frees = memory_of(graph.job, table)
    return replace(
        graph,
        ops=concatenate([ops, table]),
        before=np.concatenate([graph.before, more.before]),
        after=np.concatenate([graph.after, more.after]),
        lag=np.concatenate([graph.lag, more.lag]),
        takes=np.concatenate([graph.takes, takes]),
        frees=np.concatenate([graph.frees, frees]),
    )
