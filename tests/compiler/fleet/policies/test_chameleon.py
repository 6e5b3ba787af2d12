"""Chameleon: the best of three ways at every change."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.fleet.policies.bamboo import Bamboo
from recycle_compiler.fleet.policies.chameleon import RECUT, REDUNDANT, REROUTE, Chameleon
from recycle_compiler.fleet.policies.oobleck import Oobleck
from recycle_compiler.fleet.policies.recycle import Recycle
from recycle_compiler.fleet.policy import Worker
from recycle_compiler.fleet.setting import ChangeCosts, Known, make_setting
from tests.compiler.fleet.policies.settings import comeback, failure, unit_setting
from tests.support.jobs import SLOT, unit_job


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 3), st.integers(2, 4), st.sampled_from((2, 6, 12)), st.integers(0, 3))
def test_it_begins_as_fast_as_the_fastest_way(
    stages: int, pipelines: int, microbatches: int, failed: int
) -> None:
    setting = unit_setting(stages, pipelines, microbatches)
    down: frozenset[Worker] = frozenset(
        [(pipeline, stage) for stage in range(stages) for pipeline in range(pipelines)][:failed]
    )
    found = Chameleon(setting).begin(down, 0)
    others = [make(setting).begin(down, 0) for make in (Recycle, Oobleck, Bamboo)]
    assert found >= max(others) * 0.98
    assert found <= max(others) * (1 + 1e-9)


def test_it_re_routes_where_that_is_faster() -> None:
    """Few layers cannot be cut evenly."""
    setting = make_setting(unit_job(4, 3, 12), (), Known(layers=(1,) * 4))
    policy = Chameleon(setting)
    healthy = policy.begin(frozenset(), 0)
    reaction = policy.react(failure(5000, {(1, 1)}, {(1, 1)}))
    assert policy.way == REROUTE
    assert reaction.redone == pytest.approx(0.5 / healthy)
    published = Recycle(setting)
    published.begin(frozenset(), 0)
    assert reaction.rate == published.react(failure(5000, {(1, 1)}, {(1, 1)})).rate


def test_it_re_cuts_where_re_routing_rounds_badly() -> None:
    """One micro-batch for each worker: a failure doubles some worker's load, eleven stages do not."""
    policy = Chameleon(unit_setting(2, 6, 1, layers=22))
    policy.begin(frozenset(), 0)
    reaction = policy.react(failure(5000, {(1, 1)}, {(1, 1)}))
    assert policy.way == RECUT and reaction.pause == pytest.approx(2.103)


def test_where_failures_come_quickly_workers_are_redundant() -> None:
    """A failure every few seconds makes lost work dearer than slow work."""
    costs = ChangeCosts(expected_change=12.0, rendezvous=0.0, reconfiguration=8.0, undone=8.0)
    job = replace(unit_job(4, 3, 2), forward=(100,) * 4)
    policy = Chameleon(make_setting(job, (), Known(layers=(1,) * 4, costs=costs)))
    policy.begin(frozenset(), 0)
    assert policy.way == REDUNDANT
    assert policy.react(failure(5000, {(1, 1)}, {(1, 1)})).redone == 0


def test_whoever_comes_back_is_taken_in_if_that_pays() -> None:
    setting = unit_setting(4, 3, 12, layers=1)
    policy = Chameleon(setting)
    healthy = policy.begin(frozenset(), 0)
    policy.react(failure(5000, {(1, 1)}, {(1, 1)}))
    assert policy.react(comeback(9000, {(1, 1)}, set())).rate == healthy


def test_layers_that_nobody_has_come_from_a_checkpoint() -> None:
    policy = Chameleon(unit_setting(4, 3, 6))
    policy.begin(frozenset(), 0)
    gone = {(pipeline, stage) for pipeline in range(3) for stage in (2, 3)}
    reaction = policy.react(failure(2100, gone, gone))
    assert "from a checkpoint" in reaction.why and reaction.redone == 300 and reaction.rate > 0


@pytest.mark.parametrize("first", [0, 3])
def test_pipelines_that_fail_together_do_not_hold_all_copies_of_a_layer(first: int) -> None:
    """The last stage of the job is too large, so that it begins with another cut; then half of the pipelines
    are gone at once."""
    times = (SLOT, SLOT, SLOT, 5 * SLOT)
    job = replace(unit_job(4, 6, 4), forward=times, backward_input=times, backward_weight=times)
    policy = Chameleon(make_setting(job, (), Known(layers=(1, 1, 1, 5))))
    policy.begin(frozenset(), 0)
    assert policy.way == RECUT
    gone = {(pipeline, stage) for pipeline in range(first, first + 3) for stage in range(4)}
    assert policy.react(failure(9000, gone, gone)).why == RECUT


def test_too_few_workers_stand_still_until_somebody_comes() -> None:
    policy = Chameleon(unit_setting(2, 2, 3, layers=1))
    policy.begin(frozenset(), 0)
    everyone = {(0, 0), (1, 0), (0, 1)}
    assert policy.react(failure(1000, everyone, everyone)).rate == 0
    assert policy.react(comeback(2000, {(0, 0)}, everyone - {(0, 0)})).rate > 0
