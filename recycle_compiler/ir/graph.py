"""Ops and the order between them, in columns. Never changed; passes build a new one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.failure import FailureSet, worker_number
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import UNSET, Column, OpKind, OpTable
from recycle_compiler.ir.target import Target


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Edge i says: op `after[i]` starts no earlier than `lag[i]` ticks after the end of op `before[i]`."""

    job: JobSpec
    failed: FailureSet
    ops: OpTable
    before: Column
    after: Column
    lag: Column

    @property
    def target(self) -> Target:
        return Target(self.job, self.failed)

    def verify(self) -> Iterator[str]:
        """Yield every broken invariant; a good graph yields nothing."""
        count = len(self.ops)
        if not len(self.before) == len(self.after) == len(self.lag):
            yield "edge columns differ in length"
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


def _goes_forward(graph: Graph) -> bool:
    """Whether every edge goes with the flow of training, which has no cycles; quick, and mostly true."""
    kind, chunks = graph.ops.kind, graph.job.chunks
    last = 2 * chunks
    # F down the chunks, B or I back up, then W, S, R, O.
    rank = np.array([0, last - 1, last - 1, last, last + 1, last + 2, last + 3])[kind]
    rank = rank + np.array([1, -1, -1, 0, 0, 0, 0])[kind] * graph.ops.chunk
    return bool((rank[graph.before] < rank[graph.after]).all())


def _left_in_cycles(count: int, before: Column, after: Column) -> NDArray[np.bool_]:
    """Which ops remain when ops without a predecessor are taken away, again and again."""
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
