"""A schedule with all windows open from the start: what a search compares, cheap to make."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recycle_compiler.scheduling.kernel import FAR, Ints
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
    """When each stage starts, as `Clock` counts it."""

    @property
    def rank(self) -> tuple[int, int]:
        return self.period, self.lateness


def placed_by_rule(clock: Clock, priority: Ints, rule: Rule, goal: Goal) -> Placed:
    """What list scheduling makes of a rule."""
    return _placed(clock, *clock.loops.schedule(priority, rule), goal)


def placed_in_order(clock: Clock, order: Ints, goal: Goal) -> Placed | None:
    """The order with its earliest times; None if its workers wait for each other."""
    timed = clock.loops.timed(order, clock.loops.unopened)
    return None if timed is None else _placed(clock, order, *timed, goal)


def _placed(clock: Clock, order: Ints, end: Ints, worker_end: Ints, goal: Goal) -> Placed:
    shape = clock.problem.stages, clock.problem.pipelines
    first_ops, ends = order[:: clock.loops.width], worker_end.reshape(shape)
    begins = end[first_ops] - clock.loops.duration[first_ops] - clock.loops.late
    starts = np.where(first_ops >= 0, begins, FAR)
    first = starts.reshape(shape).min(axis=1)
    late = ends - clock.deadlines(first, goal.aim)[:, None]
    return Placed(clock.period(first, ends.max(axis=1)), int(np.maximum(late, 0).sum()), order, end, first)
