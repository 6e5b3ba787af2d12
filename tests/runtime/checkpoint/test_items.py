"""Micro-batches of a run that goes on: its first step begins where the last run ended."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.data.microbatches import MicroBatches
from tests.runtime.data.test_microbatches import counting


@given(
    st.integers(1, 4),
    st.integers(0, 5),
    st.integers(0, 20),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=12),
)
def test_steps_are_counted_on_and_items_too(
    per_step: int, first_step: int, first_item: int, asked: list[tuple[int, int]]
) -> None:
    source, _ = counting()
    data = MicroBatches(source, 0, per_step, first_step=first_step, first_item=first_item)
    for step, index in asked:
        index %= per_step
        assert data.item(first_step + step, index)[1] == first_item + step * per_step + index
    with pytest.raises(IndexError, match=f"the first one is {first_step}"):
        data.item(first_step - 1, 0)


def test_no_item_is_drawn_twice_and_none_is_kept_for_long(tmp_path: Path) -> None:
    source, drawn = counting()
    data = MicroBatches(source, 0, 2)
    data.count_from(3, 7)
    for step in (3, 4, 3, 4, 5, 4, 5):
        data.signature(step, 1)
    assert drawn == list(range(13))
