"""From an order of ops on every worker to start times, and the shortest period that the order allows."""

from dataclasses import dataclass

import numpy as np

from recycle_compiler.scheduling.kernel import Ints
from recycle_compiler.scheduling.loops import Loops
from recycle_compiler.scheduling.problem import Problem


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """An order with its times."""

    period: int
    score: int
    """Among equal periods, lower is better: what all stages together take."""
    order: Ints
    start: Ints
    """start[kind, unit, stage]; -1 for the W of a stage that is not split."""
    release: tuple[int, ...]

    @property
    def rank(self) -> tuple[int, int]:
        return self.period, self.score


class Clock:
    """Times orders of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.loops = Loops(problem)
        self._shape = (3, problem.units, problem.stages)
        self._duration = self.loops.duration.reshape(self._shape)
        load, finishes, alive = problem.load, problem.finishes, _living(problem)
        self.floor = int((load + finishes)[alive | (load > 0)].max())
        """No order has a shorter period."""
        self._finish = np.array(problem.finish, dtype=np.int64)
        if problem.slow and not problem.staggered:
            self._finish = np.where(alive, finishes, 0).max(axis=1)
        self._late = self.loops.late[problem.host] if problem.slow else None
        self._least = int(finishes[alive & (load == 0)].max(initial=0)) if problem.slow else 0

    def time(self, order: Ints, at_most: int | None = None) -> Timed | None:
        """The order with its shortest period; None if that exceeds `at_most`."""
        if not self.problem.staggered:
            timed = self.time_at_once(order)
            return None if at_most is not None and timed.period > at_most else timed
        if at_most is None:
            return self._shorten(self.time_at_once(order))
        within = self._within(order, at_most)
        return None if within is None else self._shorten(within)

    def time_at_once(self, order: Ints) -> Timed:
        """The order with every stage opened at once: fast, and often as short as it can be."""
        return self._timed(order, self.loops.unopened)

    def order_of(self, start: Ints) -> Ints:
        """The order of ops on every worker, from start[kind, unit, stage] (-1 where there is no such op)."""
        problem, flat = self.problem, start.ravel()
        ops = np.flatnonzero(flat >= 0)
        unit, stage = (ops // problem.stages) % problem.units, ops % problem.stages
        worker = problem.host[unit, stage]
        order = np.full((self.loops.workers, self.loops.width), -1, dtype=np.int64)
        sorted_ops = np.lexsort((flat[ops], worker))
        owner = worker[sorted_ops]
        position = np.arange(len(ops)) - np.searchsorted(owner, owner)
        order[owner, position] = ops[sorted_ops]
        return order.ravel()

    def latest(self, timed: Timed) -> Ints:
        """The latest starts at which this order still keeps its period."""
        first, _ = self._windows(timed.start)
        late, _ = self.loops.latest(timed.order, self.deadlines(first, timed.period))
        return late.reshape(self._shape)

    def deadlines(self, first: Ints, period: int) -> Ints:
        """When the ops of each stage must be done in this period, with the start of its first op given."""
        if self.problem.staggered:
            return first + period - self._finish
        return np.full(self.problem.stages, first.min() + period - self._finish.max())

    def period(self, first: Ints, last: Ints) -> int:
        """The period when each stage has its first start and its last end there."""
        if self.problem.staggered:
            return max(self._least, int((last + self._finish - first).max()))
        return int(last.max() - first.min() + self._finish.max())

    def _shorten(self, best: Timed) -> Timed:
        """Halve the interval between what is surely too short and what is known to do."""
        grain = self.problem.grain
        too_short = self.floor // grain - 1
        # The next step down is the likely end of the search, so it is tried first.
        probe = best.period // grain - 1
        while probe > too_short:
            within = self._within(best.order, probe * grain)
            if within is None:
                too_short = probe
            else:
                best = within
            probe = (too_short + best.period // grain) // 2
        return best

    def _within(self, order: Ints, period: int) -> Timed | None:
        """Push stages that start too early for their end; None if they never settle.

        A longest path uses each stage's window at most once, so more rounds than stages mean a cycle.
        """
        release = self.loops.unopened
        for _ in range(self.problem.stages + 1):
            start = self._start(order, release)
            first, last = self._windows(start)
            over = last + self._finish - first - period
            if (over <= 0).all():
                return self._as_timed(order, start, release)
            release = np.where(over > 0, first + over, release)
        return None

    def _start(self, order: Ints, release: Ints) -> Ints:
        end = self.loops.earliest(order, release).reshape(self._shape)
        return np.where(end >= 0, end - self._duration, -1)

    def _windows(self, start: Ints) -> tuple[Ints, Ints]:
        """For each stage, the start of its first op and the end of its last.

        Of a worker that takes longer to step than its peers, ops start sooner by that much: then one end of
        the optimizer step serves for all.
        """
        first = start[0] if self._late is None else start[0] - self._late
        return first.min(axis=0), (start + self._duration).max(axis=(0, 1))

    def _timed(self, order: Ints, release: Ints) -> Timed:
        return self._as_timed(order, self._start(order, release), release)

    def _as_timed(self, order: Ints, start: Ints, release: Ints) -> Timed:
        first, last = self._windows(start)
        origin = int(start[0].min())
        opens = tuple(int(max(0, time - origin)) for time in release)
        shifted = np.where(start >= 0, start - origin, -1)
        score = int((last - first).sum() if self.problem.staggered else last.sum())
        return Timed(self.period(first, last), score, order, shifted, opens)


def _living(problem: Problem) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """[stage, pipeline]: who may run micro-batches."""
    alive = np.zeros(problem.stages * problem.pipelines, dtype=np.bool_)
    for workers in problem.hosts:
        alive[list(workers)] = True
    return alive.reshape(problem.stages, problem.pipelines)
