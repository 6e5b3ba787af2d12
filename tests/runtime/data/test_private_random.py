import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from recycle_runtime.data.private_random import PrivateRandom, preserved, seeded


def _numpy() -> Any:
    return pytest.importorskip("numpy").random


def _all() -> tuple[float, float, float]:
    return float(torch.rand(())), random.random(), float(_numpy().rand())


def test_what_is_drawn_goes_on_from_one_use_to_the_next() -> None:
    whole, pieces = PrivateRandom(5), PrivateRandom(5)
    with whole.drawing():
        expected = [_all() for _ in range(3)]
    found: list[tuple[float, float, float]] = []
    for _ in range(3):
        with pieces.drawing():
            found.append(_all())
        _all()
    assert found == expected


@pytest.mark.parametrize("aside", [PrivateRandom(5).drawing, lambda: seeded(5)])
def test_the_shared_numbers_are_untouched(aside: Callable[[], Any]) -> None:
    def draw(*, with_data: bool) -> list[tuple[float, float, float]]:
        torch.manual_seed(1)
        random.seed(1)
        _numpy().seed(1)
        found = [_all()]
        if with_data:
            with aside():
                _all()
                # A program may do this too.
                _numpy().seed(3)
        return [*found, _all()]

    assert draw(with_data=True) == draw(with_data=False)


def test_the_numbers_of_a_seed_are_those_of_the_libraries() -> None:
    with seeded(7):
        found = _all()
    torch.manual_seed(7)
    random.seed(7)
    _numpy().seed(7)
    assert found == _all()


@pytest.mark.parametrize("draw", [lambda: torch.rand(1), random.random, lambda: _numpy().rand()])
def test_drawing_is_seen_where_it_is_watched(draw: Callable[[], Any]) -> None:
    with seeded(7, watched=True) as drawn:
        draw()
    assert drawn.is_random
    with seeded(7, watched=True) as drawn:
        pass
    assert not drawn.is_random


def test_no_bit_generator_of_numpy_is_freed_that_a_thread_may_be_reading_from() -> None:
    """numpy itself does not hold it meanwhile, and takes the process down."""
    numpy = _numpy()

    with preserved():
        outside = numpy.MT19937(1)
        numpy.set_bit_generator(outside)
        with seeded(7):
            inside = numpy.get_bit_generator()
            assert inside is not outside
            assert sys.getrefcount(outside) > OURS + 1
        with seeded(8):
            assert numpy.get_bit_generator() is inside
        numbers = PrivateRandom(5)
        with numbers.drawing():
            drawing = numpy.get_bit_generator()
        del numbers
        assert sys.getrefcount(inside) > OURS
        assert sys.getrefcount(drawing) > OURS


OURS = 2
"""References of a test: its variable, and the argument that asks for their number."""
