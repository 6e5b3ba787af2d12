"""Experts in slots, by popularity."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.experts.placement import Placement, UnplacedError, place_experts, slots_by_popularity

_JOBS = st.tuples(
    st.lists(st.integers(0, 1000), min_size=1, max_size=12),
    st.lists(st.integers(0, 6), min_size=1, max_size=8),
).filter(lambda job: len(job[0]) <= sum(job[1]))


def test_slots_in_proportion() -> None:
    assert place_experts([5, 2, 1], [2, 2]) == Placement([(0, 1), (0, 2)])
    assert slots_by_popularity([6, 3, 3, 0], 8) == [3, 2, 2, 1]
    assert slots_by_popularity([0, 0, 0], 4) == [2, 1, 1]


@given(_JOBS)
def test_placements(job: tuple[list[int], list[int]]) -> None:
    popularity, slots = job
    made = place_experts(popularity, slots)
    assert [len(each) for each in made.peers] == slots
    counts = Counter(made.slots)
    assert sorted(counts) == list(range(len(popularity)))
    assert made.replicas == tuple(counts[e] for e in range(len(popularity)))
    open_peers = sum(map(bool, slots))
    if len(set(slots)) == 1:
        # Different peers for all replicas where there are as many.
        for expert, holders in enumerate(made.holders):
            assert len(holders) == min(counts[expert], open_peers)
    for one in range(len(popularity)):
        for other in range(len(popularity)):
            # Nobody has more replicas than an expert that is asked for as often, but for rounding.
            if popularity[one] <= popularity[other]:
                assert counts[one] <= counts[other] + 1


@given(_JOBS)
def test_goals_are_met_within_a_slot(job: tuple[list[int], list[int]]) -> None:
    popularity, slots = job
    total, everything = sum(slots), sum(popularity)
    if everything and all(each * total >= everything for each in popularity):
        for count, each in zip(slots_by_popularity(popularity, total), popularity, strict=True):
            assert abs(count * everything - each * total) < everything


def test_more_experts_than_slots() -> None:
    with pytest.raises(
        UnplacedError, match="5 experts need as many slots, and 2 workers with 2 slots each have 4"
    ):
        place_experts([1] * 5, [2, 2])
