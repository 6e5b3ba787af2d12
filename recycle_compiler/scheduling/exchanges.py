"""Orders of a large plan with their times, and how they get shorter: exchanges of neighbours, then moves.

Exchanges ask for a shorter period, which gives every op a latest start. Where an op misses its own because
its worker does something less urgent just before (a W, as a rule, while a backward that others wait for
arrives), the two are swapped. All such swaps are made at once, then the new order is timed. When that is no
better, the next try asks for another period, for other gains, or looks only at some pools or at the later
part of the iteration.

Moves of single ops (`order_search.py`) find what exchanges do not, and leave orders in which exchanges find
something again. So both take turns, as long as both help.

Schedules are compared with all windows open from the start, which is cheap to make.
"""

from dataclasses import dataclass

import numpy as np

from recycle_compiler.scheduling.budget import Budget, Goal, Noise, Visits
from recycle_compiler.scheduling.inner_loops import FAR
from recycle_compiler.scheduling.loops import Where
from recycle_compiler.scheduling.order_search import reorder
from recycle_compiler.scheduling.problem import Ints
from recycle_compiler.scheduling.rules import GreedyRule
from recycle_compiler.scheduling.timing import Clock, Timed


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """An order with its times."""

    period: int
    lateness: int
    """By how much all workers together miss what the search aims at."""
    order: Ints
    end: Ints
    first: Ints
    """Start of each pool, as `Clock` counts it."""

    @property
    def rank(self) -> tuple[int, int]:
        return self.period, self.lateness


def placed_by_rule(clock: Clock, priority: Ints, rule: GreedyRule, goal: Goal) -> Placed | None:
    """Order that list scheduling makes of a rule, with its times; None if the rule leads to no schedule."""
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


_STEPS = 64
"""Choices out of a range of times."""
_BELOW = 200
"""The shortest period asked for is this part below the one that is aimed at."""


def exchange(clock: Clock, begin: Placed, goal: Goal, tries: int, noise: Noise, budget: Budget) -> Placed:
    """The best schedule found in so many tries; stops when one is good enough."""
    current, failed, wanted = begin, 0, goal.aim
    times = _latest(clock, current, wanted)
    for _ in range(tries if budget.has("exchanges") else 0):
        if current.period <= goal.enough or budget.is_spent():
            break
        if failed:
            if noise.below(3):
                reach = current.period - goal.aim + current.period // _BELOW
                wanted = current.period - reach * noise.below(_STEPS) // _STEPS
                times = _latest(clock, current, wanted)
            where = _somewhere(clock, current.period, noise)
        else:
            where = Where(0, clock.problem.pools - 1, gain=_mean_op(clock) // 8)
        budget.spend(Visits.EXCHANGE * clock.problem.ops)
        order = clock.loops.swapped(current.order, times, where)
        after = None if order is None else placed_in_order(clock, order, goal)
        failed += 1
        if after is None or after.rank > current.rank:
            continue
        if after.rank < current.rank:
            failed, wanted = 0, goal.aim
        current = after
        times = _latest(clock, current, wanted)
    return current


def _somewhere(clock: Clock, period: int, noise: Noise) -> Where:
    first, last = 0, clock.problem.pools - 1
    if noise.below(2):
        first = noise.below(clock.problem.pools)
        last = min(last, first + noise.below(clock.problem.pools // 2 + 1))
    return Where(
        first,
        last,
        since=noise.below(2) * period * noise.below(_STEPS) // _STEPS,
        gain=noise.below(4) * _mean_op(clock) // 16,
        odds=(100, 60)[noise.below(2)],
        seed=noise.below(1 << 30),
    )


def _latest(clock: Clock, placed: Placed, period: int) -> tuple[Ints, Ints, Ints]:
    late, due = clock.loops.latest(placed.order, clock.deadlines(placed.first, period))
    return placed.end, due, late


def _mean_op(clock: Clock) -> int:
    return int(clock.loops.duration.mean())


_POLISHES = 4


def polished(clock: Clock, begin: Ints, goal: Goal, tries: int, noise: Noise, budget: Budget) -> Timed:
    """The order after moves of single ops, then exchanges and moves in turn, as long as both help."""
    best = reorder(clock, begin, goal, noise, budget)
    for _ in range(_POLISHES):
        if best.period <= goal.enough or budget.is_spent():
            break
        placed = placed_in_order(clock, best.order, goal)
        assert placed is not None, "the orders of some workers wait for each other"
        placed = exchange(clock, placed, goal, tries, noise, budget)
        again = reorder(clock, placed.order, goal, noise, budget)
        if again.rank >= best.rank:
            break
        best = again
    return best
