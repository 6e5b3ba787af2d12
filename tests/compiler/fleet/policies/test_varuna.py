"""Varuna: checkpoints, restarts and shapes."""

import pytest

from recycle_compiler.fleet.policies.varuna import Varuna
from recycle_compiler.fleet.setting import ChangeCosts, Known, make_setting
from tests.compiler.fleet.policies.settings import comeback, failure, unit_setting
from tests.support.jobs import unit_job

COSTS = ChangeCosts(checkpoint_every=600, checkpoint_save=100, checkpoint_load=40, restart=60)


def varuna(stages: int = 4, pipelines: int = 3, microbatches: int = 6) -> Varuna:
    known = Known(layers=(2,) * stages, costs=COSTS)
    return Varuna(make_setting(unit_job(stages, pipelines, microbatches), (), known))


def test_checkpoints_cost_their_share_at_all_times() -> None:
    saved = varuna().begin(frozenset(), 0)
    never = Varuna(
        make_setting(unit_job(4, 3, 6), (), Known(layers=(2,) * 4, costs=ChangeCosts(checkpoint_save=0.0)))
    )
    assert saved == pytest.approx(never.begin(frozenset(), 0) * 600 / 700)


def test_a_failure_costs_what_was_done_since_the_checkpoint_and_a_restart() -> None:
    policy = varuna()
    healthy = policy.begin(frozenset(), 0)
    reaction = policy.react(failure(1000, {(0, 0)}, {(0, 0)}))
    assert reaction.redone == pytest.approx(350)
    assert reaction.pause == 100
    assert 0 < reaction.rate < healthy


def test_a_comeback_loses_nothing() -> None:
    policy = varuna()
    healthy = policy.begin(frozenset(), 0)
    policy.react(failure(1000, {(0, 0)}, {(0, 0)}))
    reaction = policy.react(comeback(2000, {(0, 0)}, set()))
    assert reaction.redone == 0
    assert reaction.pause == 200
    assert reaction.rate == healthy


def test_more_workers_are_never_slower() -> None:
    workers = [(pipeline, stage) for pipeline in range(3) for stage in range(4)]
    rates = [varuna().begin(frozenset(workers[:failed]), 0) for failed in range(13)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == 0


def test_no_shape_beats_fault_free_one_f_one_b_on_even_stages() -> None:
    setting = unit_setting()
    assert Varuna(setting).begin(frozenset(), 0) <= setting.rate(setting.one_f_one_b)
