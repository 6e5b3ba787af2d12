"""Data of an evaluation, and how many micro-batches of it count."""

from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn

from recycle_runtime.program.errors import ProgramError
from recycle_runtime.trainer.names import evaluation_items, model_names

THREE = [(float(number), 0) for number in range(3)]


def test_as_many_as_there_are_or_as_asked_for() -> None:
    for data in (THREE, tuple(THREE)):
        assert evaluation_items(data, None).count == 3
        assert evaluation_items(data, 2).count == 2
    assert evaluation_items(iter(THREE), None).count == 3
    assert evaluation_items(THREE.__getitem__, 3).item(2) == (2.0, 0)


@pytest.mark.parametrize("made", [list, iter, tuple])
def test_fewer_than_asked_for_is_refused(made: Any) -> None:
    with pytest.raises(ProgramError, match=r"^trainer\.evaluate\(data, microbatches=8\): the data has 3 of"):
        evaluation_items(made(THREE), 8)


@pytest.mark.parametrize(("data", "count"), [(THREE, 0), (iter(THREE), -1), ([], None), (iter([]), None)])
def test_none_is_refused(data: Any, count: int | None) -> None:
    with pytest.raises(ProgramError, match="was given no micro-batch"):
        evaluation_items(data, count)


def test_an_iterator_is_not_drawn_from_beyond_what_is_asked_for() -> None:
    left: Iterator[Any] = iter(THREE)
    assert evaluation_items(left, 2).count == 2
    assert list(left) == THREE[2:]


class Doubles(nn.Sequential):
    def forward(self, input: Any) -> Any:
        return 2 * super().forward(input)


def test_a_sequential_that_does_more_than_call_its_children_is_a_whole_model() -> None:
    assert list(model_names(nn.Sequential(nn.Linear(2, 2)))[0]) == ["layers"]
    assert list(model_names(Doubles(nn.Linear(2, 2)))[0]) == ["model"]
    hooked = nn.Sequential(nn.Linear(2, 2))
    hooked.register_forward_hook(print)
    assert list(model_names(hooked)[0]) == ["model"]
