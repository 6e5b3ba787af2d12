"""The MILP where it is small enough: raise the bound, and look for a schedule that meets it.

The relaxation that ignores routing refutes periods for every routing, so what it refutes raises the bound.
The model with the given routing then looks for a schedule at the raised bound, once more with another routing
where it proves that the given one has none, and halfway to the best known one at last.
"""

from typing import NamedTuple

from recycle_compiler.scheduling.bounds import Bound
from recycle_compiler.scheduling.budget import Budget
from recycle_compiler.scheduling.milp.groups import groups_by_route, lay_out_groups
from recycle_compiler.scheduling.milp.paired_routes import paired
from recycle_compiler.scheduling.problem import Ints
from recycle_compiler.scheduling.timing import Clock, Proposal

LARGEST = 8_000
"""Columns of the model up to which it is stated."""
_TRIES = 5
_WORK = 600_000_000
"""Visits for all of it, about fifteen seconds: half of them at most for one try."""
_WORTH = 10_000_000
"""Visits without which no further try is begun: stating the model costs as much."""


def is_small(clock: Clock, period: int) -> bool:
    """True if the model for this period can be solved in about a second."""
    problem = clock.problem
    if not problem.is_uniform or problem.pools < problem.chunks or problem.is_tied:
        # The model counts micro-batches of a chunk, so it cannot tell one of them from another: an edge
        # between two of them, or an op with a time of its own, has no place in it. Nor have two chunks on
        # one worker, nor chunks that reduce together: it knows the workers of each chunk for themselves.
        return False
    groups = groups_by_route(problem)
    layout = lay_out_groups(problem, groups, period // problem.grain)
    return layout.counts * len(groups.units) <= LARGEST


class ExactResult(NamedTuple):
    """Bound and schedule at the end of the search."""

    bound: Bound
    best: Proposal


def settle(clock: Clock, bound: Bound, best: Proposal, good_enough: int, budget: Budget) -> ExactResult:
    """A bound and a schedule at least as good as the given ones; equal in period as a rule."""
    # Loading Pyomo and HiGHS takes longer than planning most small jobs without them.
    from recycle_compiler.scheduling.milp.solve import Limits, Stop, raise_bound, solve

    problem = clock.problem
    work = budget.part(_WORK)
    few = Limits(counts=LARGEST, relaxations=30, iterations=8_000)
    more = Limits(counts=LARGEST, relaxations=150, iterations=16_000)

    target = good_enough // problem.grain * problem.grain
    for trial in range(_TRIES):
        if target >= best.timed.period or work.left < _WORTH or work.is_spent():
            break
        outcome = solve(problem, target, more, work.part(_WORK // 2))
        if outcome.start is not None:
            return ExactResult(bound, _timed(clock, outcome.start, target))
        if trial == 0:
            # Nothing meets the bound with this routing; perhaps nothing does with any.
            raised = raise_bound(problem, bound.period, best.timed.period, few, work)
            bound = Bound(raised, "all stages together") if raised > bound.period else bound
            other = paired(problem) if outcome.stop is Stop.REFUTED and raised <= target else None
            start = None if other is None else solve(other, target, more, work.part(_WORK // 2)).start
            if other is not None and start is not None:
                return ExactResult(bound, _timed(Clock(other), start, target))
            target = max(raised, target + problem.grain)
        else:
            target += max(1, (best.timed.period - target) // (2 * problem.grain)) * problem.grain
    return ExactResult(bound, best)


def _timed(clock: Clock, start: Ints, target: int) -> Proposal:
    timed = clock.time(clock.order_of(start), target)
    assert timed is not None, "the MILP found a schedule that misses its target"
    return Proposal(clock, timed)
