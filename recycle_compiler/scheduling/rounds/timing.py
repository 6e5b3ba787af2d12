"""From an order of rounds on every machine to their times, and the shortest period that the order allows."""

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from recycle_compiler.compiled import compile_function
from recycle_compiler.scheduling.rounds.kernels import (
    FAR,
    choose_line,
    cost_order,
    fits,
    improve_order,
    place_ops,
    settle_windows,
    take_op,
    time_order,
)
from recycle_compiler.scheduling.rounds.problem import Ints, RoundsProblem

_LARGE = 60
"""Rounds from which on it pays to load the compiler."""
NO_LIMIT = 1 << 40
_FINEST = 2_000
"""Of how many steps the period of an order is, that moves are judged by."""
_PASSES = 3
"""Most times that openings are put off while a move is judged; one that has not settled is not worth it."""
_PAST = 30
"""Tries after which an order has to be as good as it was before."""


@dataclass(frozen=True, slots=True, eq=False)
class TimedRounds:
    """An order with its times."""

    period: int
    score: int
    """Among equal periods, lower is better: what all machines together take."""
    order: Ints
    end: Ints
    """Of every op."""
    release: tuple[int, ...]
    """Opening time of each machine."""

    @property
    def rank(self) -> tuple[int, int]:
        return self.period, self.score


class Rule(NamedTuple):
    """A rule of the list scheduler; one value per machine, but for patience."""

    ahead: tuple[int, ...]
    """Most rounds that it may have forward beyond those back."""
    defer: tuple[int, ...]
    """Most weights that it may put off."""
    forward_first: tuple[int, ...]
    """1 where it goes forward before it goes back."""
    patience: int = 0
    """Longest wait for a round that it would rather have."""


