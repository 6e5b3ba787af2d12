"""A search among orders of a large plan: single ops of critical paths move along their workers.

Tuning changes what all ops of a stage do, and exchanges swap many neighbours at once. What is left after them
is often a matter of a few ops near the end of an iteration, which no rule tells apart from the others. Here
one op moves at a time (`moves.py`), which costs as much as it changes, so that a second is enough for a
million tries.

Pools open when they do in the shortest times of the order that a run begins with. Runs differ in what they
aim at and in how much later orders may become in between. While runs get nearer to what is asked for, more of
them follow.
"""

from typing import NamedTuple

import numpy as np

from recycle_compiler.scheduling.budget import Budget, Goal, Noise, Visits
from recycle_compiler.scheduling.loops import MoveBudget, Searching
from recycle_compiler.scheduling.problem import Ints
from recycle_compiler.scheduling.timing import Clock, Timed


class _Kind(NamedTuple):
    """Of a run."""

    aim: int
    """In percent of the way from what is aimed at to what is enough."""
    warmth: int
    """Lateness over the best orders that is kept at first, in percent of a mean op."""


_KINDS = (_Kind(50, 30), _Kind(50, 100), _Kind(100, 300))
_LEAST_TIMED = 300_000
"""Ops that are timed in a run of a plan that is not large."""
_TIMED = 5
"""Ops that are timed in a run of a large plan, for each of its ops."""
_MOST_RUNS = 6
_GAIN = 20
"""More runs follow while all of one kind together get nearer by one part in so many."""
_IDLE = 100_000
"""Moves after the best order, which are taken back at the end."""


def reorder(clock: Clock, order: Ints, goal: Goal, noise: Noise, budget: Budget) -> Timed:
    """The shortest times that were found for the order, or for one that comes of moving its ops."""
    current = best = _timed(clock, order)
    if clock.loops.has_more_edges or not budget.has("moves"):
        return best
    mean = max(1, int(clock.loops.duration.mean()))
    most = max(_LEAST_TIMED, _TIMED * clock.problem.ops)
    before = 0
    for run in range(_MOST_RUNS):
        if best.period <= goal.enough or budget.is_spent():
            break
        kind = _KINDS[run % len(_KINDS)]
        aim = goal.aim + (goal.enough - goal.aim) * kind.aim // 100
        moving = MoveBudget(
            most, goal.enough - aim, mean * kind.warmth // 100, _IDLE, seed=noise.below(1 << 30)
        )
        release = np.array(current.release, dtype=np.int64)
        moved, late, timed = clock.loops.moved(
            current.order, release, clock.deadlines_of(current, aim), moving
        )
        budget.spend(Visits.MOVE * timed + Visits.SHORTEN * clock.problem.ops)
        current = _timed(clock, moved)
        best = min(best, current, key=lambda timed: timed.rank)
        if run % len(_KINDS) == 0:
            if run and late > before - before // _GAIN:
                break
            before = late
    return best


_SEARCHED = 2_000
"""Ops that are timed in a tabu search, for each op of the plan."""
_MOST_SEARCHED = 5_000_000
"""Ops that are timed in a tabu search at most, in all."""
_SEARCHED_IN_LARGE = 400
"""Ops that are timed in a tabu search at least, for each op of a large plan."""
_MOST_SEARCHES = 6
_WAYS = (Searching(0, 0), Searching(0, 0, reach=12, sample=100, tenure=15))
_WAYS_IN_LARGE = tuple(
    Searching(0, 0, reach=12, sample=sample, tenure=tenure)
    for sample, tenure in ((100, 15), (200, 15), (100, 30))
)


def search_at_length(clock: Clock, timed: Timed, goal: Goal, noise: Noise, budget: Budget) -> Timed:
    """The best of a few tabu searches, each from the best of those before it, until no way helps."""
    best = timed
    ops = clock.problem.ops
    if not budget.has("tabu"):
        return best
    most, ways = min(_MOST_SEARCHED, _SEARCHED * ops), _WAYS
    if most < _SEARCHED_IN_LARGE * ops:
        most, ways = _SEARCHED_IN_LARGE * ops, _WAYS_IN_LARGE
    idle = 0
    for run in range(_MOST_SEARCHES):
        if best.period <= goal.enough or budget.is_spent() or idle == len(ways):
            break
        slack, seed = goal.enough - goal.aim, noise.below(1 << 30)
        way = ways[run % len(ways)]._replace(budget=most, slack=slack, seed=seed)
        release = np.array(best.release, dtype=np.int64)
        order, _, visited = clock.loops.searched(best.order, release, clock.deadlines_of(best, goal.aim), way)
        budget.spend(Visits.MOVE * visited + Visits.SHORTEN * clock.problem.ops)
        found = _timed(clock, order)
        idle = 0 if found.period < best.period else idle + 1
        best = min(best, found, key=lambda each: each.rank)
    return best


def _timed(clock: Clock, order: Ints) -> Timed:
    timed = clock.time(order)
    assert timed is not None, "the orders of some workers wait for each other"
    return timed
