"""The goal of a search, and what it may use up: work, time, and pseudo-random numbers."""

import time
from typing import NamedTuple

import numpy as np

from recycle_compiler.scheduling.problem import Ints


class Goal(NamedTuple):
    """Goal of a search."""

    enough: int
    """A period at which it ends."""
    aim: int
    """A shorter one, which lateness is counted against: it also ranks schedules of equal periods."""

    def times_as_far(self, times: int) -> int:
        """The period that is so many times as far from what is aimed at as what is enough."""
        return self.aim + (self.enough - self.aim) * times


class Noise:
    """A stream of pseudo-random integers (splitmix64)."""

    def __init__(self, seed: int) -> None:
        self._counter = (seed * 0x5851F42D4C957F2D + 0x14057B7EF767814F) % (1 << 64)

    def aside(self) -> "Noise":
        """Another stream; this one goes on as if nobody had asked."""
        other = Noise(0)
        other._counter = (self._counter ^ _ASIDE) % (1 << 64)
        return other

    def below(self, limit: int) -> int:
        """One number in [0, limit)."""
        return int(self.integers(limit, 1)[0])

    def integers(self, limit: int, count: int) -> Ints:
        """Numbers in [0, limit)."""
        with np.errstate(over="ignore"):
            counter = np.uint64(self._counter) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_STEP)
            value = (counter ^ (counter >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            value ^= value >> np.uint64(31)
        self._counter = (self._counter + count * _STEP) % (1 << 64)
        return ((value >> np.uint64(11)) % np.uint64(limit)).astype(np.int64)


_STEP = 0x9E3779B97F4A7C15
_ASIDE = 0xD1B54A32D192ED03


class Guard:
    """The time limit of a whole command, and the one place where its clock is read.

    Effort is counted in work, so a guard changes nothing until it strikes; from then on all that asks it ends
    early. Processes of one machine share it: its end is a time of the machine's clock.
    """

    def __init__(self, nanoseconds: int) -> None:
        self._end = clock_ns() + nanoseconds
        self.struck = False

    @property
    def seconds_left(self) -> float:
        """For solvers that can only be stopped by their own clock."""
        return max(0, self._end - clock_ns()) / 1e9

    def strikes(self) -> bool:
        """Asked where work would go on: whoever asks stops when it is true."""
        self.struck = self.struck or clock_ns() > self._end
        return self.struck


def clock_ns() -> int:
    """Nanoseconds of a clock that all processes of the machine share."""
    return time.monotonic_ns()


class Visits:
    """Costs of search steps in visits: to time an op in an order is one visit, about 40 ns compiled.

    Measured on plans of some ten thousand ops; for each op of the plan, if nothing else is said.
    """

    RULE = 6
    """A run of the list scheduler."""
    EXCHANGE = 4
    """Neighbours swapped at once, and the new order timed."""
    MOVE = 5
    """For each op that is timed in moves of single ops or a tabu search."""
    TIMETABLE = 9
    SET_UP = 14
    """A problem with other routes, made ready for the loops."""
    SHORTEN = 20
    """The shortest period of an order."""
    PIVOT = 1
    """A simplex iteration, for each entry of the rows."""


class Sizes:
    """Of plans, in ops: one table for the search and for the planner."""

    COMPILED = 400
    """From here on loops are compiled (below, loading the compiler takes longer than it saves), rules are
    tuned in place of a search around many, and stages with failures deal out all of their micro-batches."""
    LARGE = 20_000
    """Beyond, a plan is costly: quick plans say as much as whole ones about which layout is better, bounds
    stand for plans where failures are placed, nothing is planned several times, and tuning ends early where
    it is far from its goal."""
    HUGE = 60_000
    """Beyond, single ops are moved only close to the goal, and no layout is searched at length."""


class Budget:
    """The work that the search for one plan may do, in visits, under the guard of the command."""

    def __init__(
        self,
        guard: Guard,
        work: int = 1 << 62,
        whole: "Budget | None" = None,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self.guard = guard
        self.left = work
        self._whole = whole
        self._without = without

    def has(self, proposer: str) -> bool:
        """True unless this proposer of orders is left out, to see what it is worth."""
        return proposer not in self._without

    def part(self, work: int) -> "Budget":
        """No more than this of what is left; spent, it is spent here too."""
        return Budget(self.guard, min(work, self.left), self, self._without)

    def beside(self, work: int) -> "Budget":
        """So much besides what is left, under the same guard."""
        return Budget(self.guard, work, None, self._without)

    def spend(self, work: int) -> None:
        """Work that has been done."""
        self.left -= work
        if self._whole is not None:
            self._whole.spend(work)

    def is_spent(self) -> bool:
        """Asked where work would go on: whoever asks stops when it is true."""
        return self.left <= 0 or self.guard.strikes()

    @property
    def was_cut(self) -> bool:
        """True if the guard ended the search before its work was done."""
        return self.guard.struck
