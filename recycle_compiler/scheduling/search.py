"""The search for a schedule: in which order its methods are tried, and how much work goes into each.

Greedy schedules come first (many rules for a small plan, one well-tuned rule for a large one), then a short
search around the best of them, and in a small plan a wide one. When none meets the bound, a MILP raises the
bound and looks for a schedule that meets it, if the job is small enough; otherwise, or if that gives up, the
search goes on. Effort is counted in moves and solver work, so the same job gives the same plan on any
machine; the time limit is a guard on top and is reported when it strikes.
"""

from dataclasses import dataclass, field, replace

from recycle_compiler.ir.job import SolverOptions
from recycle_compiler.scheduling.bounds import Bound, lower_bound
from recycle_compiler.scheduling.budget import Budget, Goal, Noise, Sizes
from recycle_compiler.scheduling.local_search import Width, can_exchange, construct, improve
from recycle_compiler.scheduling.milp.coarse import raised_in_steps
from recycle_compiler.scheduling.milp.exact import is_small, settle
from recycle_compiler.scheduling.order_search import search_at_length
from recycle_compiler.scheduling.problem import Problem, chunk_grain, rerouted
from recycle_compiler.scheduling.routes import extras_apart, kept_at_home
from recycle_compiler.scheduling.schedules import SearchedPlan
from recycle_compiler.scheduling.timing import Clock, Proposal, Timed
from recycle_compiler.scheduling.tuning import Tuning, tune, tune_elsewhere

