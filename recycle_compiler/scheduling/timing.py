"""From an order of ops on every worker to start times, and the shortest period that the order allows."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.scheduling.inner_loops import FAR
from recycle_compiler.scheduling.loops import Loops, PoolReach
from recycle_compiler.scheduling.problem import Ints, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """An order with its times."""

    period: int
    score: int
    """Among equal periods, lower is better: what all pools together take."""
    order: Ints
    start: Ints
    """start[kind, unit, chunk]; -1 for the W of a chunk that is not split."""
    release: tuple[int, ...]
    """Opening time of each pool."""

    @property
    def rank(self) -> tuple[int, int]:
        return self.period, self.score


class Clock:
    """Times orders of one problem."""

    def __init__(self, problem: Problem, compiled: bool = False) -> None:
        self.problem = problem
        self.loops = Loops(problem, compiled)
        self._shape = (3, problem.units, problem.chunks)
        self._duration = self.loops.duration.reshape(self._shape)
        load, alive = problem.load, _living(problem)
        self._finish = np.array(problem.pool_finish, dtype=np.int64)
        finishes = self._finish[self.loops.pool_of] + problem.late
        self.floor = int((load + finishes)[alive].max())
        """No order has a shorter period."""
        if not problem.staggered:
            self._finish = np.zeros(problem.pools, dtype=np.int64)
            np.maximum.at(self._finish, self.loops.pool_of[alive], finishes[alive])
        self._late = self.loops.late[problem.host] if self.loops.late.any() else None
        self._least = int(finishes[alive & (load == 0)].max(initial=0)) if problem.slow else 0
        # Chunks of a pool are one after the other for `reduceat`; None where each is a pool of its own.
        self._by_pool = None
        if problem.pools < problem.chunks:
            order = np.argsort(problem.pool, kind="stable")
            self._by_pool = (order, np.flatnonzero(np.diff(np.array(problem.pool)[order], prepend=-1)))
        self._windows_of_pools = np.array(problem.window)
        self._window = None if len(set(problem.window)) == problem.pools else self._windows_of_pools

    @property
    def _opens_at_once(self) -> bool:
        """True if no pool gains by opening later: one barrier for all, or one pool of equal workers."""
        return not self.problem.staggered or (self.problem.pools == 1 and self._late is None)

    def time(self, order: Ints, at_most: int | None = None) -> Timed | None:
        """The order with its shortest period; None if that exceeds `at_most`."""
        if self._opens_at_once:
            return self.within(order, FAR if at_most is None else at_most)
        opening = Opening(self.loops, order)
        if at_most is None:
            return self._shorten(self.time_at_once(order), opening)
        within = self._within(opening, at_most)
        return None if within is None else self._shorten(within, opening)

    def within(self, order: Ints, period: int) -> Timed | None:
        """The order in this period or less, not necessarily its shortest; None if it takes longer."""
        if not self._opens_at_once:
            return self._within(Opening(self.loops, order), period)
        timed = self.time_at_once(order)
        return timed if timed.period <= period else None

    def time_at_once(self, order: Ints) -> Timed:
        """The order with every pool opened at once: fast, and often as short as it can be."""
        return self._timed(order, self.loops.unopened)

    def order_of(self, start: Ints) -> Ints:
        """Ops of every worker in order, from start[kind, unit, chunk] (-1 where there is no such op)."""
        flat = start.ravel()
        ops = np.flatnonzero(flat >= 0)
        worker = self.problem.tasks.worker[ops]
        order = np.full((self.loops.workers, self.loops.width), -1, dtype=np.int64)
        sorted_ops = np.lexsort((flat[ops], worker))
        owner = worker[sorted_ops]
        position = np.arange(len(ops)) - np.searchsorted(owner, owner)
        order[owner, position] = ops[sorted_ops]
        return order.ravel()

    def latest(self, timed: Timed) -> Ints:
        """The latest starts at which this order still keeps its period."""
        late, _ = self.loops.latest(timed.order, self.deadlines_of(timed, timed.period))
        return late.reshape(self._shape)

    def deadlines(self, first: Ints, period: int) -> Ints:
        """Latest end of the ops of each pool in this period, with the start of its first op given."""
        first, _, finish = self._joined(first, first)
        deadlines = first + period - finish
        if not self.problem.is_tied:
            return deadlines
        together = np.full(self.problem.pools, FAR)
        np.minimum.at(together, self._windows_of_pools, deadlines)
        return together[self._windows_of_pools]

    def deadlines_of(self, timed: Timed, period: int) -> Ints:
        """Latest end of the ops of each pool in this period, where pools open as they do here."""
        first, _ = self._windows(timed.start)
        return self.deadlines(first, period)

    def period(self, first: Ints, last: Ints) -> int:
        """The period when each pool has its first start and its last end there."""
        first, last, finish = self._joined(first, last)
        return max(self._least if self.problem.staggered else 0, int((last + finish - first).max()))

    def _joined(self, first: Ints, last: Ints) -> tuple[Ints, Ints, Ints]:
        """First starts, last ends and finishes of the pools' windows.

        Tied pools end their work together; each opens and finishes on its own.
        """
        if self._window is None:
            return first, last, self._finish
        count = int(self._window.max()) + 1
        opens, closes, finish = (
            np.full(count, FAR),
            np.zeros(count, dtype=np.int64),
            np.zeros(count, dtype=np.int64),
        )
        np.minimum.at(opens, self._window, first)
        np.maximum.at(closes, self._window, last)
        np.maximum.at(finish, self._window, self._finish)
        if self.problem.staggered:
            return first, closes[self._window], self._finish
        return opens[self._window], closes[self._window], finish[self._window]

    def _shorten(self, best: Timed, opening: "Opening") -> Timed:
        """Halve the interval between what is surely too short and what is known to do."""
        grain = self.problem.grain
        too_short = self.floor // grain - 1
        # The next step down is the likely end of the search, so it is tried first.
        probe = best.period // grain - 1
        while probe > too_short:
            within = self._within(opening, probe * grain)
            if within is None:
                too_short = probe
            else:
                best = within
            probe = (too_short + best.period // grain) // 2
        return best

    def _within(self, opening: "Opening", period: int) -> Timed | None:
        """Push pools that start too early for their end; None if they never settle.

        A longest path uses each pool's window at most once, so more rounds than pools mean a cycle.
        """
        release = self.loops.unopened
        for _ in range(self.problem.pools + 1):
            first, last, finish = self._joined(*opening.windows(release))
            over = last + finish - first - period
            if (over <= 0).all():
                return self._timed(opening.order, release)
            release = np.where(over > 0, first + over, release)
        return None

    def _start(self, order: Ints, release: Ints) -> Ints:
        end = self.loops.earliest(order, release).reshape(self._shape)
        return np.where(end >= 0, end - self._duration, -1)

    def _windows(self, start: Ints) -> tuple[Ints, Ints]:
        """For each pool, the start of its first op and the end of its last.

        Of a worker that takes longer to step than its peers, ops start sooner by that much: then one end of
        the optimizer step serves for all.
        """
        first = start[0] if self._late is None else start[0] - self._late
        opens, closes = first.min(axis=0), (start + self._duration).max(axis=(0, 1))
        if self._by_pool is None:
            return opens, closes
        order, firsts = self._by_pool
        return np.minimum.reduceat(opens[order], firsts), np.maximum.reduceat(closes[order], firsts)

    def _timed(self, order: Ints, release: Ints) -> Timed:
        return self._as_timed(order, self._start(order, release), release)

    def _as_timed(self, order: Ints, start: Ints, release: Ints) -> Timed:
        first, last = self._windows(start)
        origin = int(start[0].min())
        opens = tuple(int(max(0, time - origin)) for time in release)
        shifted = np.where(start >= 0, start - origin, -1)
        score = int((last - first).sum() if self.problem.staggered else last.sum())
        return Timed(self.period(first, last), score, order, shifted, opens)


_DIRECT = 4
"""Times that an order is timed again for other openings of pools; then its dependence on them is computed."""


class Proposal(NamedTuple):
    """A schedule, and the clock of the problem that it is for: the graph may have other routes."""

    clock: Clock
    timed: Timed


class Opening:
    """Begin and end of the workers of one order, as its pools open at one time or another.

    Each beginning and end is the latest of what the releases of single pools bring about, and of what is so
    whenever they open. Some passes through all ops tell these apart; after that a question costs no pass any
    more.
    """

    def __init__(self, loops: Loops, order: Ints, direct: int = _DIRECT) -> None:
        self.order = order
        self._loops = loops
        first = order[:: loops.width]
        self._busy = np.flatnonzero(first >= 0)
        self._first = first[self._busy]
        self._pool = loops.pool_of[self._busy]
        self._direct = direct
        self._reach: PoolReach | None = None

    def windows(self, release: Ints) -> tuple[Ints, Ints]:
        """For each pool, the start of its first op and the end of its last, as `Clock` counts them."""
        if self._direct <= 0:
            if self._reach is None:
                self._reach = self._loops.reach(self.order, *self._timed(self._loops.unopened))
            return self._loops.windows(release, self._reach)
        self._direct -= 1
        end, free = self._timed(release)
        first = np.full(len(release), FAR)
        last = np.zeros(len(release), dtype=np.int64)
        starts = end[self._first] - self._loops.duration[self._first]
        np.minimum.at(first, self._pool, starts - self._loops.late[self._busy])
        np.maximum.at(last, self._pool, free[self._busy])
        return first, last

    def _timed(self, release: Ints) -> tuple[Ints, Ints]:
        timed = self._loops.timed(self.order, release)
        assert timed is not None, "the orders of some workers wait for each other"
        return timed


def _living(problem: Problem) -> NDArray[np.bool_]:
    """Per worker: whether it may run micro-batches."""
    alive = np.zeros(problem.workers, dtype=np.bool_)
    for workers in problem.hosts:
        alive[list(workers)] = True
    return alive
