"""Rows of metrics: a step's loss is the sum of what its workers say about it."""

from recycle_runtime.coordinator.step_rows import StepRows
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.steps import LossShare, StepDone, StepRow

NAN = float("nan")


def members(*places: tuple[int, int]) -> frozenset[Member]:
    return frozenset(Member(place, 0) for place in places)


def done(step: int, loss: float | None, seconds: float, corrections: int = 0) -> StepDone:
    return StepDone(step, loss, seconds, repeated=0, times={}, corrections=corrections)


def test_rows_come_in_order_when_everybody_has_spoken() -> None:
    first, last = Member((0, 0), 0), Member((0, 1), 0)
    rows = StepRows()
    assert rows.begin(0, frozenset({first, last}), 2, "0 0", frozenset({last})) == []
    assert rows.add(last, done(0, 0.5, 1.0)) == []
    assert rows.add(last, done(1, 0.25, 1.0)) == []
    assert [row.step for row in rows.add(first, done(0, None, 3.0))] == [0]
    (row,) = rows.add(first, done(1, None, 2.0))
    assert row == StepRow(1, 0.25, 2.0, 2, "0 0")
    assert rows.add(first, done(0, None, 9.0)) == []


def test_a_step_that_counts_has_a_row_though_its_workers_are_gone() -> None:
    one, two, first = Member((0, 1), 0), Member((1, 1), 0), Member((0, 0), 0)
    rows = StepRows()
    rows.begin(0, frozenset({one, two, first}), 3, "0 1", frozenset({one, two}))
    rows.add_share(one, LossShare(0, 0.25))
    rows.add_share(two, LossShare(0, 0.5))
    rows.add(first, done(0, None, 1.0))
    rows.add(first, done(1, None, 1.0))
    (row,) = rows.begin(1, frozenset({one, first}), 2, "0 2", frozenset({one}))
    assert row == StepRow(0, 0.75, 1.0, 3, "0 1")
    # What was said about step 1 is void.
    assert rows.add(one, done(1, 0.5, 1.0)) == []
    assert [row.loss for row in rows.add(first, done(1, None, 1.0))] == [0.5]


def test_a_share_that_nobody_knows_makes_no_number() -> None:
    rows = StepRows()
    rows.begin(0, members((0, 0), (1, 0)), 2, "0", members((0, 0), (1, 0)))
    rows.add(Member((0, 0), 0), done(0, 0.25, 1.0))
    (row,) = rows.begin(1, members((0, 0)), 1, "1")
    assert row.loss is None


def test_a_step_that_is_not_made_again_counts_as_it_was_made() -> None:
    """One of two has made it and should undo it; the other fails before it has."""
    one, two, both = Member((0, 0), 0), Member((1, 0), 0), members((0, 0), (1, 0))
    rows = StepRows()
    rows.begin(0, both, 2, "0", both)
    rows.add_share(one, LossShare(0, 0.25))
    rows.add_share(two, LossShare(0, 0.5))
    rows.add(one, done(0, 0.25, 1.0))
    assert rows.begin(0, both, 2, "1", both) == []
    rows.add_share(two, LossShare(0, 0.5))
    (row,) = rows.begin(1, members((0, 0)), 1, "1", members((0, 0)))
    assert row == StepRow(0, 0.75, 1.0, 2, "0")


ONE, TWO, BOTH = Member((0, 0), 0), Member((1, 0), 0), members((0, 0), (1, 0))


def begun_with_void_shares() -> StepRows:
    """Both have said what they add to step 9, before step 8 was left out."""
    rows = StepRows(9)
    rows.begin(9, BOTH, 2, "0", BOTH)
    rows.add_share(ONE, LossShare(9, NAN, 0.1, corrections=0))
    rows.add_share(TWO, LossShare(9, NAN, 0.1, corrections=0))
    return rows


def test_a_step_that_is_run_again_has_its_shares_anew() -> None:
    rows = begun_with_void_shares()
    rows.add_share(ONE, LossShare(9, 0.25, 0.2, corrections=1))
    assert rows.add(TWO, done(9, 0.5, 1.0, corrections=1)) == []
    (row,) = rows.add(ONE, done(9, 0.25, 1.0, corrections=1))
    assert (row.loss, row.learning_rate) == (0.75, 0.2)


def test_a_share_of_before_a_correction_is_unknown_after_it() -> None:
    """The other worker's later message is not heard, and it fails."""
    rows = begun_with_void_shares()
    rows.add_share(ONE, LossShare(9, 0.25, 0.2, corrections=1))
    rows.add(ONE, done(9, 0.25, 1.0, corrections=1))
    (row,) = rows.begin(10, members((0, 0)), 1, "1", members((0, 0)))
    assert (row.loss, row.learning_rate) == (None, 0.2)


def test_whoever_has_no_share_tells_of_a_correction_too() -> None:
    first, last = Member((0, 0), 0), Member((0, 1), 0)
    rows = StepRows(9)
    rows.begin(9, frozenset({first, last}), 2, "0 0", frozenset({last}))
    rows.add_share(last, LossShare(9, NAN))
    rows.add(first, done(9, None, 1.0, corrections=1))
    rows.add_share(last, LossShare(9, NAN))
    (row,) = rows.begin(10, frozenset({first}), 1, "0 1")
    assert row.loss is None


def test_a_step_counts_as_it_was_made_first_only_with_the_same_corrections() -> None:
    """Step 8 is left out when a generation begins, and step 9 is made in that one; a share is not heard."""
    rows = begun_with_void_shares()
    assert rows.begin(9, BOTH, 2, "1", BOTH) == []
    rows.add(ONE, done(9, 0.25, 1.0, corrections=1))
    (row,) = rows.begin(10, members((0, 0)), 1, "2", members((0, 0)))
    assert (row.loss, row.plan) == (None, "1")


def test_a_correction_makes_what_was_made_before_it_void_for_good() -> None:
    """One of two has made step 9 after the correction, and should undo it; the other fails before it has."""
    rows = begun_with_void_shares()
    assert rows.begin(9, BOTH, 2, "1", BOTH) == []
    rows.add(ONE, done(9, 0.25, 1.0, corrections=1))
    assert rows.begin(9, BOTH, 2, "2", BOTH) == []
    (row,) = rows.begin(10, members((0, 0)), 1, "3", members((0, 0)))
    assert row.loss is None
