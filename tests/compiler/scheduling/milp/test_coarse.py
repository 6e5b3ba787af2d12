"""The relaxation in whole steps: valid for jobs whose optimum is known, worth something for large ones."""

from itertools import islice
from pathlib import Path

import pytest

from bench.reference.optima import Optimum, load_optima
from recycle_compiler.ir.failure import normal_form
from recycle_compiler.ir.job import Techniques
from recycle_compiler.scheduling.bounds import lower_bound
from recycle_compiler.scheduling.budget import Budget, Guard
from recycle_compiler.scheduling.local_search import construct
from recycle_compiler.scheduling.milp.coarse import in_steps, raised_in_steps
from recycle_compiler.scheduling.milp.solve import Limits, Stop, raise_bound, relax
from recycle_compiler.scheduling.problem import Problem
from recycle_compiler.scheduling.timing import Clock
from tests.support.broken_rules import broken_rules
from tests.support.jobs import SLOT, routed_problem, unit_job

DATA = Path(__file__).resolve().parents[3] / "data"
AMPLE = Budget(Guard(10**15))
LIMITS = Limits()
STEPS = (SLOT * 3 // 4, SLOT * 2 // 5)
"""They divide no time, so all of them lose something."""


def raised(problem: Problem, step: int, period: int) -> int:
    coarse = in_steps(problem, step)
    return coarse.period(raise_bound(coarse.problem, 0, coarse.steps(period), LIMITS, AMPLE))


def entries(file: str) -> list[Optimum]:
    return [entry for entry in islice(load_optima(DATA / file), 100) if entry.best <= 30 * SLOT]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("file", ["optima.jsonl", "optima-tight.jsonl"])
def test_no_period_that_is_reached_is_refuted(file: str, step: int) -> None:
    found = entries(file)
    assert len(found) > 15
    for entry in found:
        problem = routed_problem(entry.job, normal_form(entry.failed_per_stage, entry.job.pipelines))
        # The best schedule takes no more steps, so as many are not refuted.
        coarse = in_steps(problem, step)
        outcome = relax(coarse.problem, coarse.steps(entry.best), LIMITS, AMPLE)
        assert outcome.stop is not Stop.REFUTED, entry.seed
        assert coarse.period(coarse.steps(entry.best)) <= entry.best


@pytest.mark.parametrize("step", STEPS)
def test_a_schedule_rounded_down_is_one_in_steps(step: int) -> None:
    """The proof, step by step, on schedules of many jobs: whoever starts late in a step still finds room."""
    for entry in islice(load_optima(DATA / "optima.jsonl"), 300):
        problem = routed_problem(entry.job, normal_form(entry.failed_per_stage, entry.job.pipelines))
        timed = construct(Clock(problem), 0, 1, AMPLE)[0]
        coarse = in_steps(problem, step)
        start = timed.start // step
        assert broken_rules(coarse.problem, start, coarse.steps(timed.period)) == [], entry.seed


def test_steps_that_divide_all_times_lose_nothing_behind_one_barrier() -> None:
    job = unit_job(3, 2, 4, 3, Techniques(stagger=False))
    problem = routed_problem(job, normal_form((0, 1, 0), 2))
    exact = raise_bound(problem, 0, 60 * SLOT, LIMITS, AMPLE)
    assert raised(problem, SLOT, 60 * SLOT) == exact
    assert raised(problem, SLOT // 2, 60 * SLOT) == exact


def test_stages_that_are_all_busy_raise_the_bound_of_a_large_job() -> None:
    job = unit_job(9, 41, 11, 13, Techniques(stagger=False))
    problem = routed_problem(job, normal_form((5, 6, 8, 6, 6, 6, 3, 3, 3), 41))
    bound = lower_bound(problem)
    found = raised_in_steps(problem, bound, bound.period * 11 // 10, AMPLE)
    assert bound.period < found.period <= bound.period * 11 // 10
    assert found.reason == "all stages together"
