"""Names of workers: as a cell of the grid, and as a number. Standard library only."""

from collections.abc import Iterable

Worker = tuple[int, int]
"""(pipeline, stage): a cell of the job's grid."""


def cell_number(worker: Worker, pipelines: int) -> int:
    """Counted along the pipelines of stage 0, then those of stage 1, and so on."""
    pipeline, stage = worker
    return stage * pipelines + pipeline


def numbered_worker(number: int, pipelines: int) -> Worker:
    """The worker of a number; the inverse of `cell_number`."""
    stage, pipeline = divmod(number, pipelines)
    return pipeline, stage


def grid_text(workers: Iterable[Worker]) -> str:
    """Many workers in few words: the pipelines of stage 0, of stage 1, ..., such as `0-63;0-12,14-63`."""
    stages: list[list[list[int]]] = []
    for stage, pipeline in sorted((stage, pipeline) for pipeline, stage in workers):
        stages += [[] for _ in range(len(stages), stage + 1)]
        runs = stages[stage]
        if runs and runs[-1][1] + 1 == pipeline:
            runs[-1][1] = pipeline
        else:
            runs.append([pipeline, pipeline])
    return ";".join(",".join(f"{first}-{last}" for first, last in runs) for runs in stages)


def workers_in(text: str) -> tuple[Worker, ...]:
    """By stage, then by pipeline; the inverse of `grid_text`."""
    found: list[Worker] = []
    for stage, runs in enumerate(text.split(";")):
        for run in runs.split(",") if runs else ():
            first, _, last = run.partition("-")
            found += [(pipeline, stage) for pipeline in range(int(first), int(last) + 1)]
    return tuple(found)


def worker_text(worker: Worker) -> str:
    """`0:2`, as users read and write workers."""
    return f"{worker[0]}:{worker[1]}"
