"""Say which live worker runs each micro-batch on each stage.

    healthy pipeline    stays at home
    failed worker       its micro-batches go to the live peers of that stage in turn

Homes carry equal loads, so dealing out the lost micro-batches evenly balances every stage: no worker has
more than ceil(all / live). Neighbouring micro-batches go to different peers, which spreads the extra work
over the iteration, and the turn starts at the same peer on every stage, so that stages with equal losses
form whole pipelines again.

In a large job a stage with losses deals out all its micro-batches in turn, not only the lost ones:

    stage of 4, one lost    0 1 2 0   1 2 0 1   2 0 1 2 ...

Then its workers run in step, and what one round of them sends on arrives as a round. With the lost ones in
between, workers drift apart and the last of them ends late, which costs about half a percent of the period.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import OpKind, OpTable

_LARGE = 20_000
"""Ops from which on stages with losses deal out all their micro-batches."""


@dataclass(frozen=True, slots=True)
class RouteMicrobatches:
    """Fill in the worker of every F, B, I and W."""

    name: str = "route-microbatches"

    def run(self, graph: Graph) -> Graph:
        ops = graph.ops
        work = ops.kind <= OpKind.W
        table = routes(graph.job, graph.target.hosts)
        worker = ops.worker.copy()
        worker[work] = table[ops.pipeline[work], ops.microbatch[work], ops.stage[work]]
        routed = OpTable(ops.kind, ops.pipeline, ops.microbatch, ops.stage, worker, ops.duration)
        return Graph(graph.job, graph.failed, routed, graph.before, graph.after, graph.lag)


def routes(job: JobSpec, hosts: tuple[tuple[int, ...], ...]) -> NDArray[np.int64]:
    """table[pipeline, micro-batch, stage]: the pipeline whose worker runs it."""
    table = np.empty((job.pipelines, job.microbatches, job.stages), dtype=np.int64)
    if table.size * (3 if job.techniques.decouple else 2) > _LARGE:
        number = np.arange(job.microbatches) * job.pipelines + np.arange(job.pipelines)[:, None]
        for stage, alive in enumerate(hosts):
            table[:, :, stage] = np.array(alive)[number % len(alive)]
        return table
    for stage, alive in enumerate(hosts):
        lost = [pipeline for pipeline in range(job.pipelines) if pipeline not in alive]
        table[:, :, stage] = np.arange(job.pipelines)[:, None]
        turn = np.arange(job.microbatches * len(lost)).reshape(job.microbatches, len(lost))
        table[lost, :, stage] = np.array(alive)[turn.T % len(alive)]
    return table
