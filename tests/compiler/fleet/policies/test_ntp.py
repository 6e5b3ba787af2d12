"""Nonuniform tensor parallelism: pipelines with a GPU less."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.fleet.policies.ntp import NonuniformTensor
from recycle_compiler.fleet.policies.restart import InProcessRestart
from recycle_compiler.fleet.setting import FleetSetting
from tests.compiler.fleet.policies.settings import comeback, failure
from tests.compiler.fleet.settings import COSTS, course_of, made_fleet, setting


def eight_gpus(one_gpu: float) -> FleetSetting:
    """Three pipelines of four workers of eight GPUs."""
    made = setting(replace(COSTS, one_gpu=one_gpu))
    return replace(made, job=replace(made.job, tensor=8))


def test_a_pipeline_goes_on_with_seven_of_eight_gpus() -> None:
    policy = NonuniformTensor(eight_gpus(1.0))
    whole = policy.begin(frozenset(), 0)
    hit = policy.react(failure(1000, {(0, 1)}, {(0, 1)}))
    assert hit.rate == pytest.approx(whole * (3 - 1 / 8) / 3) and hit.pause == COSTS.swap
    # Workers with a GPU less are packed: four of them are in one pipeline.
    four = {(0, 1)}
    for at, worker in ((2000, (1, 1)), (3000, (2, 2)), (4000, (2, 3))):
        four |= {worker}
        more = policy.react(failure(at, {worker}, set(four)))
        assert more.rate == pytest.approx(hit.rate)
    healed = policy.react(comeback(9000, four, set()))
    assert healed.rate == pytest.approx(whole)


def test_who_loses_a_whole_worker_loses_a_pipeline() -> None:
    policy = NonuniformTensor(eight_gpus(0.0))
    whole = policy.begin(frozenset(), 0)
    assert policy.react(failure(1000, {(0, 1)}, {(0, 1)})).rate == pytest.approx(whole * 2 / 3)


def test_what_takes_several_workers_at_a_moment_takes_all_of_their_gpus() -> None:
    policy = NonuniformTensor(eight_gpus(1.0))
    whole, both = policy.begin(frozenset(), 0), {(0, 1), (1, 2)}
    assert policy.react(failure(1000, both, both)).rate == pytest.approx(whole * 2 / 3)


def test_a_worker_of_one_gpu_has_none_left() -> None:
    policy = NonuniformTensor(setting(replace(COSTS, one_gpu=1.0)))
    whole = policy.begin(frozenset(), 0)
    assert policy.react(failure(1000, {(0, 1)}, {(0, 1)})).rate == pytest.approx(whole * 2 / 3)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 99))
def test_without_such_faults_it_is_in_process_restart(seed: int) -> None:
    fleet = made_fleet("poisson mtbf=50h repair=5h", seed=seed)
    ours, theirs = (made(eight_gpus(0.0)) for made in (NonuniformTensor, InProcessRestart))
    assert course_of(ours, fleet).rates() == course_of(theirs, fleet).rates()
