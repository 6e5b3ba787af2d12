"""Ops, the order between them and the memory they take, in columns. Never changed; passes build a new one.

The scheduler knows nothing but this: a pass that adds an edge, moves an op to another worker or changes a
duration changes the schedule.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.failure import FailureSet, worker_number
from recycle_compiler.ir.hops import hop_times
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import SERVICE, UNSET, Column, OpKind, OpTable
from recycle_compiler.ir.target import Target


class Edges(NamedTuple):
    """Edge i says: op `after[i]` starts no earlier than `lag[i]` ticks after the end of op `before[i]`."""

    before: Column
    after: Column
    lag: Column


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Columns of edges are those of `Edges`; `takes` and `frees` have one value per op."""

    job: JobSpec
    failed: FailureSet
    ops: OpTable
    before: Column
    after: Column
    lag: Column
    takes: Column
    """Memory that an op takes on its worker as it starts."""
    frees: Column
    """Memory that it gives back as it ends."""

    @property
    def target(self) -> Target:
        return Target(self.job, self.failed)

    def verify(self) -> Iterator[str]:
        """Yield every broken invariant; a good graph yields nothing."""
        count = len(self.ops)
        if not len(self.before) == len(self.after) == len(self.lag):
            yield "edge columns differ in length"
            return
        if not len(self.takes) == len(self.frees) == count:
            yield "memory columns differ in length from the ops"
            return
        ends = np.concatenate([self.before, self.after])
        if len(ends) and (ends.min() < 0 or ends.max() >= count):
            yield "an edge names an op that does not exist"
            return
        if len(self.lag) and self.lag.min() < 0:
            yield "an edge has a negative lag"
        if not _goes_forward(self):
            left = _left_in_cycles(count, self.before, self.after)
            if left.any():
                yield f"{left.sum()} ops are in or after a cycle: {_a_cycle(self, left)}"
        yield from _wrong_microbatch_ops(self)
        yield from _wrong_workers(self)


def memory_of(job: JobSpec, ops: OpTable) -> tuple[Column, Column]:
    """Memory that ops take and free by the job: F takes the activation, the others give it back in parts.

    A worker that serves holds for its peers' micro-batches what it would hold for its own.
    """
    takes, frees = np.zeros(len(ops), dtype=np.int64), np.zeros(len(ops), dtype=np.int64)
    whole, kept = (np.array(amounts, dtype=np.int64) for amounts in (job.activation, job.kept_for_weight))
    for kind, column, amount in (
        (OpKind.F, takes, whole),
        (OpKind.B, frees, whole),
        (OpKind.I, frees, whole - kept),
        (OpKind.W, frees, kept),
    ):
        chosen = (ops.kind == kind) | (ops.kind == SERVICE[kind])
        column[chosen] = amount[ops.chunk[chosen]]
    return takes, frees


