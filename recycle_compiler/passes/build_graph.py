"""State what must happen before what, for one job in one failure state.

    F(c) -> F(c+1) -> ... -> F(last) -> B(last) -> ... -> B(c)       for every micro-batch
    every B -> S -> R of every chunk on every live worker -> its O   one barrier for all
    O -> G                                                           where the optimizer's state is sharded

This is plain synchronous training: nothing is routed, split or staggered yet.
"""

from dataclasses import dataclass

import numpy as np

from recycle_compiler.ir.failure import failed_per_stage
from recycle_compiler.ir.graph import Graph, memory_of
from recycle_compiler.ir.hops import hop_times
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import UNSET, Column, Op, OpKind, OpTable, concatenate, op_table
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.pipeline import Pass


@dataclass(frozen=True, slots=True)
class BuildGraph(Pass[Target, Graph]):
    """Target -> Graph with coupled backwards and one barrier."""

    name = "build-graph"

    def run(self, target: Target) -> Graph:
        job = target.job.left_by(failed_per_stage(target.failed, target.job.stages))
        size = job.pipelines * job.microbatches * job.chunks
        backward = tuple(i + w for i, w in zip(job.backward_input, job.backward_weight, strict=True))
        barrier = [Op(OpKind.S, UNSET, UNSET, UNSET, UNSET, 0)]
        held = [(chunk, worker) for chunk, workers in enumerate(target.live) for worker in workers]
        reductions = [Op(OpKind.R, UNSET, UNSET, c, w, job.reduce[c]) for c, w in held]
        optimizers = [Op(OpKind.O, UNSET, UNSET, c, w, job.optimizer[c]) for c, w in held]
        gathers = [Op(OpKind.G, UNSET, UNSET, c, w, job.gather[c]) for c, w in held if job.owners]
        ops = concatenate(
            [
                _microbatch_ops(job, OpKind.F, job.forward),
                _microbatch_ops(job, OpKind.B, backward),
                op_table(barrier + reductions + optimizers + gathers),
            ]
        )
        sync = 2 * size
        reduction = sync + 1 + np.arange(len(held))
        chains = _chains(job, size)
        joins = (np.arange(size, 2 * size), np.full(size, sync))
        after_sync = (np.full(len(held), sync), reduction)
        steps = (reduction, reduction + len(held))
        sharing = (steps[1], steps[1] + len(held)) if job.owners else (reduction[:0], reduction[:0])
        free = [
            (before, after, np.zeros(len(before), np.int64))
            for before, after in (joins, after_sync, steps, sharing)
        ]
        before, after, lag = (np.concatenate(parts) for parts in zip(*chains, *free, strict=True))
        return Graph(job, target.failed, ops, before, after, lag, *memory_of(job, ops))


def _microbatch_ops(job: JobSpec, kind: OpKind, durations: tuple[int, ...]) -> OpTable:
    """One op per pipeline, micro-batch and chunk, in that order."""
    shape = (job.pipelines, job.microbatches, job.chunks)
    pipeline, microbatch, chunk = (index.ravel() for index in np.indices(shape))
    unset = np.full(len(chunk), UNSET)
    return OpTable(
        np.full(len(chunk), int(kind)), pipeline, microbatch, chunk, unset, np.array(durations)[chunk]
    )


def _chains(job: JobSpec, size: int) -> list[tuple[Column, Column, Column]]:
    """Forward down the chunks, over to backward on the last, and back up."""
    forward = np.arange(size).reshape(-1, job.chunks)
    backward = forward + size
    unit, chunk = (index.ravel() for index in np.indices((len(forward), job.chunks - 1)))
    transfer = hop_times(job, unit, chunk)
    return [
        (forward[:, :-1].ravel(), forward[:, 1:].ravel(), transfer),
        (forward[:, -1], backward[:, -1], np.zeros(len(forward), np.int64)),
        (backward[:, 1:].ravel(), backward[:, :-1].ravel(), transfer),
    ]
