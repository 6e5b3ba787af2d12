"""Schedules of a small plan: many greedy ones, then a search around the best of them.

First schedules come from list scheduling by a greedy rule, with a grid of settings. The search schedules
again with a schedule's own times as priorities, some of them disturbed. Ops keep about the order they had, so
most of a good schedule survives; what is disturbed settles where it fits. Priorities are the starts, the
latest starts at which the period would still hold (ops with slack then give way to critical ones), or their
mean. Equal schedules are accepted, so the search can cross plateaus.

A wide search goes on from each of these by a short tabu search, and gives every second one other routes: some
micro-batches of two workers of a stage change places. Nobody has more to do than before, but the worker that
a micro-batch comes from is another, and so is the one it goes to; no order makes up for these.
"""

from typing import NamedTuple

import numpy as np

from recycle_compiler.scheduling.budget import Budget, Noise, Visits
from recycle_compiler.scheduling.loops import Searching
from recycle_compiler.scheduling.problem import Ints, Problem, rerouted
from recycle_compiler.scheduling.rules import free_rule, greedy_priority, small_rules
from recycle_compiler.scheduling.timing import Clock, Proposal, Timed


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
_PATIENCE = 25
"""Moves without a better schedule before the search goes back to the best."""
_ODDS = 20
"""One of so many schedules is changed next though it is worse."""
_PATIENCES = (0, 50, 100, 300)
"""Of the list scheduler, in percent of an op."""
_REACHES = (5, 16, 32, 64)
"""Largest disturbances of op times, in sixteenths of a mean op."""
_TABU = Searching(20_000, 0, reach=12, sample=100, tenure=15)
_MOST_EXCHANGED = 3
"""Pairs of micro-batches that change their workers at once."""


class Width(NamedTuple):
    """Parts of a move beside disturbed times."""

    tabu: bool = False
    routes: bool = False
    """Other routes are taken for a shorter period only."""


_NARROW = Width()


def improve(
    start: Proposal, bound: int, moves: int, noise: Noise, budget: Budget, width: Width = _NARROW
) -> Proposal:
    """The best schedule found in `moves` tries, or before time is out."""
    best = current = start
    idle_moves = 0
    for number in range(moves if budget.has("disturbed times") else 0):
        if best.timed.period <= bound or budget.is_spent():
            break
        if width.tabu and idle_moves > _PATIENCE:
            current, idle_moves = best, 0
        idle_moves += 1
        clock = _on_other_routes(current.clock, noise) if width.routes and number % 2 else current.clock
        at_most = None if width.tabu else current.timed.period
        budget.spend((Visits.RULE + Visits.SHORTEN) * clock.problem.ops)
        after = _move(clock, current, noise, at_most)
        if after is not None and width.tabu:
            after = min(after, _searched(clock, after, best.timed.period, noise, budget), key=_rank)
        if after is None:
            continue
        if after.rank <= current.timed.rank or (width.tabu and noise.below(_ODDS) == 0):
            current = Proposal(clock, after)
        has_same_routes = clock.problem is best.clock.problem
        if after.period < best.timed.period or (has_same_routes and after.rank < best.timed.rank):
            best, idle_moves = Proposal(clock, after), 0
    return best


def _rank(timed: Timed) -> tuple[int, int]:
    return timed.rank


def _searched(clock: Clock, timed: Timed, known: int, noise: Noise, budget: Budget) -> Timed:
    """Schedule that a tabu search for less than a known period makes of another."""
    deadlines = clock.deadlines_of(timed, known - clock.problem.grain)
    release = np.array(timed.release, dtype=np.int64)
    way = _TABU._replace(seed=noise.below(1 << 30))
    order, _, visited = clock.loops.searched(timed.order, release, deadlines, way)
    budget.spend(Visits.MOVE * visited + Visits.SHORTEN * clock.problem.ops)
    found = clock.time(order)
    assert found is not None, "the orders of some workers wait for each other"
    return found


def can_exchange(problem: Problem) -> bool:
    """True if any worker of a stage may run any of its micro-batches, and some stage has two workers."""
    is_free = not problem.slow and not problem.has_more_edges and problem.pools == problem.chunks
    return is_free and max(map(len, problem.hosts)) > 1


def _on_other_routes(clock: Clock, noise: Noise) -> Clock:
    """Some pairs of micro-batches that run on two workers of a stage change these."""
    problem = clock.problem
    host = problem.host.copy()
    shared = [chunk for chunk, workers in enumerate(problem.hosts) if len(workers) > 1]
    for _ in range(1 + noise.below(_MOST_EXCHANGED)):
        chunk, unit = shared[noise.below(len(shared))], noise.below(problem.units)
        away = np.flatnonzero(host[:, chunk] != host[unit, chunk])
        if len(away):
            other = away[noise.below(len(away))]
            host[[unit, other], chunk] = host[[other, unit], chunk]
    return Clock(rerouted(problem, problem.hosts, host), compiled=True)


def _move(clock: Clock, current: Proposal, noise: Noise, at_most: int | None) -> Timed | None:
    problem = clock.problem
    base = _base(*current, noise.below(4))
    mean = int(clock.loops.duration.mean()) + 1
    reach = _REACHES[noise.below(4)] * mean * _FINE // 16
    disturbed = noise.integers(100, base.size) < _SHARES[noise.below(4)]
    shift = np.where(disturbed, noise.integers(2 * reach + 1, base.size) - reach, 0)
    priority = base + shift.reshape(base.shape)
    priority -= priority.min()
    rule = free_rule(problem, _PATIENCES[noise.below(4)])
    order = clock.loops.place(priority, rule)
    return None if order is None else clock.time(order, at_most)


def _base(clock: Clock, current: Timed, choice: int) -> Ints:
    start = np.where(current.start >= 0, current.start, 0) * _FINE
    if choice == 0:
        return start
    late = np.where(current.start >= 0, clock.latest(current), 0) * _FINE
    return (start + late) // 2 if choice == 1 else late
