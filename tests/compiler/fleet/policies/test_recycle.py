"""ReCycle as published: periods, and what changes cost."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.published_curve import FAULT_FREE, PUBLISHED, our_shares, recycle_shares
from recycle_compiler.fleet.policies.recycle import Recycle
from recycle_compiler.fleet.policy import Worker
from recycle_compiler.fleet.setting import ChangeCosts, Known, make_setting
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.planner.baselines import (
    best_placement,
    one_f_one_b_period,
    period_with,
    problem_with,
    spread,
)
from recycle_compiler.scheduling.bounds import lower_bound
from tests.compiler.fleet.policies.settings import comeback, failure, sized_job, unit_setting
from tests.support.jobs import unit_job

STEPS = (Techniques(True, False, False), Techniques(True, True, False), Techniques(True, True, True))
GIB = 1 << 30


def test_the_published_curve_is_met_within_three_points() -> None:
    shares = [value / FAULT_FREE for value in PUBLISHED]
    assert recycle_shares() == pytest.approx(shares, abs=0.03)


@pytest.mark.slow
def test_ours_is_at_or_above_the_published_techniques() -> None:
    assert all(mine >= theirs for mine, theirs in zip(our_shares(), recycle_shares(), strict=True))


@given(st.integers(0, 8))
def test_failures_are_spread_as_evenly_as_can_be(failures: int) -> None:
    for counts in spread(unit_job(4, 3, 6), failures):
        assert sum(counts) == failures
        assert max(counts) - min(counts) <= 1


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 6), st.sampled_from(STEPS), st.sampled_from((None, 4)))
def test_no_period_is_below_its_bound(failures: int, techniques: Techniques, capacity: int | None) -> None:
    job = unit_job(4, 3, 4, capacity)
    period, counts = best_placement(job, failures, techniques)
    assert period >= lower_bound(problem_with(job, counts, techniques)).period


def test_without_failures_it_is_one_f_one_b() -> None:
    job = unit_job(4, 3, 6, 4)
    assert best_placement(job, 0)[0] == one_f_one_b_period(job)


def test_the_running_example() -> None:
    """With everything on, a failure costs nothing. Re-routing alone takes 42 slots; 39 are possible."""
    assert best_placement(unit_job(4, 3, 6), 1)[0] == 30_000
    assert period_with(unit_job(4, 3, 6, (4, 3, 2, 1)), (0, 0, 1, 0), STEPS[0]) == 42_000


def test_a_failure_costs_half_an_iteration_and_a_comeback_a_copy() -> None:
    job = sized_job(4, 3, 30, 7)
    costs = ChangeCosts(copy_rate=GIB)
    policy = Recycle(make_setting(job, (), Known(costs=costs)))
    healthy = policy.begin(frozenset(), 0)
    failed = policy.react(failure(100, {(1, 1)}, {(1, 1)}))
    assert failed.redone == pytest.approx(0.5 / healthy)
    back = policy.react(comeback(200, {(1, 1)}, set()))
    assert back.rate == healthy
    assert back.pause == pytest.approx(costs.regroup + 7)
    assert back.redone == 0


def test_failures_that_lie_badly_are_moved() -> None:
    job = replace(unit_job(2, 4, 4), parameters=(10**9, 10**9))
    policy = Recycle(make_setting(job, ()))
    policy.begin(frozenset(), 0)
    assert policy.react(failure(1, {(0, 0), (1, 0)}, {(0, 0), (1, 0)})).pause > 1


def test_a_stage_without_workers_stops_everything() -> None:
    policy = Recycle(unit_setting(2, 2, 3))
    policy.begin(frozenset(), 0)
    everyone = {(0, 0), (1, 0), (0, 1)}
    assert policy.react(failure(1, everyone, everyone)).rate == 0


def test_a_stage_that_no_worker_holds_comes_from_a_checkpoint() -> None:
    setting = unit_setting(4, 3, 6)
    policy = Recycle(setting)
    policy.begin(frozenset(), 0)
    stage = {(0, 2), (1, 2), (2, 2)}
    reaction = policy.react(failure(2100, stage, stage))
    assert "from a checkpoint" in reaction.why
    assert reaction.redone == 300
    costs = setting.costs
    assert reaction.pause == costs.detection + costs.restart + setting.checkpoint_load
    assert reaction.rate > 0


def test_a_stage_that_could_not_be_copied_in_time_comes_from_a_checkpoint() -> None:
    job = replace(unit_job(2, 3, 4), parameters=(10**12, 10**12))
    first, last = {(0, 0), (1, 0)}, {(2, 0)}
    soon, late = Recycle(make_setting(job, ())), Recycle(make_setting(job, ()))
    for policy in (soon, late):
        policy.begin(frozenset(), 0)
        assert policy.react(failure(5000, first, first)).why.endswith("1 copy")
    assert "from a checkpoint" in soon.react(failure(5900, last, first | last)).why
    assert "from a checkpoint" not in late.react(failure(9000, last, first | last)).why


def test_it_stands_still_until_there_is_somebody_for_every_stage() -> None:
    policy = Recycle(unit_setting(2, 2, 3))
    policy.begin(frozenset(), 0)
    everyone = {(0, 0), (1, 0), (0, 1)}
    assert policy.react(failure(1000, everyone, everyone)).redone == 300
    reaction = policy.react(comeback(2000, {(0, 0)}, everyone - {(0, 0)}))
    assert reaction.rate > 0 and reaction.redone == 0
    assert "from a checkpoint" in reaction.why


def test_the_more_techniques_the_faster() -> None:
    job = unit_job(4, 3, 6, 4)
    periods = [best_placement(job, 2, techniques)[0] for techniques in STEPS]
    assert periods == sorted(periods, reverse=True)


def test_a_large_job_is_interpolated_between_plans() -> None:
    policy = Recycle(unit_setting(8, 16, 56))
    rates = [policy.begin(frozenset((0, stage) for stage in range(failed)), 0) for failed in (2, 3, 4)]
    assert 1 / rates[1] == pytest.approx((1 / rates[0] + 1 / rates[2]) / 2)


@st.composite
def odd_jobs(draw: st.DrawFn) -> JobSpec:
    """Small jobs whose stages are far from even."""
    stages = draw(st.integers(1, 4))
    times = st.lists(st.integers(1, 5), min_size=stages, max_size=stages)
    job = unit_job(stages, draw(st.integers(2, 5)), draw(st.integers(1, 6)), draw(st.sampled_from((None, 4))))
    return replace(
        job,
        forward=tuple(1000 * time for time in draw(times)),
        backward_input=tuple(1000 * time for time in draw(times)),
        backward_weight=tuple(1000 * time for time in draw(times)),
    )


@settings(deadline=None, max_examples=10)
@given(odd_jobs(), st.sampled_from(STEPS))
def test_one_failure_fewer_is_never_slower(job: JobSpec, techniques: Techniques) -> None:
    most = job.stages * (job.pipelines - 1)
    periods = [best_placement(job, failures, techniques)[0] for failures in range(most + 1)]
    assert periods == sorted(periods)


def test_a_plan_for_more_failures_is_used_where_it_is_quicker() -> None:
    """Ten pipelines of eight even stages: with failures on all but the first, their backwards are split."""
    job = unit_job(8, 10, 8)
    periods = [best_placement(job, failures)[0] for failures in range(9)]
    assert periods == [periods[0]] * 9 and best_placement(job, 0)[1] == (0, 1, 1, 1, 1, 1, 1, 1)
    assert (one_f_one_b_period(job), periods[0]) == (48_000, 36_000)


def test_workers_without_work_keep_the_state_of_their_stage() -> None:
    """The plan for seven failures is used from the beginning, so these seven copy nothing."""
    job = replace(unit_job(8, 10, 8), parameters=(10**12,) * 8)
    policy = Recycle(make_setting(job, ()))
    healthy = policy.begin(frozenset(), 0)
    down: set[Worker] = set()
    for stage in range(1, 8):
        down.add((0, stage))
        reaction = policy.react(failure(1000 * stage, {(0, stage)}, down))
        assert reaction.rate == healthy and reaction.pause < 1
