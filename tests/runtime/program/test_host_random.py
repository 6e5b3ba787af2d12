"""Numbers of Python and numpy are seeded, and what is drawn between is seen."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from recycle_runtime.data.private_random import preserved
from recycle_runtime.program.host_random import HOST, HostRandom


def _numpy() -> Any:
    return pytest.importorskip("numpy").random


DRAWS = [random.random, lambda: _numpy().rand(), lambda: random.gauss(0, 1), lambda: _numpy().randn()]


@pytest.mark.parametrize("draw", DRAWS)
def test_a_seed_brings_the_same_numbers(draw: Callable[[], Any]) -> None:
    with preserved():
        HOST.seed(1 << 60)
        expected = [draw() for _ in range(3)]
        HOST.seed(5)
        other = [draw() for _ in range(3)]
        with HOST.watching():
            # One of a pair of normal numbers is still kept.
            HOST.seed(1 << 60)
            found = [draw() for _ in range(3)]
    assert found == expected
    assert other != expected


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_draw_is_seen_between_any_two_seeds(draw: Callable[[], Any], before: int, after: int) -> None:
    host = HostRandom()

    def seeds(count: int) -> None:
        for number in range(count):
            host.seed(number + 7)

    with preserved():
        host.seed(3)
        with host.watching() as outer:
            with host.watching() as quiet:
                seeds(before)
            seeds(before)
            with host.watching() as inner:
                seeds(before)
                draw()
                seeds(after)
            with host.watching() as later:
                seeds(after)
    assert (outer.is_random, quiet.is_random, inner.is_random, later.is_random) == (True, False, True, False)


def test_what_lies_outside_is_untouched() -> None:
    def drawn(*, with_forwards: bool) -> list[float]:
        random.seed(1)
        _numpy().seed(1)
        found = [random.random(), float(_numpy().rand())]
        for _ in range(2):
            if with_forwards:
                with preserved():
                    HOST.seed(2)
                    random.random()
                    _numpy().rand()
            found += [random.random(), float(_numpy().rand())]
        return found

    with preserved():
        # The generator that is there may be the one that forwards are given.
        HOST.seed(4)
        assert drawn(with_forwards=True) == drawn(with_forwards=False)
