"""Compiling whole jobs, and what happens when a pass breaks."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from recycle_compiler.ir.failure import FailureSet, failure_set
from recycle_compiler.ir.job import JobSpec, SolverOptions
from recycle_compiler.ir.streams import Streams
from recycle_compiler.planner import compile as compiler
from recycle_compiler.planner.baselines import one_f_one_b_period
from recycle_compiler.planner.compile import NoPlanError, PlanSummary, compile_job, plan_count, plan_failed
from recycle_compiler.planner.placement import measure_costs
from recycle_compiler.scheduling.budget import Guard
from recycle_compiler.scheduling.search import Effort
from tests.support.jobs import ALL, SLOT, figure3, unit_job
from tests.support.layers import layer_costs, layered_job


def test_one_plan_per_number_of_failures() -> None:
    seen: list[tuple[PlanSummary, int, int]] = []
    programs = compile_job(
        unit_job(2, 2, 2),
        failures=2,
        on_plan=lambda summary, done, total: seen.append((summary, done, total)),
    )
    assert [len(program.failed) for program in programs] == [0, 1, 2]
    assert [(summary.failures, done, total) for summary, done, total in seen] == [
        (2, 1, 3),
        (1, 2, 3),
        (0, 3, 3),
    ]
    assert all(summary.period >= summary.lower_bound for summary, _, _ in seen)


def test_more_failures_than_peers_have_no_plan() -> None:
    with pytest.raises(NoPlanError, match="3 failures cannot be survived"):
        compile_job(unit_job(2, 2, 2), failures=3)
    with pytest.raises(NoPlanError, match="stage 1 has no live worker"):
        plan_failed(unit_job(2, 2, 2), failure_set([(0, 1), (1, 1)]))


def test_without_adaptive_failed_pipelines_are_shared_by_all_stages() -> None:
    job = replace(figure3(None), techniques=replace(ALL, adaptive=False))
    program = compile_job(job, failures=4)[4]
    assert program.claims.period == plan_failed(job, failure_set([(0, 0)])).claims.period
    with pytest.raises(NoPlanError):
        compile_job(job, failures=9)


def test_1f1b_of_the_running_example() -> None:
    assert one_f_one_b_period(figure3((4, 3, 2, 1))) == 30 * SLOT
    assert one_f_one_b_period(figure3(None)) == 30 * SLOT


def test_a_time_limit_cuts_the_search_short_and_leaves_a_valid_plan() -> None:
    job = replace(figure3(4), solver=SolverOptions(time_limit_ns=1))
    program = plan_failed(job, failure_set([(1, 2)]))
    assert program.claims.cut_short
    assert program.claims.period > program.claims.lower_bound
    assert not list(program.verify())


def test_a_large_plan_of_the_own_cut_gets_less_work_where_another_is_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    efforts: list[Effort] = []

    def planned(job: JobSpec, failed: FailureSet, observers: Any, effort: Effort, guard: Any) -> Streams:
        efforts.append(effort)
        return plan_failed(job, failed, observers, effort, guard)

    monkeypatch.setattr(compiler, "plan_failed", planned)
    uneven = layered_job(layer_costs((1000, 1000, 1000, 6000)), (2, 2), pipelines=4, microbatches=4)
    even = layered_job(layer_costs((1000,) * 4), (2, 2), pipelines=4, microbatches=4)
    for job, large, expected in (
        (uneven, 0, Effort().brief()),
        (uneven, 20_000, Effort()),
        (even, 0, Effort()),
    ):
        monkeypatch.setattr(compiler, "Sizes", SimpleNamespace(LARGE=large))
        costs = measure_costs(job, 1, map, Guard(10**15))
        for recut in (True, False):
            efforts.clear()
            plan_count(job, 1, costs, Guard(10**15), recut=recut)
            assert set(efforts) == {expected if recut else Effort()}
