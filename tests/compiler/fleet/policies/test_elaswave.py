"""ElasWave: resized micro-batches, layers that move online."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.fleet.policies.elaswave import Elaswave, Resized
from recycle_compiler.fleet.policies.layers import layer_costs_of
from recycle_compiler.fleet.setting import ChangeCosts, FleetSetting, Known, make_setting
from tests.compiler.fleet.policies.settings import comeback, failure, unit_setting
from tests.support.jobs import unit_job


def resized(setting: FleetSetting) -> Resized:
    return Resized(setting.job, layer_costs_of(setting))


@pytest.mark.parametrize("capacity", [None, 2, 4])
def test_without_failures_even_stages_are_one_f_one_b(capacity: int | None) -> None:
    setting = make_setting(unit_job(4, 3, 6, capacity), (), Known(layers=(1,) * 4))
    free = make_setting(unit_job(4, 3, 6), (), Known(layers=(1,) * 4))
    # Where memory holds up 1F1B, micro-batches are cut in two, which makes room and nothing else.
    assert Elaswave(setting).begin(frozenset(), 0) == pytest.approx(free.rate(free.one_f_one_b))


def test_a_stage_with_fewer_workers_takes_longer_in_proportion() -> None:
    """Two of three workers: each micro-batch takes that stage 4.5 slots in place of 3, none is rounded."""
    setting = unit_setting(4, 3, 6, layers=1)
    period = resized(setting).period((0, 1, 2, 3, 4), (3, 2, 3, 3))
    assert period == pytest.approx(1000 * (3 + 4.5 + 3 + 3 + 5 * 4.5 + 3))


def test_layers_move_while_training_goes_on() -> None:
    costs = ChangeCosts(copy_rate=1e9)
    job = replace(unit_job(4, 3, 6), parameters=(8 * 10**9,) * 4)
    policy = Elaswave(make_setting(job, (), Known(layers=(8,) * 4, costs=costs)))
    healthy = policy.begin(frozenset(), 0)
    resized_only = policy.react(failure(5000, {(1, 1)}, {(1, 1)}))
    assert resized_only.pause == pytest.approx(costs.detection + costs.communicator)
    assert resized_only.redone == pytest.approx(0.5 / healthy)
    due = policy.due()
    assert due is not None and due > 5000 + resized_only.pause + 1
    moved = policy.act(due)
    assert moved.why == "layers have moved" and moved.pause == costs.communicator
    assert resized_only.rate < moved.rate < healthy
    assert policy.due() is None


def test_nothing_moves_where_the_next_change_is_near() -> None:
    job = replace(unit_job(4, 3, 6), parameters=(8 * 10**14,) * 4)
    policy = Elaswave(make_setting(job, (), Known(layers=(8,) * 4)))
    policy.begin(frozenset(), 0)
    policy.react(failure(5000, {(1, 1)}, {(1, 1)}))
    assert policy.due() is None


def test_whoever_comes_back_copies_while_the_others_train() -> None:
    job = replace(unit_job(4, 3, 6), parameters=(8 * 10**9,) * 4)
    policy = Elaswave(make_setting(job, (), Known(layers=(1,) * 4)))
    healthy = policy.begin(frozenset(), 0)
    slower = policy.react(failure(5000, {(1, 1)}, {(1, 1)})).rate
    assert policy.react(comeback(9000, {(1, 1)}, set())).rate == slower
    due = policy.due()
    assert due == pytest.approx(9008)
    assert due is not None and policy.act(due).rate == pytest.approx(healthy)


def test_a_lost_stage_comes_from_a_checkpoint_on_workers_spread_evenly() -> None:
    policy = Elaswave(unit_setting(4, 3, 6))
    policy.begin(frozenset(), 0)
    stage = {(pipeline, 2) for pipeline in range(3)}
    reaction = policy.react(failure(2100, stage, stage))
    assert reaction.why == "from a checkpoint" and reaction.redone == 300 and reaction.rate > 0


def test_too_few_workers_stand_still_until_somebody_comes() -> None:
    policy = Elaswave(unit_setting(2, 2, 3))
    policy.begin(frozenset(), 0)
    everyone = {(0, 0), (1, 0), (0, 1)}
    assert policy.react(failure(1000, everyone, everyone)).rate == 0
    assert policy.react(comeback(2000, {(0, 0)}, everyone - {(0, 0)})).rate > 0


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(1, 3), min_size=3, max_size=3),
    st.sampled_from((None, 2, 4)),
    st.integers(1, 3),
)
def test_the_best_cut_is_no_slower_than_the_jobs_own(
    workers: list[int], capacity: int | None, layers: int
) -> None:
    setting = make_setting(unit_job(3, 3, 5, capacity), (), Known(layers=(layers,) * 3))
    found = resized(setting)
    best = found.best(tuple(workers))
    own = tuple(range(0, 3 * layers + 1, layers))
    assert best is None or found.period(best, tuple(workers)) <= found.period(own, tuple(workers)) * 1.2


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(1, 3), min_size=3, max_size=3),
    st.integers(0, 2),
    st.sampled_from((None, 2, 4)),
    st.integers(1, 3),
)
def test_another_worker_never_makes_a_cut_slower(
    workers: list[int], stage: int, capacity: int | None, layers: int
) -> None:
    setting = make_setting(unit_job(3, 4, 5, capacity), (), Known(layers=(layers,) * 3))
    found = resized(setting)
    own = tuple(range(0, 3 * layers + 1, layers))
    more = [count + (number == stage) for number, count in enumerate(workers)]
    assert found.period(own, tuple(more)) <= found.period(own, tuple(workers)) * (1 + 1e-9)
