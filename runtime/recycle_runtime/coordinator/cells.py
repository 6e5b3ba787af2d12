"""Cells of workers in the grid of the current cut. Needs no torch.

Workers keep the names that they have in the job's own grid. Under the job's own cut a worker's cell is
usually the one it is named after; under another cut, or back from one, it may be any.
"""

from collections.abc import Collection, Iterable, Mapping

from recycle_runtime.plan.plan_book import PlanBook
from recycle_runtime.plan.recut import NOTHING, LayerRange
from recycle_runtime.plan.worker_ids import Worker


class Cells:
    """From workers to cells, no cell taken twice."""

    def __init__(self, book: PlanBook) -> None:
        self.book = book
        """The plans of the current cut."""
        self._cells: dict[Worker, Worker] = {}

    @property
    def is_plain(self) -> bool:
        """True if every worker stands where its name says."""
        return self.book.is_own and all(worker == cell for worker, cell in self._cells.items())

    def of(self, worker: Worker) -> Worker | None:
        """None for one that has none yet."""
        return self._cells.get(worker)

    def all_of(self, workers: Iterable[Worker]) -> list[Worker]:
        """Of those that have one."""
        return [cell for worker in workers if (cell := self._cells.get(worker)) is not None]

    def stage(self, worker: Worker) -> int | None:
        """Stage on which a worker trains, or would begin to train."""
        cell = self._cells.get(worker)
        if cell is not None:
            return cell[1]
        return worker[1] if self.book.is_own else None

    def empty_stages(self, workers: Iterable[Worker]) -> list[int]:
        """Those at which none of these workers works."""
        known = {self.stage(worker) for worker in workers}
        return [stage for stage in range(self.book.stages) if stage not in known]

    def are_enough(self, workers: Collection[Worker]) -> bool:
        """True if these stand at every stage, or at every stage of a group that can go on alone."""
        return not self.empty_stages(workers) or self.alone(workers) is not None

    def alone(self, workers: Iterable[Worker]) -> tuple[PlanBook, int] | None:
        """With nobody but these: the plans under which one of the groups of pipelines goes on alone, and its
        first stage; None if no group has all of its stages."""
        empty = self.empty_stages(workers)
        return self.book.alone([stage for stage in range(self.book.stages) if stage not in empty])

    def workers(self) -> dict[Worker, Worker]:
        """From cells to workers."""
        return {cell: worker for worker, cell in self._cells.items()}

    def held(self, workers: Iterable[Worker]) -> dict[Worker, LayerRange]:
        """The layers that each of these workers holds, if the job is in layers."""
        ranges = self.book.ranges
        return {
            worker: NOTHING if (cell := self._cells.get(worker)) is None else ranges[cell[1]]
            for worker in workers
        }

    def drop(self, worker: Worker) -> None:
        """It is gone."""
        self._cells.pop(worker, None)

    def put(self, cells: Mapping[Worker, Worker]) -> None:
        """These workers stand there."""
        self._cells.update(cells)

    def switch(self, book: PlanBook, cells: Mapping[Worker, Worker]) -> None:
        """Another cut: nobody stands anywhere else."""
        self.book, self._cells = book, dict(cells)

    def place(self, workers: Collection[Worker]) -> None:
        """A cell for each that has none: the one it is named after, else where it helps most.

        One for which the grid has no room stays without.
        """
        taken = set(self._cells.values())
        for worker in sorted(workers):
            if worker not in self._cells and (cell := self._choice(worker, taken)) is not None:
                self._cells[worker] = cell
                taken.add(cell)

    def has_room(self, worker: Worker) -> bool:
        """True if it stands somewhere or could."""
        return worker in self._cells or self._choice(worker, set(self._cells.values())) is not None

    def _choice(self, worker: Worker, taken: set[Worker]) -> Worker | None:
        if self.book.is_own and worker not in taken:
            return worker
        free: dict[int, Worker] = {}
        for cell in self.book.grid:
            if cell not in taken:
                free.setdefault(cell[1], cell)
        return min(free.values(), key=lambda cell: self._rank(taken, cell), default=None)

    def _rank(self, taken: set[Worker], cell: Worker) -> tuple[bool, int, int, Worker]:
        """By the plan with it, then where fewest workers are."""
        assignment = self.book.assign([*taken, cell])
        peers = sum(other[1] == cell[1] for other in taken)
        if assignment is None:
            return True, 0, peers, cell
        return False, assignment.period, peers, cell
