"""Ways to keep state: owners, redundancy, copies in neighbours' memory."""

import pytest

from recycle_compiler.fleet.advice import HolderLosses, holder_losses
from recycle_compiler.fleet.setting import FleetSetting, Known, make_setting
from recycle_compiler.fleet.state_options import (
    Failures,
    Losses,
    StateOption,
    best_option,
    checkpoints_at_par,
    state_options,
)
from recycle_compiler.frontend.load import parse_job_text
from tests.compiler.fleet.settings import COSTS, read_fleet

JOB = """job tiny {
  parallel  { pipeline = 2  data = 3 }
  batch     { microbatches = 4  micro = 4 }
  model gpt { layers = 4  hidden = 1024  heads = 8  sequence = 512  vocabulary = 8192 }
  device h100
  tolerate  { failures = 1 }
}
"""
NEVER, SELDOM, OFTEN = Losses(0, 0), Losses(50, 2), Losses(20_000, 40)


def setting() -> FleetSetting:
    return make_setting(parse_job_text(JOB, "tiny.job"), (), Known(costs=COSTS))


def options(*losses: Losses) -> list[StateOption]:
    failures = Failures(1, {0: 0.9, 1: 0.1}, losses, 2.0)
    return list(state_options(JOB, "tiny.job", setting(), failures, lambda _: None))


@pytest.fixture(scope="module")
def one_is_too_few() -> list[StateOption]:
    return options(OFTEN, SELDOM, NEVER)


def test_every_choice_has_a_line_without_copies_and_with_them(one_is_too_few: list[StateOption]) -> None:
    choices = [(one.owners, one.redundancy) for one in one_is_too_few if one.copy_steps is None]
    by_owners = {0: [2, 1, 3], 1: [2, 1, 3], 2: [2, 3], 3: [2, 3]}
    assert choices == [(owners, each) for owners, redundancies in by_owners.items() for each in redundancies]
    for plain, copied in zip(one_is_too_few[::2], one_is_too_few[1::2], strict=True):
        assert copied.copy_steps is not None and copied.copy_steps >= 3
        alike = copied._replace(copy_steps=None, read_back=plain.read_back, rate=plain.rate, lost=plain.lost)
        assert alike == plain
        assert plain.holders == min(plain.owners or plain.holders, plain.holders)
        assert plain.read_back == (OFTEN, SELDOM, NEVER)[plain.holders - 1].all_holders


def test_copies_are_worth_it_where_state_is_lost_often(one_is_too_few: list[StateOption]) -> None:
    for plain, copied in zip(one_is_too_few[::2], one_is_too_few[1::2], strict=True):
        if plain.losses != SELDOM.all_holders:
            assert (copied.rate > plain.rate) == (plain.losses == OFTEN.all_holders)


def test_copies_come_more_often_where_more_is_lost(one_is_too_few: list[StateOption]) -> None:
    steps = {one.losses: one.copy_steps for one in one_is_too_few if one.copy_steps}
    assert steps[OFTEN.all_holders] < steps.get(SELDOM.all_holders, steps[0]) <= steps[0]


def test_fewer_holders_make_steps_shorter_and_copies_bear_what_they_lose(
    one_is_too_few: list[StateOption],
) -> None:
    best = best_option(one_is_too_few)
    assert best is not None and (best.owners, best.redundancy) == (1, 1) and best.copy_steps
    assert best.rate >= max(one.rate for one in one_is_too_few) / 1.001
    assert best_option([]) is None


def an_option(owners: int, losses: float, rate: float, lost: float = 0.0) -> StateOption:
    return StateOption(owners, None, None, owners or 3, 10, 11, None, losses, losses, rate, lost)


def test_of_equally_fast_ones_whole_state_then_what_is_lost_least() -> None:
    whole, one, two = an_option(0, 0, 9.9), an_option(1, 40, 10.0), an_option(2, 1, 9.995)
    assert best_option([whole, one, two]) == two
    assert best_option([whole._replace(rate=9.999), one, two]) == whole._replace(rate=9.999)
    assert best_option([whole, one, two._replace(rate=9.9)]) == one


def test_checkpoints_at_par() -> None:
    """As often as that, what one loses more is what it is faster by."""
    given = setting()
    one, two = an_option(1, 40, 10.0, lost=0.001), an_option(2, 0, 9.9)
    every = checkpoints_at_par(given, one, two)
    assert every is not None and every > given.free_checkpoints_every
    lost = 40 * (given.from_checkpoint + every / 2) / (365 * 86400)
    assert 10.0 / (1 - 0.001) * (1 - lost) == pytest.approx(9.9)
    assert checkpoints_at_par(given, two, one) is None
    assert checkpoints_at_par(given, one._replace(copy_steps=3), two) is None


def test_failures_that_come_together() -> None:
    """Stage 0 loses two workers within a second, and another machine fails; later one alone."""
    fleet = read_fleet(
        '{"at": 100, "failed": ["0:0"]}',
        '{"at": 101, "failed": ["1:0", "2:3"]}',
        '{"at": 5000, "failed": ["2:1"]}',
        '{"at": 9000}',
    )
    found = list(holder_losses([fleet], 2.0, 3))
    assert found == [HolderLosses(1, 3, 2), HolderLosses(2, 1, 1), HolderLosses(3, 0, 0)]
