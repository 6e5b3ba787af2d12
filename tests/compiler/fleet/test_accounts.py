"""Every GPU-hour is in exactly one column, whatever the trace and the policy."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.fleet.accounts import GpuHours, Gpus, account
from recycle_compiler.fleet.comparison import Comparison, batch_of, compare
from recycle_compiler.fleet.course import Start, lead
from recycle_compiler.fleet.machines import Fleet, Strength, lay_out
from recycle_compiler.fleet.policy import NAMES, Change, Reaction
from recycle_compiler.fleet.setting import ChangeCosts
from recycle_compiler.fleet.traces.generated import Machines, generate, parse_words
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


WORDS = st.builds(
    "poisson mtbf={}h repair={}h burst={}%:60s spares={}".format,
    st.integers(1, 200),
    st.integers(1, 20),
    st.integers(0, 60),
    st.integers(0, 3),
)


@settings(max_examples=5)
@given(WORDS, st.integers(0, 99), st.sampled_from([1, 2]), st.booleans())
def test_columns_add_up_for_every_policy(words: str, seed: int, gpus: int, warm: bool) -> None:
    layout = lay_out(3, 4, 1, gpus)
    machines = Machines(len(layout.places), gpus)
    fleet = Fleet(generate(parse_words(words), machines, 24 * 3600, seed), layout)
    given = replace(
        setting(replace(COSTS, checkpoint_every=None)), failure_interval=fleet.mean_time_between_failures
    )
    comparison = Comparison(given, fleet, batch_of(given, None), warm)
    for outcome in compare(comparison, NAMES).outcomes:
        if outcome.average is None:
            continue
        assert sum(outcome.gpu_hours) == pytest.approx(comparison.paid.of_fleet * 24, rel=1e-12)
        assert min(outcome.gpu_hours) >= -1e-9
        assert 0 <= outcome.effective_training_time <= 1 + 1e-12


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
