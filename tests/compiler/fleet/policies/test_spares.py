"""Policies that live on spare machines and whole replicas, and ours with spares of every kind."""

from dataclasses import replace

import pytest

from recycle_compiler.fleet.comparison import Comparison, batch_of, compare
from recycle_compiler.fleet.policies.ours import Ours
from recycle_compiler.fleet.policies.restart import InProcessRestart
from recycle_compiler.fleet.policies.torchft import TorchFt
from recycle_compiler.fleet.policy import Change
from recycle_compiler.fleet.setting import best_interval
from tests.compiler.fleet.policies.settings import comeback, failure
from tests.compiler.fleet.settings import COSTS, course_of, made_fleet, read_fleet, setting

WHOLE = setting().rate(setting().one_f_one_b)


def test_a_replica_is_dropped_and_joins_again() -> None:
    policy = TorchFt(setting())
    assert policy.begin(frozenset(), 0) == WHOLE
    dropped = policy.react(failure(1000, {(1, 2)}, {(1, 2)}))
    assert (dropped.rate, dropped.pause, dropped.redone) == (pytest.approx(WHOLE * 2 / 3), 11.3, 0.0)
    assert policy.due() is None
    policy.react(comeback(2000, {(1, 2)}, set()))
    assert policy.due() == 2000 + COSTS.start_up
    joined = policy.act(2020)
    assert (joined.rate, joined.pause) == (pytest.approx(WHOLE), 1.3)


def test_replicas_are_formed_from_what_others_leave() -> None:
    """Two replicas lose a machine each: the rest of one mends the other."""
    policy = TorchFt(setting())
    policy.begin(frozenset(), 0)
    policy.react(failure(1000, {(0, 0), (1, 2)}, {(0, 0), (1, 2)}))
    assert policy.due() == 1000 + 0.0 + COSTS.start_up
    assert policy.act(1020).rate == pytest.approx(WHOLE * 2 / 3)


def test_the_last_replica_goes_back_to_a_checkpoint() -> None:
    policy = TorchFt(setting())
    everybody = {(pipeline, stage) for pipeline in range(3) for stage in range(4)}
    policy.begin(frozenset(), 0)
    lost = policy.react(failure(1000, everybody - {(2, 3)}, everybody - {(2, 3)}))
    assert (lost.rate, lost.redone) == (0.0, COSTS.checkpoint_every / 2 if COSTS.checkpoint_every else 0)
    back = policy.react(comeback(2000, everybody - {(2, 3)}, set()))
    assert back.rate == pytest.approx(WHOLE) and "checkpoint" in back.why


def test_a_swap_costs_no_checkpoint_while_peers_have_the_state() -> None:
    policy = InProcessRestart(setting())
    policy.begin(frozenset(), 1)
    change = Change(1000, frozenset({(0, 1)}), frozenset({(0, 1)}), frozenset(), 0, frozenset({(0, 1)}))
    swapped = policy.react(change)
    assert (swapped.rate, swapped.pause) == (pytest.approx(WHOLE), 40.0)
    assert swapped.redone == pytest.approx(0.5 / WHOLE)
    stage = frozenset((pipeline, 3) for pipeline in range(3))
    lost = policy.react(Change(5000, stage, stage, frozenset(), 0))
    assert lost.pause > 40.0 and lost.redone == 50.0


@pytest.mark.parametrize("kind", ["cold", "warm", "hot"])
def test_the_more_a_spare_knows_the_less_a_failure_costs(kind: str) -> None:
    given = replace(setting(parameters=10_000_000_000), spares_have_state=kind == "hot")
    lines = ('{"nodes": 13}', '{"at": "1h", "failed": ["node3"]}', '{"at": "2h"}')
    comparison = Comparison(given, read_fleet(*lines), batch_of(given, None), kind != "cold")
    (ours,) = compare(comparison, ("ours",)).outcomes
    slowed, expected = ours.gpu_hours.slowed, {"cold": 20 + 10, "warm": 10, "hot": 0}[kind]
    whole_share = 1 - 21 / 30
    # While the spare starts and copies, the others train at the pace of one failure, but for pauses of 3 s.
    assert slowed == pytest.approx(12 * whole_share * expected / 3600, abs=0.004)
    assert ours.gpu_hours.total == pytest.approx(13 * 2)


def test_ours_never_slows_down_when_a_worker_comes_back() -> None:
    lines = [f'{{"at": "{hour}h", "failed": ["0:{hour - 1}"]}}' for hour in (1, 2, 3)]
    fleet = read_fleet(*lines, '{"at": "9h"}')
    rates = [rate for _, rate in course_of(Ours(setting()), fleet).rates() if rate]
    assert rates == sorted(rates, reverse=True)


def test_the_interval_of_young_and_daly() -> None:
    assert best_interval(120, 837_547) == pytest.approx(14_098, abs=1)
    assert best_interval(100, 40) == 40
    assert best_interval(0, 1000) == 1.0
    assert best_interval(5, float("inf")) == float("inf")


def test_spares_that_never_come_change_nothing() -> None:
    fleet = made_fleet("none spares=2")
    assert fleet.spares == 2 and len(fleet.strengths) == 1
