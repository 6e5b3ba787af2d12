"""Say which live worker runs each micro-batch on each chunk.

    healthy pipeline    stays at home
    failed worker       its micro-batches go to the live peers of that stage in turn

Homes carry equal loads, so dealing out those of failed workers evenly balances every stage: no worker has
more than ceil(all / live). Neighbouring micro-batches go to different peers, which spreads the extra work
over the iteration, and the turn starts at the same peer on every stage, so that stages with equal failures
form whole pipelines again.

Except in small jobs, such a stage deals out all its micro-batches in turn, not only those of failed workers:

    stage of 4, one failed  0 1 2 0   1 2 0 1   2 0 1 2 ...

Then its workers run in step, and what one round of them sends on arrives as a round. With those of failed
workers in between, they drift apart and the last of them ends late, which costs half a percent of the period
in large jobs and several percent where micro-batches are few.

Where a worker is slow, the shares of its stage are as many as each of its workers has time for:

    stage of 3, the last 3 times slower    8 8 2 of 18

What it cannot take is dealt out like that of a failed worker, and what it keeps of its own lies at equal
distances, so both spread over the iteration. In a large job such a stage too deals out all its micro-batches,
and whose share is smaller has its turn less often.

Where peers share experts, micro-batches are in rounds of all workers of a stage, and whoever has none in a
round serves: see `scheduling/rounds/routes.py`.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.groups import groups_in_plan
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.pipeline import Pass
from recycle_compiler.scheduling.budget import Sizes
from recycle_compiler.scheduling.rounds.routes import fewest_rounds, in_rounds
from recycle_compiler.scheduling.slow_workers import SlowWorkers, stage_shares

_FINE = 1 << 32
"""Of how many parts an iteration is, where turns are placed."""


@dataclass(frozen=True, slots=True)
class RouteMicrobatches(Pass[Graph, Graph]):
    """Fill in the worker of every F, B, I and W."""

    name = "route-microbatches"
    slow: SlowWorkers = ()
    """Workers that should have fewer micro-batches than their peers."""

    def run(self, graph: Graph) -> Graph:
        if graph.job.slots:
            return in_rounds(graph, fewest_rounds(graph))
        ops = graph.ops
        work = ops.kind <= OpKind.W
        table = _group_routes(graph) if graph.job.groups else routes(graph.job, graph.target.hosts, self.slow)
        worker = ops.worker.copy()
        worker[work] = table[ops.pipeline[work], ops.microbatch[work], ops.chunk[work]]
        return replace(graph, ops=replace(ops, worker=worker))


def routes(job: JobSpec, hosts: tuple[tuple[int, ...], ...], slow: SlowWorkers = ()) -> NDArray[np.int64]:
    """table[pipeline, micro-batch, chunk]: the number of the worker that runs it.

    Homes are the workers of a micro-batch's own pipeline; all workers of a chunk stand on one stage.
    """
    table = np.empty((job.pipelines, job.microbatches, job.chunks), dtype=np.int64)
    is_large = table.size * (3 if job.techniques.decouple else 2) > Sizes.COMPILED
    uneven = {one.worker.stage for one in slow}
    for chunk, workers in enumerate(hosts):
        stage = job.chunk_stages[chunk]
        alive = tuple(worker - stage * job.pipelines for worker in workers)
        if stage in uneven:
            share = stage_shares(job.pipelines * job.microbatches, alive, stage, slow)
            table[:, :, chunk] = (_all_in_turn if is_large else _rest_in_turn)(job, alive, share)
        elif is_large:
            number = np.arange(job.microbatches) * job.pipelines + np.arange(job.pipelines)[:, None]
            table[:, :, chunk] = np.array(alive)[number % len(alive)]
        else:
            failed = [pipeline for pipeline in range(job.pipelines) if pipeline not in alive]
            table[:, :, chunk] = np.arange(job.pipelines)[:, None]
            turn = np.arange(job.microbatches * len(failed)).reshape(job.microbatches, len(failed))
            table[failed, :, chunk] = np.array(alive)[turn.T % len(alive)]
        table[:, :, chunk] += stage * job.pipelines
    return table


def _group_routes(graph: Graph) -> NDArray[np.int64]:
    """The same for groups: each as if it were alone, and a worker has a micro-batch on all its chunks."""
    job = graph.job
    table = np.empty((job.pipelines * job.microbatches, job.chunks), dtype=np.int64)
    for group in groups_in_plan(job, graph.failed):
        alone = group.job
        own = routes(alone, Target(alone, group.failed).hosts).reshape(-1, alone.stages)
        units = slice(group.first_unit, group.first_unit + len(own))
        for place, (stage, chunks) in enumerate(zip(group.stages, group.held, strict=True)):
            rank = own[:, place] - place * alone.pipelines
            table[units, chunks[0] : chunks[-1] + 1] = (stage * job.pipelines + rank)[:, None]
    return table.reshape(job.pipelines, job.microbatches, job.chunks)


def _all_in_turn(job: JobSpec, alive: tuple[int, ...], share: list[int]) -> NDArray[np.int64]:
    """[pipeline, micro-batch] of one stage: all are dealt out."""
    return np.array(alive)[_turns(share)].reshape(job.microbatches, job.pipelines).T


def _rest_in_turn(job: JobSpec, alive: tuple[int, ...], share: list[int]) -> NDArray[np.int64]:
    """[pipeline, micro-batch] of one stage: what a home has no share for is dealt out."""
    own = np.zeros(job.pipelines, dtype=np.int64)
    own[list(alive)] = np.minimum(share, job.microbatches)
    before = np.arange(job.microbatches + 1) * own[:, None] + job.microbatches // 2
    stays = np.diff(before // job.microbatches, axis=1) > 0
    table = np.where(stays, np.arange(job.pipelines)[:, None], -1)
    microbatch, pipeline = np.nonzero(~stays.T)
    table[pipeline, microbatch] = np.array(alive)[_turns([max(0, one - job.microbatches) for one in share])]
    return table


def _turns(share: list[int]) -> NDArray[np.int64]:
    """Owners in turn: index i comes share[i] times, at equal distances."""
    owner = np.repeat(np.arange(len(share)), share)
    nth = np.concatenate([np.arange(one) for one in share])
    return owner[np.lexsort((owner, (2 * nth + 1) * _FINE // np.array(share)[owner]))]
