"""Messages of experts: their number follows from slots, workers and owners."""

import pytest

from recycle_compiler.ir.expert_messages import expert_messages, message_ticks


def test_two_workers_that_own_everything_send_each_other_half_of_the_sums() -> None:
    """Each expert is in one of their slots, so its gradient goes to the other worker, and no weights do."""
    assert expert_messages(8, 4, 2, 2) == (4, 0)


def test_a_worker_alone_sends_nothing() -> None:
    assert expert_messages(4, 4, 1, 2) == (0, 0)


@pytest.mark.parametrize(
    ("experts", "slots", "workers", "owners"), [(8, 4, 3, 2), (16, 4, 16, 2), (6, 3, 4, 1)]
)
def test_who_has_most_has_no_less_than_an_even_share(
    experts: int, slots: int, workers: int, owners: int
) -> None:
    messages = expert_messages(experts, slots, workers, owners)
    # Each owner but one is told each sum; and workers that own no expert in their slots are sent all of them.
    assert messages.sum >= experts * (owners - 1) / workers
    assert 0 < messages.gather <= slots * workers
    more = expert_messages(experts, slots, workers, owners + 1)
    assert more.sum > messages.sum and more.gather < messages.gather


def test_slots_that_are_too_few_count_as_those_of_more_workers() -> None:
    assert expert_messages(8, 4, 1, 2) == expert_messages(8, 4, 2, 2)


def test_ticks() -> None:
    assert message_ticks(1000, 8, 4, 2, 2) == (4000, 0)
    assert message_ticks(0, 8, 4, 2, 2) == message_ticks(1000, 0, 4, 2, 2) == (0, 0)