_LITTLE = 500
"""Inverse share: a period above what is enough by less than this share is nearly good enough."""
_MUCH = 50
"""Inverse share: a period above what is enough by more than this share is far from good enough."""
_SOON = (30, 60)
"""Tries of the wide search that come before the MILP, on the usual routes and with others."""
_RELAXED = 60_000_000
"""Visits, beside all others, to raise the bound of a large plan that is not good enough."""
_WORK_TOGETHER = 3_600_000_000
"""Visits that all plans of a job may need together if none is good enough sooner."""
_LEAST_WORK = 20_000_000
"""Visits that each plan may need at least, however many share the work."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Limits of the work on one plan, in units that do not depend on the machine."""

    rules: int = 48
    """Of the grid for small plans."""
    settings: int = 12
    """Tried first while a rule is tuned for a large plan."""
    rounds: int = 6
    """Of changes and exchanges after that."""
    changes: int = 100
    """Tried in a round, on some stages at a time."""
    exchanges: int = 96
    """Orders tried at the end of a round, by swapping neighbours."""
    rerouted_ops: int = 30_000
    """Up to so many, rounds with other routes follow."""
    searched_ops: int = 10_000
    """Up to so many, a tabu search follows where they are not good enough; where a plan need not meet its
    bound, up to twice as many if it is nearly good enough, and three times as many if it is far from it."""
    op_moves: int = 90_000
    """Moves of the search times ops per move, for plans whose loops are not compiled."""
    compiled_op_moves: int = 600_000
    most_moves: int = 600
    most_ops: int = Sizes.LARGE
    """In larger plans this search finds nothing that tuning has not found sooner; exchanges replace it."""
    exact: bool = True
    """True if the MILP may be used."""
    wide: bool = True
    """True if tries of small plans go on by tabu searches; that loads the compiler of loops."""
    other_routes: bool = True
    """True if micro-batches may have other routes than those of the graph."""
    extras_apart: bool = False
    """True if these are routes on which other workers of each stage have one more than their peers."""
    without: frozenset[str] = field(default=frozenset(), compare=False)
    """Proposers that are left out (`bench.ablation_search` measures what each is worth): no part of the text
    of a pass."""
    work: int = 1_500_000_000
    """Visits (`budget.py`) after which the search ends, whatever else is left: about a minute where loops are
    compiled. Most plans end long before."""
    placements: int = 2
    """Ways to place failures on stages that are tried with a quick plan each."""

    def shared(self, plans: int) -> "Effort":
        """For one of so many plans that are made together."""
        return replace(self, work=min(self.work, max(_LEAST_WORK, _WORK_TOGETHER // plans)))

    def brief(self) -> "Effort":
        """For a plan that another will most likely replace."""
        return replace(self, rounds=1, changes=50)

    def prompt(self) -> "Effort":
        """For a plan that a job waits for: a large one is hardly tuned."""
        return replace(self, settings=6, rounds=1, changes=0, exchanges=16)

    def quick(self) -> "Effort":
        """Enough to compare placements."""
        return replace(
            self,
            rules=self.rules // 3,
            settings=6,
            rounds=0,
            op_moves=self.op_moves // 10,
            compiled_op_moves=self.compiled_op_moves // 10,
            most_moves=self.most_moves // 10,
            exact=False,
            wide=False,
        )

    def least(self) -> "Effort":
        """Enough to rank the stages."""
        return replace(
            self,
            rules=3,
            settings=1,
            rounds=0,
            op_moves=self.op_moves // 10,
            compiled_op_moves=0,
            most_moves=30,
            exact=False,
            wide=False,
        )

    @property
    def tuning(self) -> Tuning:
        return Tuning(self.settings, self.rounds, self.changes, self.exchanges, self.other_routes)

    def moves(self, problem: Problem) -> int:
        if problem.ops > self.most_ops:
            return 0
        budget = self.compiled_op_moves if problem.ops >= Sizes.COMPILED else self.op_moves
        return min(self.most_moves, budget // problem.ops)


def plan_slowed(
    problem: Problem, late: Problem, options: SolverOptions, effort: Effort, budget: Budget
) -> SearchedPlan:
    """The order that is best with slow workers, with the times and the bound that hold without them."""
    bound = lower_bound(problem)
    load = problem.load
    if not load[list(late.slow)].any():
        # Workers without micro-batches are planned as failed: plans for failures are the better ones.
        working = tuple(tuple(worker for worker in hosts if load[worker]) for hosts in problem.hosts)
        found = plan(rerouted(problem, working, problem.host), options, effort, budget)
        return SearchedPlan(found.timed, bound, budget.was_cut, found.host)
    timed = Clock(problem).time(slow_order(late, options, effort, budget).order)
    assert timed is not None
    return SearchedPlan(timed, bound, budget.was_cut)


def slow_order(late: Problem, options: SolverOptions, effort: Effort, budget: Budget) -> Timed:
    """The best order with the times of slow workers, and these times."""
    floor = Clock(late).floor
    if not late.has_faster:
        # Where no worker is faster than the job says, its own bound holds too.
        floor = max(floor, lower_bound(replace(late, grain=chunk_grain(late))).period)
    return plan(late, options, replace(effort, exact=False), budget, Bound(floor, "slow workers")).timed


def plan(
    problem: Problem,
    options: SolverOptions,
    effort: Effort,
    budget: Budget,
    known: Bound | None = None,
) -> SearchedPlan:
    """The best times found, with their bound."""
    bound = known or lower_bound(problem)
    good_enough = _with_gap(bound, options)
    given = problem
    if effort.extras_apart and effort.other_routes:
        problem = extras_apart(given) or given
    clock, noise = Clock(problem), Noise(options.seed)
    if problem.ops < Sizes.COMPILED:
        best = Proposal(clock, construct(clock, good_enough, effort.rules, budget)[0])
    else:
        goal = Goal(good_enough, (bound.period + good_enough) // 2)
        best = tune(clock, goal, effort.tuning, noise, budget)
        if best.timed.period > good_enough and effort.exact and budget.has("relaxation"):
            bound = raised_in_steps(problem, bound, best.timed.period, budget.beside(_RELAXED))
            good_enough = _with_gap(bound, options)
            goal = Goal(good_enough, (bound.period + good_enough) // 2)
        best = _elsewhere(best, goal, effort, Noise(options.seed), budget)
        best = _at_length(best, goal, effort, Noise(options.seed), budget)
    clock = best.clock
    # A short search often does, a wide one mostly; the MILP is for what is left, and a longer one after it.
    few = effort.quick().moves(problem)
    left = effort.moves(problem) - few
    best = improve(best, good_enough, few, noise, budget)
    # Large plans have had tabu searches and other routes.
    is_wide = effort.wide and problem.ops < Sizes.COMPILED and budget.has("tabu")
    is_wide = is_wide and not clock.loops.has_more_edges
    may_reroute = effort.other_routes and budget.has("routes") and can_exchange(problem)
    if is_wide and effort.rounds == 0:
        best = _improved_widely(best, good_enough, left // 3, noise, budget, may_reroute=may_reroute)
        left = 0
    elif is_wide:
        best = _improved_widely(best, good_enough, _SOON[0], noise, budget)
        best = _improved_widely(best, good_enough, _SOON[1], noise, budget, may_reroute=may_reroute)
    if (
        best.timed.period > good_enough
        and effort.exact
        and budget.has("milp")
        and is_small(clock, best.timed.period)
        and not budget.is_spent()
    ):
        bound, best = settle(clock, bound, best, good_enough, budget)
        good_enough = _with_gap(bound, options)
    if is_wide:
        best = _improved_widely(best, good_enough, left, noise, budget, may_reroute=may_reroute)
    else:
        best = improve(best, good_enough, left, noise, budget)
    host = None if best.clock.problem is given else best.clock.problem.host
    return SearchedPlan(best.timed, bound, budget.was_cut and best.timed.period > good_enough, host)


def _improved_widely(
    best: Proposal, enough: int, moves: int, noise: Noise, budget: Budget, *, may_reroute: bool = False
) -> Proposal:
    """Tries with tabu searches, and with other routes if it may."""
    if best.timed.period <= enough:
        return best
    compiled = best._replace(clock=Clock(best.clock.problem, compiled=True))
    return improve(compiled, enough, moves, noise, budget, Width(True, may_reroute))


def _elsewhere(best: Proposal, goal: Goal, effort: Effort, noise: Noise, budget: Budget) -> Proposal:
    """The best schedule on other routes, where that is shorter; otherwise the given one."""
    clock, period = best.clock, best.timed.period
    is_due = effort.rounds > 1 and clock.problem.ops <= effort.rerouted_ops and period > goal.enough
    may_reroute = is_due and effort.other_routes and budget.has("routes") and not budget.is_spent()
    problem = kept_at_home(clock.problem) if may_reroute else None
    if problem is None:
        return best
    other = Clock(problem)
    found = tune_elsewhere(clock, other, goal, effort.tuning, noise, budget)
    return best if found is None or found.period >= period else Proposal(other, found)


def _at_length(best: Proposal, goal: Goal, effort: Effort, noise: Noise, budget: Budget) -> Proposal:
    """Schedule after a tabu search from the best one; for plans that are neither good enough nor large."""
    clock, timed = best
    most = effort.searched_ops * _times_as_large(timed.period - goal.enough, goal)
    is_due = effort.rounds > 1 and clock.problem.ops <= most
    if not is_due or clock.loops.has_more_edges or budget.is_spent():
        return best
    return Proposal(clock, search_at_length(clock, timed, goal, noise, budget))


def _times_as_large(missing: int, goal: Goal) -> int:
    """Factor on `searched_ops` for plans that miss what is enough by so much."""
    is_little = missing <= goal.enough // _LITTLE
    if missing <= 0 or goal.enough == goal.aim:
        return 0 if is_little else 1
    if is_little:
        return 2
    return 3 if missing > goal.enough // _MUCH else 1


def _with_gap(bound: Bound, options: SolverOptions) -> int:
    return bound.period + bound.period * options.gap_ppm // 1_000_000