def data_edges(job: JobSpec, ops: OpTable) -> Edges:
    """Edges between the ops of a micro-batch that hand data to each other, for ops in any order.

    F follows the F of the chunk before, a backward the backward of the next chunk (on the last one its own
    F), and W its I.
    """
    shape = (2, job.pipelines, job.microbatches, job.chunks)
    forward, weight = ops.kind == OpKind.F, ops.kind == OpKind.W
    backward = (ops.kind == OpKind.B) | (ops.kind == OpKind.I)
    place = (ops.pipeline, ops.microbatch, ops.chunk)
    row_of = np.full(shape, UNSET, dtype=np.int64)
    for chain, chosen in enumerate((forward, backward)):
        row_of[(chain, *(column[chosen] for column in place))] = np.flatnonzero(chosen)
    last = ops.chunk == job.chunks - 1
    parts: list[Edges] = []
    for chosen, chain, step in (
        (forward & (ops.chunk > 0), 0, -1),
        (backward & last, 0, 0),
        (backward & ~last, 1, 1),
        (weight, 1, 0),
    ):
        pipeline, microbatch, chunk = (column[chosen] for column in place)
        before = row_of[chain, pipeline, microbatch, chunk + step]
        unit = pipeline * job.microbatches + microbatch
        lag = hop_times(job, unit, chunk + min(step, 0)) if step else np.zeros(len(before), dtype=np.int64)
        parts.append(Edges(before, np.flatnonzero(chosen), lag))
    return Edges(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _goes_forward(graph: Graph) -> bool:
    """True if every edge goes with the flow of training, which has no cycles; quick, and mostly true."""
    kind, chunks = graph.ops.kind, graph.job.chunks
    last = 2 * chunks
    # F down the chunks, B or I back up, then W, S, R, O, G; services as what they serve.
    work = [0, last - 1, last - 1, last]
    rank = np.array([*work, last + 1, last + 2, last + 3, last + 4, *work])[kind]
    rank = rank + np.array([1, -1, -1, 0, 0, 0, 0, 0, 1, -1, -1, 0])[kind] * graph.ops.chunk
    return bool((rank[graph.before] < rank[graph.after]).all())


def _left_in_cycles(count: int, before: Column, after: Column) -> NDArray[np.bool_]:
    """Ops that remain when ops without a predecessor are removed, again and again."""
    left = np.ones(count, dtype=bool)
    while True:
        blocked = np.zeros(count, dtype=bool)
        blocked[after[left[before]]] = True
        fresh = left & ~blocked
        if not fresh.any():
            return left
        left &= ~fresh
        keep = left[before]
        before, after = before[keep], after[keep]


def _a_cycle(graph: Graph, left: NDArray[np.bool_]) -> str:
    """One cycle among these ops, op by op, for whoever wrote the pass that made it."""
    # Only a broken graph has one, and loading the library takes longer than verifying a good one.
    import networkx as nx  # pyright: ignore[reportMissingTypeStubs]

    between = left[graph.before] & left[graph.after]
    edges = zip(graph.before[between].tolist(), graph.after[between].tolist(), strict=True)
    networkx = cast(Any, nx)
    found: list[tuple[int, int]] = networkx.find_cycle(networkx.DiGraph(edges))
    ops = graph.ops
    names = [
        f"{OpKind(ops.kind[op]).name}{ops.pipeline[op]}.{ops.microbatch[op]} of chunk {ops.chunk[op]}"
        for op in [found[0][0], *(after for _, after in found)]
    ]
    return " -> ".join(names)


def _wrong_microbatch_ops(graph: Graph) -> Iterator[str]:
    """Each micro-batch passes each chunk with one F and either one B or one I and one W."""
    job, ops = graph.job, graph.ops
    shape = (job.pipelines, job.microbatches, job.chunks)
    counts: dict[OpKind, Column] = {}
    for kind in (OpKind.F, OpKind.B, OpKind.I, OpKind.W):
        chosen = ops.kind == kind
        place = (ops.pipeline[chosen], ops.microbatch[chosen], ops.chunk[chosen])
        if any((part < 0).any() or (part >= size).any() for part, size in zip(place, shape, strict=True)):
            yield f"an {kind.name} lies outside the job"
            return
        flat = np.ravel_multi_index(place, shape)
        counts[kind] = np.bincount(flat, minlength=int(np.prod(shape)))
    if (counts[OpKind.F] != 1).any():
        yield "a micro-batch does not pass each chunk with exactly one F"
    if (counts[OpKind.B] + counts[OpKind.I] != 1).any() or (counts[OpKind.I] != counts[OpKind.W]).any():
        yield "a micro-batch does not pass each chunk with exactly one B, or one I and one W"


def _wrong_workers(graph: Graph) -> Iterator[str]:
    """Work that has been routed lies on live workers."""
    job = graph.job
    worker = graph.ops.worker[graph.ops.worker != UNSET]
    if len(worker) and (worker.min() < 0 or worker.max() >= job.workers):
        yield "an op is placed outside the grid"
        return
    alive = np.ones(job.workers, dtype=bool)
    alive[[worker_number(one, job.pipelines) for one in graph.failed]] = False
    if not alive[worker].all():
        yield "an op is placed on a failed worker"
