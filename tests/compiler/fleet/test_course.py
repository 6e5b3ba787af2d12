"""Leading a policy through a trace: pauses, failed work, and that nothing is counted twice."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.fleet.course import Course, Start, lead
from recycle_compiler.fleet.policy import Change, Reaction, Worker

NO_WORKERS: frozenset[Worker] = frozenset()
WHOLE = Start(NO_WORKERS, 0)


class Scripted:
    """Answers as it was told to."""

    name = "scripted"
    note = ""

    def __init__(self, first: float, answers: Sequence[Reaction]) -> None:
        self._first, self._answers = first, list(answers)

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        return self._first

    def react(self, change: Change) -> Reaction:
        return self._answers.pop(0)


class Waking(Scripted):
    """Does something of its own accord at these moments."""

    def __init__(self, first: float, answers: Sequence[Reaction], wakes: Sequence[float]) -> None:
        super().__init__(first, answers)
        self.wakes = list(wakes)

    def due(self) -> float | None:
        return self.wakes[0] if self.wakes else None

    def act(self, at: float) -> Reaction:
        assert at == self.wakes.pop(0)
        return self._answers.pop(0)


def at(*moments: float) -> list[Change]:
    return [Change(moment, NO_WORKERS, NO_WORKERS, NO_WORKERS, 0) for moment in moments]


def course(first: float, moments: Sequence[float], *answers: Reaction, span: float = 100) -> Course:
    return lead(Scripted(first, answers), WHOLE, at(*moments), span)


def test_nothing_happens() -> None:
    result = course(2.0, [])
    assert (result.kept, result.redone, result.still, result.rates()) == (200.0, 0.0, 0.0, [(0.0, 2.0)])


def test_a_pause_and_another_rate() -> None:
    result = course(2.0, [10], Reaction(1.0, pause=5))
    assert result.rates() == [(0.0, 2.0), (10, 0.0), (15, 1.0)]
    assert (result.kept, result.still) == (20 + 85, 5)


def test_work_is_lost_where_it_was_done() -> None:
    result = course(2.0, [10], Reaction(1.0, pause=5, redone=4))
    assert result.rates() == [(0.0, 2.0), (6, 0.0), (15, 1.0)]
    assert (result.kept, result.redone) == (12 + 85, 8)


def test_lost_work_reaches_back_over_pauses_at_the_rates_of_then() -> None:
    result = course(2.0, [10, 20], Reaction(1.0, pause=5), Reaction(1.0, redone=8))
    assert result.redone == 5 * 1.0 + 3 * 2.0
    assert result.rates() == [(0.0, 2.0), (7, 0.0), (20, 1.0)]


def test_more_cannot_be_lost_than_was_done() -> None:
    result = course(2.0, [10, 20], Reaction(1.0, redone=1000), Reaction(1.0, redone=1000))
    assert (result.kept, result.redone) == (80, 30)


def test_a_change_in_a_pause() -> None:
    result = course(2.0, [10, 12], Reaction(1.0, pause=5), Reaction(3.0, pause=10))
    assert result.rates() == [(0.0, 2.0), (10, 0.0), (22, 3.0)]


def test_a_pause_is_not_forgotten_by_a_change_that_costs_nothing() -> None:
    result = course(2.0, [10, 12], Reaction(1.0, pause=5), Reaction(3.0))
    assert result.rates() == [(0.0, 2.0), (10, 0.0), (15, 3.0)]


def test_changes_that_are_none_for_a_policy_leave_no_trace() -> None:
    same = Reaction(2.0)
    result = course(2.0, range(1, 90), *(same for _ in range(1, 90)))
    assert len(result.stretches) == 1 and not result.log and result.kept == 200.0


def test_a_pause_at_the_end() -> None:
    assert course(1.0, [90], Reaction(1.0, pause=50)).kept == 90


def test_what_comes_after_the_span_is_not_seen() -> None:
    assert course(1.0, [100, 150]).kept == 100


def test_standing_still() -> None:
    result = course(1.0, [10, 30], Reaction(0.0), Reaction(2.0))
    assert (result.kept, result.still) == (10 + 140, 20)


def test_a_policy_may_act_between_changes() -> None:
    policy = Waking(1.0, [Reaction(2.0), Reaction(3.0, pause=1), Reaction(4.0)], wakes=[5, 30])
    result = lead(policy, WHOLE, at(10), 100)
    assert result.rates() == [(0.0, 1.0), (5, 2.0), (10, 0.0), (11, 3.0), (30, 4.0)]
    assert [logged.at for logged in result.log] == [5, 10, 30]


def test_negative_numbers_are_a_bug() -> None:
    with pytest.raises(ValueError, match="negative"):
        course(1.0, [10], Reaction(-1.0))


reactions = st.builds(
    Reaction,
    st.sampled_from([0.0, 0.5, 2.0]),
    st.floats(0, 40),
    st.floats(0, 60),
    st.just(""),
    st.floats(0, 50),
)


@given(st.lists(st.tuples(st.floats(0.1, 99), reactions), max_size=12), st.sampled_from([0.0, 1.0, 3.0]))
def test_the_timeline_adds_up(script: list[tuple[float, Reaction]], first: float) -> None:
    script.sort(key=lambda pair: pair[0])
    result = course(first, [moment for moment, _ in script], *(reaction for _, reaction in script))
    steps = [*result.rates(), (100.0, 0.0)]
    assert all(rate >= 0 for _, rate in steps)
    assert [moment for moment, _ in steps] == sorted(moment for moment, _ in steps)
    integral = sum(rate * (end - begin) for (begin, rate), (end, _) in pairwise(steps))
    done = sum((stretch.end - stretch.begin) * stretch.rate for stretch in result.stretches)
    assert integral == pytest.approx(result.kept, abs=1e-6)
    assert done - result.redone == pytest.approx(result.kept, abs=1e-6)
    assert sum(stretch.end - stretch.begin for stretch in result.stretches) == pytest.approx(100.0)
