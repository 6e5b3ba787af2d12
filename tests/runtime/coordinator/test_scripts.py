"""Answers to scripts of a job: the same to all of them, and to those that come later."""

from recycle_runtime.coordinator.events import Note, Send, Tell
from recycle_runtime.coordinator.scripts import Scripts
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.scripts import (
    Evaluated,
    EvaluationShare,
    KeptRequest,
    KeptState,
    LoopBegins,
    OtherEnded,
    OtherEvaluates,
)
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled

FIRST, SECOND, THIRD = (Member((pipeline, 0), 0) for pipeline in range(3))
ALL = [FIRST, SECOND, THIRD]
ROW = StepRow(4, 0.5, 0.1, 3, "0")


def running(step: int = 0) -> Scripts:
    scripts = Scripts()
    scripts.begin(step, ALL, frozenset({SECOND, THIRD}))
    return scripts


def test_one_worker_speaks_for_all_as_long_as_it_lives() -> None:
    scripts = running()
    assert scripts.main == FIRST
    scripts.begin(1, [SECOND, THIRD], frozenset({SECOND}))
    assert scripts.main == SECOND
    scripts.begin(2, ALL, frozenset({SECOND}))
    assert scripts.main == SECOND


def test_a_row_is_told_to_whoever_asks_before_or_after() -> None:
    scripts = running()
    assert scripts.wants_row(FIRST, 4) == [] == scripts.wants_row(FIRST, 4)
    assert scripts.row(ROW) == [Send(FIRST, ROW)]
    assert scripts.wants_row(SECOND, 4) == [Send(SECOND, ROW)]


def test_what_became_of_a_step_is_told_to_whoever_asks_before_or_after() -> None:
    scripts, settled = running(), StepSettled(4, 1.5, is_skipped=False)
    assert scripts.wants_settled(FIRST, 4) == [] == scripts.wants_settled(FIRST, 4)
    scripts.wants_settled(THIRD, 4)
    scripts.drop(THIRD)
    assert scripts.settle(settled) == [Send(FIRST, settled)]
    assert scripts.wants_settled(SECOND, 4) == [Send(SECOND, settled)]


def test_a_resumed_run_knows_what_its_checkpoint_knew_of_the_last_step() -> None:
    scripts, unknown = Scripts(), StepSettled(4, None, is_skipped=False)
    scripts.resume(5, b"", ROW)
    assert scripts.wants_settled(FIRST, 4) == [Send(FIRST, unknown)]
    scripts, known = Scripts(), StepSettled(4, 1.5, is_skipped=True)
    scripts.resume(5, b"", ROW, known)
    assert scripts.settle(unknown) == [], "a worker has asked its own optimizer, which does not know"
    assert scripts.wants_settled(FIRST, 4) == [Send(FIRST, known)]


def test_an_evaluation_is_complete_when_all_shares_are_there() -> None:
    scripts = running()
    assert scripts.share(SECOND, EvaluationShare(1, 0, 0, 4, 1.0), ALL) == []
    # Somebody fails: in the next group it is made again.
    scripts.begin(0, ALL, frozenset({SECOND, THIRD}))
    assert scripts.share(THIRD, EvaluationShare(2, 0, 0, 4, 2.0), ALL) == []
    result = Evaluated(0, 0, 0.75)
    told = scripts.share(SECOND, EvaluationShare(2, 0, 0, 4, 1.0), ALL)
    words = Tell("evaluation 0 after 0 steps: loss 0.750000")
    assert told == [Note({"evaluated": result}), words, *(Send(member, result) for member in ALL)]
    assert scripts.share(SECOND, EvaluationShare(2, 0, 0, 4, 1.0), ALL) == [], "said again"
    # Whoever joins before the same step is told with its first order, others when they ask.
    assert Send(THIRD, result) in scripts.begin(0, ALL, frozenset({SECOND}))
    assert scripts.begin(1, ALL, frozenset({SECOND})) == []
    assert scripts.result(THIRD, 0, 0, ALL) == [Send(THIRD, result)]
    # Of one that nobody has made the others hear, once.
    told = scripts.result(FIRST, 1, 0, ALL)
    assert told == [Send(other, OtherEvaluates((0, 0), 1, 0)) for other in ALL[1:]]
    assert scripts.result(SECOND, 1, 0, ALL) == []


def test_scripts_that_ask_for_different_steps() -> None:
    scripts = running()
    assert scripts.wants(FIRST, 0, 10) is None and scripts.wants(SECOND, 0, 10) is None
    assert scripts.wants(FIRST, 1, 20) is None
    why = scripts.wants(THIRD, 0, 12)
    assert why is not None and why.startswith(
        "the script of worker 2:0 asks for 12 steps, and that of worker"
    )


def test_where_loops_begin_is_kept_for_those_who_join_and_resume() -> None:
    scripts = running()
    assert scripts.wants(FIRST, 0, 10, 0) is None
    assert scripts.loop(THIRD, 1) == [Send(THIRD, LoopBegins(1, None))]
    assert scripts.wants(FIRST, 1, 20, 4) is scripts.wants(SECOND, 1, 20, 4) is None
    assert scripts.loop(THIRD, 1) == [Send(THIRD, LoopBegins(1, 4))]
    # One that joins does not know where it began.
    assert scripts.wants(THIRD, 1, 20) is None
    assert scripts.loops_before(3) == ((0, 0),) and scripts.loops_before(4) == ((0, 0), (1, 4))
    resumed = Scripts()
    resumed.resume(5, b"", ROW, None, scripts.loops_before(5))
    assert resumed.loop(FIRST, 1) == [Send(FIRST, LoopBegins(1, 4))]


def test_the_end_of_all_scripts() -> None:
    scripts = running()
    assert scripts.ended_before(ALL) is None
    assert scripts.end(FIRST, 7, ALL) == [Send(other, OtherEnded((0, 0), 7)) for other in ALL[1:]]
    scripts.end(SECOND, 7, ALL)
    assert scripts.ended_before(ALL) is None
    scripts.end(THIRD, 7, ALL)
    assert scripts.ended_before(ALL) == 7
    scripts.drop(THIRD)
    assert scripts.ended_before(ALL) is None
    assert scripts.ended_before([FIRST, SECOND]) == 7


def test_kept_state_comes_from_the_main_worker_or_the_next_one() -> None:
    scripts = running(3)
    assert scripts.wants_kept(THIRD, 3) == [Send(FIRST, KeptRequest(3))]
    assert scripts.wants_kept(SECOND, 3) == []
    assert scripts.begin(3, [SECOND, THIRD], frozenset()) == [Send(SECOND, KeptRequest(3))]
    scripts.drop(SECOND)
    assert scripts.keeps(3, b"kept") == [Send(THIRD, KeptState(3, b"kept"))]
    assert scripts.wants_kept(SECOND, 3) == [Send(SECOND, KeptState(3, b"kept"))]
    assert scripts.want_kept(3) == []


def test_a_run_that_is_resumed_knows_what_was_kept() -> None:
    scripts = Scripts()
    scripts.resume(5, b"kept", ROW)
    assert scripts.wants_row(FIRST, 4) == [Send(FIRST, ROW)]
    assert scripts.wants_kept(FIRST, 5) == [Send(FIRST, KeptState(5, b"kept"))]
