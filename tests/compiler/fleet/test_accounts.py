"""Every GPU-hour is in exactly one column."""

from dataclasses import replace

import pytest

from recycle_compiler.fleet.accounts import GpuHours, Gpus, account
from recycle_compiler.fleet.course import Start, lead
from recycle_compiler.fleet.machines import Strength
from recycle_compiler.fleet.policy import Change, Reaction
from recycle_compiler.fleet.setting import ChangeCosts
from tests.compiler.fleet.settings import COSTS, made_fleet, report_of, setting
from tests.compiler.fleet.test_course import WHOLE, Scripted, at

GPUS = Gpus(of_worker=2, of_spare=4, of_job=20, of_fleet=28)


def columns(first: float, *script: tuple[float, Reaction], saving: float = 0.0, live: int = 10) -> GpuHours:
    """Of a job whose full rate is 1, with two spares, over an hour."""
    policy = Scripted(first, [reaction for _, reaction in script])
    course = lead(policy, WHOLE, at(*(moment for moment, _ in script)), 3600)
    return account(course, [Strength(0.0, live, 2)], GPUS, 1.0, saving)


def test_a_whole_job_is_useful_and_spares_are_paid_for() -> None:
    assert columns(1.0) == GpuHours(useful=20, spare=8)


def test_missing_workers_are_down_and_slow_the_others() -> None:
    assert columns(0.5, live=8) == GpuHours(useful=10, slowed=6, spare=8, down=4)


def test_pauses_saves_and_work_done_again() -> None:
    found = columns(1.0, (900, Reaction(1.0, pause=360, redone=180, saved=90)))
    assert found == pytest.approx(GpuHours(17, 1, 0, 1.5, 0.5, 8, 0))


def test_saves_that_are_part_of_the_rate() -> None:
    assert columns(0.75, saving=0.25) == pytest.approx(GpuHours(useful=15, saving=5, spare=8))


def test_a_job_that_waits_for_machines_is_down() -> None:
    assert columns(1.0, (1800, Reaction(0.0))) == pytest.approx(GpuHours(useful=10, spare=8, down=10))


def test_more_than_its_share_is_useful_and_no_more() -> None:
    assert columns(0.9, live=8) == GpuHours(useful=16, spare=8, down=4)


def test_intervals_of_young_and_daly_cost_less_than_others() -> None:
    fleet = made_fleet("poisson mtbf=60h repair=1h", hours=500)
    given = replace(
        setting(replace(COSTS, checkpoint_every=None)), failure_interval=fleet.mean_time_between_failures
    )
    best = report_of(fleet, "restart", given=given).outcomes[0]
    for factor in (0.4, 2.5):
        costs = replace(COSTS, checkpoint_every=given.checkpoint_every * factor)
        other = report_of(fleet, "restart", given=setting(costs)).outcomes[0]
        assert other.average is not None and best.average is not None
        assert other.average < best.average


def test_nothing_fails_and_nothing_is_saved() -> None:
    given = replace(setting(ChangeCosts()), failure_interval=float("inf"))
    ours, restart = report_of(made_fleet("none"), "ours", "restart", given=given).outcomes
    assert restart.gpu_hours == pytest.approx(GpuHours(useful=144))
    assert ours.effective_training_time == pytest.approx(1)
    assert "no checkpoints" in restart.note


def test_a_spare_that_fails_is_down() -> None:
    start, change = Start(frozenset(), 1), Change(1800, frozenset(), frozenset(), frozenset(), 0)
    course = lead(Scripted(1.0, [Reaction(1.0)]), start, [change], 3600)
    found = account(course, [Strength(0.0, 10, 1), Strength(1800.0, 10, 0)], Gpus(2, 4, 20, 24), 1.0)
    assert found == pytest.approx(GpuHours(useful=20, spare=2, down=2))
