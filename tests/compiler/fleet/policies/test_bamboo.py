"""Bamboo: its slowdown, its memory, and its ways to go on."""

from dataclasses import replace

import pytest

from bench.fleet_settings import OurPlans, average_rate, calibrated, samples_of, setting_of
from bench.table_1 import EVERY, PUBLISHED, SPAN
from recycle_compiler.fleet.policies.bamboo import Bamboo
from recycle_compiler.fleet.policy import CannotRunError, Reaction
from recycle_compiler.fleet.setting import make_setting
from tests.compiler.fleet.policies.settings import comeback, failure, sized_job, unit_setting
from tests.support.jobs import unit_job


def test_redundant_forwards_do_not_hide_in_bubbles() -> None:
    """A micro-batch takes four slots in place of three on every stage, and the copies are stepped as well."""
    for microbatches in (6, 12):
        policy = Bamboo(unit_setting(4, 3, microbatches))
        assert policy.begin(frozenset(), 0) == pytest.approx(1 / (4 * (microbatches + 3) + 3 + 3))


def test_it_is_three_quarters_of_one_f_one_b_whatever_the_depth() -> None:
    """Published: 0.71 with a failure every 6 h."""
    shares = [Bamboo(unit_setting(stages, 2, 48)).begin(frozenset(), 0) for stages in (2, 4, 8, 16)]
    plain = [unit_setting(stages, 2, 48).one_f_one_b / 1000 for stages in (2, 4, 8, 16)]
    for share, period in zip(shares, plain, strict=True):
        assert 0.72 < share * period <= 0.75


def test_a_slow_stage_leaves_the_others_time_for_redundant_forwards() -> None:
    job = replace(unit_job(3, 2, 9), backward_weight=(1000, 1000, 9000))
    setting = make_setting(job, ())
    assert Bamboo(setting).begin(frozenset(), 0) > 0.85 * setting.rate(setting.one_f_one_b)


def test_the_pair_that_is_run_together_is_the_one_that_failed() -> None:
    """A worker that runs the slow stage besides its own delays more than one that runs a fast one."""
    job = replace(unit_job(4, 1, 9), backward_weight=(1000, 1000, 4000, 1000))
    rates: list[float] = []
    for stage in (0, 1, 2, 3):
        policy = Bamboo(make_setting(job, ()))
        policy.begin(frozenset(), 0)
        rates.append(policy.react(failure(1, {(0, stage)}, {(0, stage)})).rate)
    assert rates[0] == rates[1] > rates[2] == rates[3]


def test_it_is_never_faster_than_one_f_one_b() -> None:
    for microbatches in (1, 4, 9):
        setting = unit_setting(4, 3, microbatches)
        assert Bamboo(setting).begin(frozenset(), 0) <= setting.rate(setting.one_f_one_b)


def test_the_layers_of_the_successor_must_fit() -> None:
    Bamboo(make_setting(sized_job(4, 3, 19, 14), ())).begin(frozenset(), 0)
    with pytest.raises(
        CannotRunError, match=r"^out of memory: with the layers of stage 1, .* stage 0 needs 19 GiB"
    ):
        Bamboo(make_setting(sized_job(4, 3, 18, 14), ())).begin(frozenset(), 0)


def test_what_it_holds_may_not_be_known() -> None:
    policy = Bamboo(make_setting(unit_job(4, 3, 6, 4), ()))
    policy.begin(frozenset(), 0)
    assert "not known" in policy.note


def test_a_failure_with_no_worker_to_stand_in_ends_in_a_rendezvous() -> None:
    policy = Bamboo(unit_setting(4, 4, 12))
    healthy = policy.begin(frozenset(), 0)
    reaction = policy.react(failure(1, {(0, 1)}, {(0, 1)}))
    assert reaction.pause == 30
    assert 0 < reaction.rate < healthy


def test_workers_that_are_left_over_stand_by() -> None:
    policy = Bamboo(unit_setting(4, 4, 12))
    policy.begin(frozenset(), 0)
    first = policy.react(failure(1, {(0, 1)}, {(0, 1)}))
    second = policy.react(failure(2, {(1, 1)}, {(0, 1), (1, 1)}))
    assert second.rate == first.rate
    assert second.pause < 1


def test_a_predecessor_takes_over_where_that_is_better() -> None:
    """With one pipeline there is nothing to regroup."""
    policy = Bamboo(unit_setting(4, 1, 6))
    healthy = policy.begin(frozenset(), 0)
    reaction = policy.react(failure(1, {(0, 1)}, {(0, 1)}))
    assert reaction.pause < 1
    assert 0 < reaction.rate < healthy


def test_neighbours_that_fail_together_stop_a_single_pipeline() -> None:
    policy = Bamboo(unit_setting(4, 1, 6))
    policy.begin(frozenset(), 0)
    assert policy.react(failure(1, {(0, 1), (0, 2)}, {(0, 1), (0, 2)})).rate == 0
    assert policy.react(comeback(9, {(0, 1), (0, 2)}, set())).rate > 0


def test_predecessors_have_one_failed_stage_but_not_two_neighbours() -> None:
    one = {(pipeline, 2) for pipeline in range(3)}
    two = one | {(pipeline, 1) for pipeline in range(3)}
    answers: list[Reaction] = []
    for failed in (one, two):
        policy = Bamboo(unit_setting(4, 3, 12))
        policy.begin(frozenset(), 0)
        answers.append(policy.react(failure(2100, failed, failed)))
    assert answers[0].why == "taken over" and answers[0].redone == 0
    assert "from a checkpoint" in answers[1].why and answers[1].redone == 300


def test_a_single_stage_has_no_successor() -> None:
    setting = unit_setting(1, 4, 6)
    assert Bamboo(setting).begin(frozenset(), 0) == setting.rate(setting.one_f_one_b)
    assert Bamboo(make_setting(replace(setting.job, failures=0), ())).begin(frozenset(), 0) > 0


def test_the_published_figures_of_medium_are_met_within_seven_percent() -> None:
    """With a failure every 6 h, 2 h and 30 min; calibrated to the published fault-free throughput."""
    medium = PUBLISHED[0]
    assert medium.bamboo is not None
    samples = samples_of(medium.job)
    setting = calibrated(setting_of(medium.job, OurPlans(())), samples, medium.fault_free)
    found = [samples * average_rate(Bamboo(setting), setting.job, every, SPAN) for every in EVERY]
    assert found == pytest.approx(list(medium.bamboo), rel=0.07)
