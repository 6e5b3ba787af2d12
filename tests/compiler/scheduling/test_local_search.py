"""The wide search of small plans: tabu searches and other routes."""

from dataclasses import replace

import pytest

from bench.reference.random_jobs import small_job
from recycle_compiler.ir.failure import normal_form
from recycle_compiler.ir.job import SolverOptions
from recycle_compiler.ir.streams import Streams
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.budget import Budget
from recycle_compiler.scheduling.problem import Problem
from recycle_compiler.scheduling.schedules import SearchedPlan
from recycle_compiler.scheduling.search import Effort, plan


def planned(number: int, effort: Effort, *, adaptive: bool = True) -> Streams:
    """A small random job, planned without the MILP."""
    job, failed = small_job(number)
    job = replace(job, techniques=replace(job.techniques, adaptive=adaptive))
    return plan_failed(job, normal_form(failed, job.pipelines), effort=replace(effort, exact=False))


def test_tabu_searches_and_other_routes_find_what_tries_alone_do_not() -> None:
    narrow = planned(138, replace(Effort(), without=frozenset({"tabu"})))
    wide = planned(138, Effort())
    assert wide.claims.period == wide.claims.lower_bound < narrow.claims.period


def test_pipelines_that_do_not_adapt_keep_their_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def spy(problem: Problem, options: SolverOptions, effort: Effort, budget: Budget) -> SearchedPlan:
        asked.append(effort.other_routes)
        return plan(problem, options, effort, budget)

    monkeypatch.setattr("recycle_compiler.passes.assign_slots.plan", spy)
    for adaptive in (True, False):
        planned(138, Effort(), adaptive=adaptive)
    assert asked == [True, False]
