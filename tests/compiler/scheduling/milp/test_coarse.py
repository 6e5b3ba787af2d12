"""The relaxation in whole steps: valid for jobs whose optimum is known, and worth something for large ones."""

from itertools import islice
from pathlib import Path

import pytest

from bench.reference.optima import Optimum, load_optima
from recycle_compiler.ir.failure import normal_form
from recycle_compiler.ir.job import Techniques
from recycle_compiler.scheduling.bounds import Bound, lower_bound
from recycle_compiler.scheduling.budget import Budget, Guard
from recycle_compiler.scheduling.milp.coarse import in_steps, raised_in_steps
from recycle_compiler.scheduling.milp.solve import Limits, raise_bound
from recycle_compiler.scheduling.problem import Problem
from tests.support.jobs import SLOT, routed_problem, unit_job

DATA = Path(__file__).resolve().parents[3] / "data"
AMPLE = Budget(Guard(10**15))
LIMITS = Limits()
STEPS = (SLOT, SLOT * 3 // 4, SLOT * 5 // 8, SLOT * 2 // 5)
"""Some that divide times, and others: all of them lose something."""


def raised(problem: Problem, step: int, period: int) -> int:
    coarse = in_steps(problem, step)
    return coarse.period(raise_bound(coarse.problem, 0, coarse.steps(period), LIMITS, AMPLE))


def entries(file: str) -> list[Optimum]:
    return [entry for entry in islice(load_optima(DATA / file), 160) if entry.best <= 24 * SLOT]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("file", ["optima.jsonl", "optima-tight.jsonl"])
def test_no_period_that_is_reached_is_refuted(file: str, step: int) -> None:
    found = entries(file)
    assert len(found) > 20
    for entry in found:
        problem = routed_problem(entry.job, normal_form(entry.failed_per_stage, entry.job.pipelines))
        # A period well above the best one, so that nothing but refutations ends the search.
        assert raised(problem, step, 2 * entry.best) <= entry.best, entry.seed
        bound = raised_in_steps(problem, Bound(0, "nothing"), entry.best, AMPLE)
        assert bound.period <= entry.best, entry.seed


def test_steps_that_divide_all_times_lose_nothing_behind_one_barrier() -> None:
    job = unit_job(3, 2, 4, 3, Techniques(stagger=False))
    problem = routed_problem(job, normal_form((0, 1, 0), 2))
    exact = raise_bound(problem, 0, 60 * SLOT, LIMITS, AMPLE)
    assert raised(problem, SLOT, 60 * SLOT) == exact
    assert raised(problem, SLOT // 2, 60 * SLOT) == exact


def test_stages_that_are_all_busy_raise_the_bound_of_a_large_job() -> None:
    job = unit_job(9, 41, 11, 13, Techniques(stagger=False))
    problem = routed_problem(job, normal_form((3, 5, 7, 6, 6, 6, 6, 4, 3), 41))
    bound = lower_bound(problem)
    found = raised_in_steps(problem, bound, bound.period * 11 // 10, AMPLE)
    assert bound.period < found.period <= bound.period * 11 // 10
    assert found.reason == "all stages together"