class RoundsClock:
    """Times orders of one problem."""

    def __init__(self, problem: RoundsProblem) -> None:
        self.problem = problem
        counts = np.bincount(problem.machine, np.diff(problem.first), minlength=problem.machines)
        self.bounds = np.concatenate([[0], np.cumsum(counts.astype(np.int64))])
        finish = problem.finish
        self._finish = finish if problem.staggered else np.full(problem.machines, finish.max())
        self.is_compiled = problem.ops >= _LARGE
        self._settle: Any = _compiled(settle_windows) if self.is_compiled else settle_windows
        self._place: Any = _compiled(place_ops) if self.is_compiled else place_ops
        self._improve: Any = _compiled(improve_order) if self.is_compiled else improve_order
        self._cost: Any = _compiled(cost_order) if self.is_compiled else cost_order
        self._waits = self._given(problem.waits_first, problem.waits, problem.lag)
        self._lines = self._given(
            problem.line, problem.first, problem.part, problem.duration, problem.exchange
        )
        lines = np.searchsorted(problem.machine, np.arange(problem.machines + 1))
        self._known = self._given(
            lines, problem.first, problem.part, problem.duration, problem.exchange,
            problem.takes, problem.frees, problem.capacity,
        )  # fmt: skip

    def time(self, order: Ints, at_most: int | None = None) -> TimedRounds | None:
        """The order with its shortest period; None if that exceeds `at_most`, or if machines wait for each
        other."""
        cost = self.costs(order)
        best = self._within(order, cost, FAR)
        if best is None:
            return None
        if at_most is not None and best.period > at_most:
            best = self._within(order, cost, at_most)
            if best is None:
                return None
        if not self.problem.staggered or self.problem.machines == 1:
            return best
        return self._shorten(best, cost)

    def place(self, rule: Rule) -> Ints | None:
        """List schedule, as an order of ops; None if memory leaves it no way on."""
        problem = self.problem
        room = [np.zeros(problem.ops, dtype=np.int64) for _ in range(3)]
        order, machines = room[1], problem.machines
        sizes = (problem.lines, *(machines,) * 4, 3 * machines)
        parts = self._given(*room, self.bounds, *(np.zeros(size, dtype=np.int64) for size in sizes))
        limits = self._given(*(np.array(values, dtype=np.int64) for values in rule[:3]))
        is_placed = self._place(*self._known, *self._waits, *limits, rule.patience, *parts)
        if not is_placed:
            return None
        return order if self.is_compiled else np.array(parts[1], dtype=np.int64)

    def improved(self, timed: TimedRounds, enough: int, tries: int, seed: int) -> TimedRounds:
        """The best order that moves of single rounds find from this one, with its shortest period."""
        problem = self.problem
        order, best = timed.order.copy(), timed.order.copy()
        step = max(problem.grain, timed.period // _FINEST // problem.grain * problem.grain)
        machines, ops = problem.machines, problem.ops
        sizes = (machines, ops, machines, machines, 3 * machines, ops, ops)
        room = [np.zeros(_PAST, dtype=np.int64), np.array(timed.release, dtype=np.int64)]
        room += [np.zeros(size, dtype=np.int64) for size in sizes]
        orders, known = self._given(order, best), self._given(self.bounds)
        shares = self._given(problem.takes, problem.frees, problem.capacity, self._finish)
        parts = (*orders, *known, *self._waits, *self._lines, *shares)
        limits = (problem.staggered, timed.period, enough, step, tries, _PASSES, seed + 1)
        shortest = self._improve(*parts, *limits, *self._given(*room))
        if shortest >= timed.period:
            return timed
        found = self.time(best if self.is_compiled else np.array(orders[1], dtype=np.int64))
        return timed if found is None or found.rank >= timed.rank else found

    def costs(self, order: Ints) -> Ints:
        """Of every op what it takes in this order: of a W, what exchanges leave of it."""
        machines, ops = self.problem.machines, self.problem.ops
        sizes = (3 * machines, ops, ops)
        recent, among, cost = self._given(*(np.zeros(size, dtype=np.int64) for size in sizes))
        known = (*self._given(self.bounds), *self._lines, recent, among, cost)
        given = self._given(order)[0]
        for machine in range(machines):
            self._cost(given, machine, *known)
        return np.array(cost, dtype=np.int64)

    def period(self, first: Ints, last: Ints) -> int:
        """The period when each machine has its first start and its last end there."""
        if self.problem.staggered:
            return int((last + self._finish - first).max())
        return int(last.max() - first.min() + self._finish.max())

    def _given(self, *columns: Ints) -> list[Any]:
        """As the loops want them."""
        return [column if self.is_compiled else column.tolist() for column in columns]

    def _windows(self, order: Ints, end: Ints) -> tuple[Ints, Ints]:
        begins, stops = order[self.bounds[:-1]], order[self.bounds[1:] - 1]
        # What a machine begins with is a forward.
        return end[begins] - self.problem.duration[self.problem.line[begins]], end[stops]

    def _timed(self, order: Ints, end: Ints, release: Ints) -> TimedRounds:
        first, last = self._windows(order, end)
        origin = int(first.min())
        opens = tuple(int(max(0, time - origin)) for time in release)
        score = int((last - first).sum() if self.problem.staggered else last.sum())
        return TimedRounds(self.period(first, last), score, order, end - origin, opens)

    def _shorten(self, best: TimedRounds, cost: Ints) -> TimedRounds:
        """Halve the interval between what is surely too short and what is known to do."""
        grain = self.problem.grain
        too_short = (self.problem.floor - 1) // grain
        # The next step down is the likely end of the search, so it is tried first.
        probe = (best.period - 1) // grain
        while probe > too_short:
            within = self._within(best.order, cost, probe * grain)
            if within is None:
                too_short = probe
            else:
                best = within
            probe = (too_short + (best.period - 1) // grain + 1) // 2
        return best

    def _within(self, order: Ints, cost: Ints, period: int) -> TimedRounds | None:
        """The order in this period, with machines that begin too early for their end opened later; None if
        they never settle, or wait for each other."""
        machines = self.problem.machines
        sizes = (machines, self.problem.ops, machines, machines)
        opens, end, *room = self._given(*(np.zeros(size, dtype=np.int64) for size in sizes))
        known = (*self._given(order, self.bounds), *self._waits, *self._given(cost, self._finish))
        limits = (self.problem.staggered, period, machines + 1)
        if not self._settle(*known, *limits, opens, end, *room):
            return None
        return self._timed(order, np.array(end, dtype=np.int64), np.array(opens, dtype=np.int64))


_CALLED: dict[Any, tuple[Any, ...]] = {
    place_ops: (choose_line, take_op),
    settle_windows: (time_order,),
    cost_order: (take_op,),
    improve_order: (settle_windows, fits, cost_order),
}
"""Loops that call others."""


@cache
def _compiled(function: Any) -> Any:
    return compile_function(
        function, **{each.__name__: _compiled(each) for each in _CALLED.get(function, ())}
    )
