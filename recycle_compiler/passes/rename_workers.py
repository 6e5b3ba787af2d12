"""From the plan for a normal form to the workers that have really failed, or are really slow.

    planned for failed 2:1    failed 0:1    -->    what 0:1 has in the plan, 2:1 does

Names move inside their stages. Whole pipelines are renamed first, so that most work stays at home.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from recycle_compiler.ir.failure import FailureSet, Worker, failed_per_stage
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import Column
from recycle_compiler.ir.streams import Streams
from recycle_compiler.passes.pipeline import Pass
from recycle_compiler.scheduling.slow_workers import SlowWorkers

Roles = Mapping[Worker, int]
"""Of the workers that are not like all others, a number for those that are interchangeable."""
_GONE = -1


@dataclass(frozen=True, slots=True)
class RenameWorkers(Pass[Streams, Streams]):
    """The same plan with workers renamed inside their stages, so that exactly `failed` are missing."""

    name = "rename-workers"
    failed: FailureSet = ()
    """As many of each stage as the plan is for."""
    planned_slow: SlowWorkers = ()
    """By their names in the plan."""
    slow: SlowWorkers = ()
    """The same, in the same order, by the names of those that are really slow."""

    def run(self, streams: Streams) -> Streams:
        job = streams.job
        if failed_per_stage(self.failed, job.stages) != failed_per_stage(streams.failed, job.stages):
            raise ValueError("the plan is for other counts of failures per stage")
        if self.failed == streams.failed and self.planned_slow == self.slow:
            return streams
        planned, actual = (
            {**{one.worker: 1 + number for number, one in enumerate(some)}, **dict.fromkeys(gone, _GONE)}
            for some, gone in ((self.planned_slow, streams.failed), (self.slow, self.failed))
        )
        pipeline_names, worker_names = _names(planned, actual, job)
        numbers = (worker_names + job.pipelines * np.arange(job.stages)[:, None]).reshape(-1)
        neighbour = np.where(streams.neighbour >= 0, numbers[streams.neighbour], streams.neighbour)
        pipeline = np.where(streams.pipeline >= 0, pipeline_names[streams.pipeline], streams.pipeline)
        renamed = [Worker(int(worker_names[w.stage, w.pipeline]), w.stage) for w in streams.workers]
        order = sorted(range(len(renamed)), key=lambda index: (renamed[index].stage, renamed[index].pipeline))
        limits: list[int] = streams.offsets.tolist()
        rows = np.concatenate([np.arange(limits[index], limits[index + 1]) for index in order])
        lengths = np.diff(streams.offsets)[order]
        return replace(
            streams,
            failed=self.failed,
            workers=tuple(renamed[index] for index in order),
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            opcode=streams.opcode[rows],
            chunk=streams.chunk[rows],
            pipeline=pipeline[rows],
            microbatch=streams.microbatch[rows],
            buffer=streams.buffer[rows],
            inbox=streams.inbox[rows],
            neighbour=neighbour[rows],
        )


def normal_slow(slow: SlowWorkers, failed: FailureSet, pipelines: int) -> SlowWorkers:
    """The same slow workers under the names that they have in the normal form, in the same order.

    They stand next to the failed ones of their stage, the slowest first: they have half failed.
    """
    names: dict[Worker, Worker] = {}
    for one in sorted(slow, key=lambda one: (-one.factor, -one.worker.pipeline)):
        stage = one.worker.stage
        before = sum(worker.stage == stage for worker in (*failed, *names))
        names[one.worker] = Worker(pipelines - 1 - before, stage)
    return tuple(one._replace(worker=names[one.worker]) for one in slow)


def names_of_roles(planned: FailureSet, actual: FailureSet, job: JobSpec) -> dict[Worker, Worker]:
    """Of every worker of the grid, what `rename-workers` found it called in the plan."""
    _, names = _names(dict.fromkeys(planned, _GONE), dict.fromkeys(actual, _GONE), job)
    grid = ((pipeline, stage) for pipeline in range(job.pipelines) for stage in range(job.stages))
    return {Worker(int(names[stage, pipeline]), stage): Worker(pipeline, stage) for pipeline, stage in grid}


def _names(planned: Roles, actual: Roles, job: JobSpec) -> tuple[Column, Column]:
    """New names of pipelines, and names[stage, pipeline] of workers.

    Where groups share the micro-batches, each keeps its own: pipelines keep their names.
    """
    pipeline_names = _matching(planned, actual, job.pipelines)
    if job.groups:
        pipeline_names = np.arange(job.pipelines, dtype=np.int64)
    return pipeline_names, _worker_names(planned, actual, job.stages, pipeline_names)


def _matching(planned: Roles, actual: Roles, pipelines: int) -> Column:
    """Rename whole pipelines so that most failed workers fall into place and most work stays at home.

    Pipelines with most failures choose first, each the one that agrees with it on most stages.
    """
    gone: list[set[int]] = [{w.stage for w in planned if w.pipeline == p} for p in range(pipelines)]
    wanted: list[set[int]] = [{w.stage for w in actual if w.pipeline == p} for p in range(pipelines)]
    free = list(range(pipelines))
    names = np.empty(pipelines, dtype=np.int64)
    for pipeline in sorted(range(pipelines), key=lambda p: (-len(gone[p]), p)):
        best = min(free, key=lambda p: (len(gone[pipeline] ^ wanted[p]), abs(p - pipeline), p))
        names[pipeline] = best
        free.remove(best)
    return names


def _worker_names(planned: Roles, actual: Roles, stages: int, pipeline_names: Column) -> Column:
    """names[stage, pipeline]: follow the pipeline's new name where that keeps roles apart."""
    pipelines = len(pipeline_names)
    names = np.tile(pipeline_names, (stages, 1))
    for stage in range(stages):
        role = [planned.get(Worker(p, stage), 0) for p in range(pipelines)]
        then = [actual.get(Worker(int(names[stage, p]), stage), 0) for p in range(pipelines)]
        wrong = [p for p in range(pipelines) if role[p] != then[p]]
        spare: dict[int, list[int]] = {}
        for p in wrong:
            spare.setdefault(then[p], []).append(int(names[stage, p]))
        for p in wrong:
            names[stage, p] = spare[role[p]].pop(0)
    return names
