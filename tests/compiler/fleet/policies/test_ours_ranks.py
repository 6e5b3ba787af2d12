"""Ours with workers that have lost some of their tensor-parallel ranks."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.fleet.policies.ours import Ours
from recycle_compiler.fleet.policies.ours_ranks import OursWithFewerRanks
from recycle_compiler.fleet.setting import FleetSetting
from tests.compiler.fleet.policies.settings import comeback, failure
from tests.compiler.fleet.settings import COSTS, course_of, made_fleet, setting


def eight_gpus(one_gpu: float) -> FleetSetting:
    """Three pipelines of four workers of eight GPUs."""
    made = setting(replace(COSTS, one_gpu=one_gpu))
    return replace(made, job=replace(made.job, tensor=8))


def until_idle(policy: Ours, before: float) -> float:
    """The rate when nothing is under way any more."""
    rate = 0.0
    while (due := policy.due()) is not None and due < before:
        rate = policy.act(due).rate
    return rate


def test_a_worker_with_half_of_its_ranks_is_better_than_none() -> None:
    policy, plain = OursWithFewerRanks(eight_gpus(1.0)), Ours(eight_gpus(1.0))
    whole = policy.begin(frozenset(), 0)
    assert plain.begin(frozenset(), 0) == whole
    hit = policy.react(failure(1000, {(0, 1)}, {(0, 1)}))
    without = plain.react(failure(1000, {(0, 1)}, {(0, 1)}))
    assert (hit.rate, hit.pause) == (without.rate, without.pause), "at first it is a failure like others"
    assert without.rate < until_idle(policy, 5000) < whole
    policy.react(comeback(9000, {(0, 1)}, set()))
    assert until_idle(policy, 1e6) == whole


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 99))
def test_without_such_faults_it_is_ours(seed: int) -> None:
    fleet = made_fleet("poisson mtbf=50h repair=5h", seed=seed)
    narrow, ours = (made(eight_gpus(0.0)) for made in (OursWithFewerRanks, Ours))
    assert course_of(narrow, fleet).rates() == course_of(ours, fleet).rates()
