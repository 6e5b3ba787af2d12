"""Sets of failed workers, and the normal form under which many such sets are one."""

from collections.abc import Iterable
from typing import NamedTuple


class Worker(NamedTuple):
    """A cell of the grid: one GPU, or the GPUs of one tensor-parallel group."""

    pipeline: int
    stage: int

    def __str__(self) -> str:
        return f"{self.pipeline}:{self.stage}"


def worker_number(worker: Worker, pipelines: int) -> int:
    """The number that columns of ops know a worker by."""
    return worker.stage * pipelines + worker.pipeline


def worker_at(number: int, pipelines: int) -> Worker:
    """Inverse of `worker_number`."""
    stage, pipeline = divmod(number, pipelines)
    return Worker(pipeline, stage)


FailureSet = tuple[Worker, ...]
"""Sorted, without duplicates; made by `failure_set`."""


def failure_set(workers: Iterable[tuple[int, int]]) -> FailureSet:
    """The canonical form of a collection of failed workers."""
    return tuple(sorted({Worker(pipeline, stage) for pipeline, stage in workers}))


def failed_per_stage(failed: FailureSet, stages: int) -> tuple[int, ...]:
    """Number of failed workers of each stage: all that matters, since peers are interchangeable."""
    counts = [0] * stages
    for worker in failed:
        counts[worker.stage] += 1
    return tuple(counts)


def normal_form(per_stage: tuple[int, ...], pipelines: int) -> FailureSet:
    """The representative of all sets with these counts: on each stage the workers of the last pipelines.

    Failures then nest: when every stage has the same number of them, whole pipelines have failed and
    the survivors are whole pipelines too.
    """
    return failure_set(
        (pipelines - 1 - rank, stage) for stage, count in enumerate(per_stage) for rank in range(count)
    )


def live_pipelines(failed: FailureSet, stage: int, pipelines: int) -> tuple[int, ...]:
    """Pipelines whose worker of this stage is alive."""
    gone = {worker.pipeline for worker in failed if worker.stage == stage}
    return tuple(pipeline for pipeline in range(pipelines) if pipeline not in gone)


def hosting_pipelines(
    failed: FailureSet, stages: int, pipelines: int, adaptive: bool
) -> tuple[tuple[int, ...], ...]:
    """For each stage, the pipelines whose worker may run micro-batches.

    Without adaptive pipelining a failure takes its whole pipeline out of work.
    """
    if adaptive:
        return tuple(live_pipelines(failed, stage, pipelines) for stage in range(stages))
    hit = {worker.pipeline for worker in failed}
    whole = tuple(pipeline for pipeline in range(pipelines) if pipeline not in hit)
    return (whole,) * stages
