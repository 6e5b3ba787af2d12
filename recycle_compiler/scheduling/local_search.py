"""Schedules of a small plan: many greedy ones, then a search around the best of them.

First schedules come from list scheduling by a greedy rule, with a grid of settings. The search schedules
again with a schedule's own times as priorities, some of them disturbed. Ops keep about the order they had, so
most of a good schedule survives; what is disturbed settles where it fits. Priorities are the starts, the
latest starts at which the period would still hold (ops with slack then give way to critical ones), or their
mean. Equal schedules are accepted, so the search can cross plateaus.
"""

import numpy as np

from recycle_compiler.scheduling.budget import Budget, Noise, Visits
from recycle_compiler.scheduling.problem import Ints
from recycle_compiler.scheduling.rules import free_rule, greedy_priority, small_rules
from recycle_compiler.scheduling.timing import Clock, Timed


def construct(clock: Clock, bound: int, tries: int, budget: Budget) -> list[Timed]:
    """Schedules from a grid of rules, best first; stops when one meets the bound."""
    problem = clock.problem
    priority = greedy_priority(problem)
    found: list[Timed] = []
    seen: set[bytes] = set()
    for _, rule in zip(range(tries), small_rules(problem), strict=False):
        if found and budget.is_spent():
            break
        budget.spend((Visits.RULE + Visits.SHORTEN) * problem.ops)
        order = clock.loops.place(priority, rule)
        if order is None or order.tobytes() in seen:
            continue
        seen.add(order.tobytes())
        timed = clock.time(order)
        assert timed is not None
        found.append(timed)
        if timed.period <= bound:
            break
    assert found, "no rule finds an order that obeys every edge"
    return sorted(found, key=lambda timed: timed.rank)


_FINE = 16
"""Priorities are finer than ticks, so that noise can break ties."""
_SHARES = (3, 10, 30, 100)
"""Percent of the ops that are disturbed."""
_PATIENCE = 100
"""Moves without progress before the search goes on from the next schedule."""
_PATIENCES = (0, 50, 100, 300)
"""Of the list scheduler, in percent of an op."""
_REACHES = (5, 16, 32, 64)
"""Largest disturbances of op times, in sixteenths of a mean op."""


def improve(clock: Clock, starts: list[Timed], bound: int, moves: int, noise: Noise, budget: Budget) -> Timed:
    """The best schedule found in `moves` tries, or before time is out."""
    best = current = starts[0]
    later = starts[1:]
    idle_moves = 0
    for _ in range(moves if budget.has("disturbed times") else 0):
        if best.period <= bound or budget.is_spent():
            break
        if idle_moves > _PATIENCE and later:
            current, idle_moves = later.pop(0), 0
        budget.spend((Visits.RULE + Visits.SHORTEN) * clock.problem.ops)
        after = _move(clock, current, noise)
        idle_moves += 1
        if after is None:
            continue
        if after.rank < current.rank:
            idle_moves = 0
        if after.rank <= current.rank:
            current = after
        best = min(best, current, key=lambda timed: timed.rank)
    return best


def _move(clock: Clock, current: Timed, noise: Noise) -> Timed | None:
    problem = clock.problem
    base = _base(clock, current, noise.below(4))
    mean = int(clock.loops.duration.mean()) + 1
    reach = _REACHES[noise.below(4)] * mean * _FINE // 16
    disturbed = noise.integers(100, base.size) < _SHARES[noise.below(4)]
    shift = np.where(disturbed, noise.integers(2 * reach + 1, base.size) - reach, 0)
    priority = base + shift.reshape(base.shape)
    priority -= priority.min()
    rule = free_rule(problem, _PATIENCES[noise.below(4)])
    order = clock.loops.place(priority, rule)
    return None if order is None else clock.time(order, current.period)


def _base(clock: Clock, current: Timed, choice: int) -> Ints:
    start = np.where(current.start >= 0, current.start, 0) * _FINE
    if choice == 0:
        return start
    late = np.where(current.start >= 0, clock.latest(current), 0) * _FINE
    return (start + late) // 2 if choice == 1 else late
