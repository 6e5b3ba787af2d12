"""State what must happen before what, for one job in one failure state.

    F(s) -> F(s+1) -> ... -> F(last) -> B(last) -> ... -> B(s)       for every micro-batch
    every B -> S -> R of every live worker -> its O                  one barrier for all

This is plain synchronous training: nothing is routed, split or staggered yet.
"""

from dataclasses import dataclass

import numpy as np

from recycle_compiler.ir.failure import live_pipelines
from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import UNSET, Column, Op, OpKind, OpTable, concatenate, op_table
from recycle_compiler.ir.target import Target


@dataclass(frozen=True, slots=True)
class BuildGraph:
    """Target -> Graph with coupled backwards and one barrier."""

    name: str = "build-graph"

    def run(self, target: Target) -> Graph:
        job = target.job
        size = job.pipelines * job.microbatches * job.stages
        backward = tuple(i + w for i, w in zip(job.backward_input, job.backward_weight, strict=True))
        barrier = [Op(OpKind.S, UNSET, UNSET, UNSET, UNSET, 0)]
        workers = [
            (pipeline, stage)
            for stage in range(job.stages)
            for pipeline in live_pipelines(target.failed, stage, job.pipelines)
        ]
        reductions = [Op(OpKind.R, UNSET, UNSET, s, p, job.reduce[s]) for p, s in workers]
        optimizers = [Op(OpKind.O, UNSET, UNSET, s, p, job.optimizer[s]) for p, s in workers]
        ops = concatenate(
            [
                _microbatch_ops(job, OpKind.F, job.forward),
                _microbatch_ops(job, OpKind.B, backward),
                op_table(barrier + reductions + optimizers),
            ]
        )
        sync = 2 * size
        reduction = sync + 1 + np.arange(len(workers))
        chains = _chains(job, size)
        joins = (np.arange(size, 2 * size), np.full(size, sync))
        after_sync = (np.full(len(workers), sync), reduction)
        steps = (reduction, reduction + len(workers))
        free = [
            (before, after, np.zeros(len(before), np.int64)) for before, after in (joins, after_sync, steps)
        ]
        before, after, lag = (np.concatenate(parts) for parts in zip(*chains, *free, strict=True))
        return Graph(job, target.failed, ops, before, after, lag)


def _microbatch_ops(job: JobSpec, kind: OpKind, durations: tuple[int, ...]) -> OpTable:
    """One op per pipeline, micro-batch and stage, in that order."""
    shape = (job.pipelines, job.microbatches, job.stages)
    pipeline, microbatch, stage = (index.ravel() for index in np.indices(shape))
    unset = np.full(len(stage), UNSET)
    return OpTable(
        np.full(len(stage), int(kind)), pipeline, microbatch, stage, unset, np.array(durations)[stage]
    )


def _chains(job: JobSpec, size: int) -> list[tuple[Column, Column, Column]]:
    """Forward down the stages, over to backward on the last, and back up."""
    forward = np.arange(size).reshape(-1, job.stages)
    backward = forward + size
    transfer = np.tile(np.array(job.transfer, dtype=np.int64), len(forward))
    return [
        (forward[:, :-1].ravel(), forward[:, 1:].ravel(), transfer),
        (forward[:, -1], backward[:, -1], np.zeros(len(forward), np.int64)),
        (backward[:, 1:].ravel(), backward[:, :-1].ravel(), transfer),
    ]
