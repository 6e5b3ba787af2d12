"""The bound of all stages together for large plans: the same relaxation, with times in whole steps.

Where stages are alike, all of them are busy all of the time, and what each loses adds up: bounds of one
stage know nothing of it, and the relaxation of the MILP does. Its size grows with the time in grains, which
are fine where times were measured. So times are counted in steps that divide them well, and rounded down:

    F 37, B 37, W 37, transfer 1, step 37    F 1, B 1, W 1, transfer 0: 711 columns in place of 27,306

No period is refuted wrongly. In any schedule, let ops, transfers and reductions take as long as they do in
steps, which is no longer, and let each start at the last whole step before its start. What comes after
something in that worker's order, or of that micro-batch, still comes after it: both starts have been rounded
down, and what lies between them is whole. Memory is held no longer. So a schedule in steps exists:

- behind one barrier, where all is counted from the first start, with no more steps than fit in the makespan;
- staggered, where a window may open up to a step sooner than it did but closes no later, with at most that
  many steps rounded up.

A period is raised only by what exact integers refute (`certificate.py`). If rounding takes too much, other
bounds say more, and no program is solved.
"""

from dataclasses import replace
from typing import NamedTuple

from recycle_compiler.scheduling.bounds import Bound, lower_bound
from recycle_compiler.scheduling.budget import Budget
from recycle_compiler.scheduling.milp.groups import lay_out_groups, pooled_group
from recycle_compiler.scheduling.problem import Problem

_PARTS = (1, 2, 3)
"""A step is the shortest op or a part of it."""
_LARGEST = 3_000
"""Columns of the relaxation up to which it is stated: with more it takes seconds."""
_LOST = 50
"""Inverse share: rounding that takes more of the bound takes more than the relaxation adds."""
_ITERATIONS = 8_000
"""Of the simplex method, for one period."""


class InSteps(NamedTuple):
    """A problem whose times are whole steps."""

    problem: Problem
    step: int
    """In ticks."""
    apart: int
    """Ticks of the period that are not counted in steps: all reduce and step for so long."""
    rounded_up: bool
    """A period takes its steps rounded up, not down."""

    def period(self, steps: int) -> int:
        """The least period in ticks of a schedule that takes so many steps."""
        return self.apart + (steps * self.step if not self.rounded_up else (steps - 1) * self.step + 1)

    def steps(self, period: int) -> int:
        """Steps that do for a schedule of this period."""
        ticks = period - self.apart
        return -(-ticks // self.step) if self.rounded_up else ticks // self.step

    def columns(self, period: int) -> int:
        """Columns of the relaxation for a period."""
        return lay_out_groups(self.problem, pooled_group(self.problem), self.steps(period)).counts


def in_steps(problem: Problem, step: int) -> InSteps:
    """All times rounded down, to at least one step for every op."""
    apart = min(problem.finish) if problem.staggered else problem.closing
    finish = tuple((ticks - apart) // step if problem.staggered else 0 for ticks in problem.finish)

    def rounded(times: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(ticks // step for ticks in times)

    coarse = replace(
        problem,
        forward=rounded(problem.forward),
        backward=rounded(problem.backward),
        weight=rounded(problem.weight),
        transfer=rounded(problem.transfer),
        finish=finish,
        grain=1,
    )
    return InSteps(coarse, step, apart, problem.staggered)


def raised_in_steps(problem: Problem, bound: Bound, period: int, budget: Budget) -> Bound:
    """The bound, or a higher one up to a period that is reached."""
    if not problem.is_uniform or problem.pools < problem.chunks or problem.is_tied or problem.meets:
        return bound
    ops = zip(problem.forward, problem.backward, problem.split, problem.weight, strict=True)
    shortest = min(min(f, b, w if split else f) for f, b, split, w in ops)
    tried = (in_steps(problem, shortest // part) for part in _PARTS if shortest >= part)
    found = [
        (coarse.period(lower_bound(coarse.problem).period), coarse)
        for coarse in tried
        if coarse.columns(period) <= _LARGEST
    ]
    known, coarse = max(found, key=lambda entry: entry[0], default=(0, None))
    if coarse is None or known < bound.period - bound.period // _LOST:
        return bound
    # Loading Pyomo and HiGHS takes longer than planning most jobs without them.
    from recycle_compiler.scheduling.milp.solve import Limits, raise_bound

    limits = Limits(counts=_LARGEST, relaxations=1, iterations=_ITERATIONS)
    least = coarse.steps(bound.period)
    steps = raise_bound(coarse.problem, least, coarse.steps(period), limits, budget)
    raised = coarse.period(steps)
    raised = -(-raised // problem.grain) * problem.grain
    return Bound(raised, "all stages together") if raised > bound.period else bound
