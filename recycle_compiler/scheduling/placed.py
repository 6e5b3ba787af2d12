"""A schedule with all windows open from the start: what a search compares, cheap to make."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recycle_compiler.scheduling.inner_loops import FAR
from recycle_compiler.scheduling.problem import Ints
from recycle_compiler.scheduling.rules import Rule
from recycle_compiler.scheduling.timing import Clock


class Goal(NamedTuple):
    """What a search is after."""

    enough: int
    """A period at which it ends."""
    aim: int
    """A shorter one, which lateness is counted against: it also ranks schedules of equal periods."""


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """An order with its times."""

    period: int
    lateness: int
    """By how much all workers together miss what the search aims at."""
    order: Ints
    end: Ints
    first: Ints
    """When each pool starts, as `Clock` counts it."""

    @property
    def rank(self) -> tuple[int, int]:
        return self.period, self.lateness


def placed_by_rule(clock: Clock, priority: Ints, rule: Rule, goal: Goal) -> Placed | None:
    """What list scheduling makes of a rule; None where it finds no way on."""
    found = clock.loops.schedule(priority, rule)
    return None if found is None else _placed(clock, *found, goal)


def placed_in_order(clock: Clock, order: Ints, goal: Goal) -> Placed | None:
    """The order with its earliest times; None if its workers wait for each other."""
    timed = clock.loops.timed(order, clock.loops.unopened)
    return None if timed is None else _placed(clock, order, *timed, goal)


def _placed(clock: Clock, order: Ints, end: Ints, worker_end: Ints, goal: Goal) -> Placed:
    first_ops, pool_of = order[:: clock.loops.width], clock.loops.pool_of
    begins = end[first_ops] - clock.loops.duration[first_ops] - clock.loops.late
    starts = np.where(first_ops >= 0, begins, FAR)
    first, last = np.full(clock.problem.pools, FAR), np.zeros(clock.problem.pools, dtype=np.int64)
    np.minimum.at(first, pool_of, starts)
    np.maximum.at(last, pool_of, worker_end)
    late = worker_end - clock.deadlines(first, goal.aim)[pool_of]
    return Placed(clock.period(first, last), int(np.maximum(late, 0).sum()), order, end, first)
