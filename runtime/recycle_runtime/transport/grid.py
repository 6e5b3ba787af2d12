"""Who is who among the processes of a run. Standard library only."""

from collections.abc import Sequence

from recycle_runtime.plan.assembly import Worker


class Grid:
    """Who is who: the rank of every live worker, each of them `tensor` processes."""

    def __init__(self, workers: Sequence[Worker], tensor: int) -> None:
        self.workers = tuple(workers)
        self.tensor = tensor
        self._number = {worker: number for number, worker in enumerate(self.workers)}

    @property
    def size(self) -> int:
        return len(self.workers) * self.tensor

    def rank(self, worker: Worker, part: int) -> int:
        """Of one process of a worker among all processes."""
        return self._number[worker] * self.tensor + part

    def peers(self, stage: int) -> list[Worker]:
        """The live workers of a stage."""
        return [worker for worker in self.workers if worker[1] == stage]
