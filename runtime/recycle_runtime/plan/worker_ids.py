"""How workers are named: as a cell of the grid, and as a number. Standard library only."""

Worker = tuple[int, int]
"""(pipeline, stage): a cell of the job's grid."""


def worker_number(worker: Worker, pipelines: int) -> int:
    """Counted along the pipelines of stage 0, then those of stage 1, and so on."""
    pipeline, stage = worker
    return stage * pipelines + pipeline


def numbered_worker(number: int, pipelines: int) -> Worker:
    """The worker of a number; the inverse of `worker_number`."""
    stage, pipeline = divmod(number, pipelines)
    return pipeline, stage


def worker_text(worker: Worker) -> str:
    """`0:2`, as users read and write workers."""
    return f"{worker[0]}:{worker[1]}"
