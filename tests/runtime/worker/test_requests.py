"""Meetings of a script and the engine: who waits for whom, and what the script sees of steps made again."""

import threading
from collections.abc import Callable
from typing import Any

from recycle_runtime.protocol.messages.generations import Failed
from recycle_runtime.protocol.messages.scripts import (
    Evaluated,
    EvaluationRequest,
    EvaluationShare,
    KeptRequest,
    KeptState,
    LoopBegins,
    LoopRequest,
    OtherEnded,
    OtherEvaluates,
    OtherSaves,
    RowRequest,
    Saved,
    SaveOrder,
    SaveRequest,
    SaveShare,
    ScriptEnded,
    ScriptSteps,
    SettledRequest,
)
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled
from recycle_runtime.protocol.messages.wire import FromWorker
from recycle_runtime.worker.requests import Evaluation, Next, Requests, Save

WAITS = 30.0


class Items:
    count = 3

    def item(self, index: int) -> tuple[Any, Any]:
        return index, index

    def signature(self, index: int) -> str:
        return "int"


class Talk:
    """Requests with what they say, and a script on a thread of its own."""

    def __init__(self) -> None:
        self.said: list[FromWorker] = []
        self.woken = threading.Semaphore(0)
        self.requests = Requests()
        self.requests.attach(self.said.append, self.woken.release)

    def script(self, call: Callable[[], Any]) -> "Call":
        return Call(call)

    def due(self, step: int) -> Next | Evaluation | Save:
        """The engine's turn, as soon as it need not wait."""
        while (found := self.requests.next(step)) is Next.WAIT:
            assert self.woken.acquire(timeout=WAITS)
        return found


class Call(threading.Thread):
    """A call of the script that waits."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.result: Any = None
        self.start()

    def run(self) -> None:
        self.result = self._call()

    def done(self) -> Any:
        self.join(WAITS)
        assert not self.is_alive()
        return self.result


def started(step: int = 0) -> Talk:
    talk = Talk()
    talk.requests.arrive(step, 0, (0, 1), 1, is_main=False)
    return talk


def test_an_engine_without_a_script_runs_free() -> None:
    assert [Requests().next(step) for step in range(3)] == [Next.STEP] * 3


def test_a_step_waits_for_the_script_and_the_script_for_the_step() -> None:
    talk = started()
    assert talk.requests.next(0) is Next.WAIT
    call = talk.script(lambda: talk.requests.make(0))
    assert talk.due(0) is Next.STEP
    assert call.is_alive()
    talk.requests.made(1)
    call.done()
    assert talk.requests.next(1) is Next.WAIT


def test_a_step_is_made_again_only_while_the_script_waits() -> None:
    """Another worker had not made step 0: the group goes back, and the script does not see it."""
    talk = started()
    call = talk.script(lambda: talk.requests.make(0))
    assert talk.due(0) is Next.STEP
    talk.requests.made(1)
    call.done()
    talk.requests.rest()
    talk.requests.arrive(0, 0, (0, 1), 2, is_main=True)
    # The script is in the body of its loop.
    assert talk.requests.next(0) is Next.WAIT
    call = talk.script(lambda: talk.requests.make(1))
    assert talk.due(0) is Next.STEP
    talk.requests.made(1)
    assert talk.due(1) is Next.STEP
    talk.requests.made(2)
    call.done()
    assert talk.requests.is_main


def test_where_a_script_begins() -> None:
    start = started(0).requests.begin()
    assert (start.step, start.is_made) == (0, False)
    start = started(5).requests.begin()
    assert (start.step, start.is_made) == (4, True)


def test_an_evaluation_is_made_again_in_another_group() -> None:
    talk = started()
    call = talk.script(lambda: talk.requests.evaluate(0, 0, Items()))
    found = talk.due(0)
    assert isinstance(found, Evaluation) and (found.step, found.number) == (0, 0)
    talk.requests.evaluated(found, 0.5)
    assert talk.requests.next(0) is Next.WAIT, "its part is done in this group"
    talk.requests.arrive(0, 0, (0, 1), 2, is_main=False)
    found = talk.due(0)
    assert isinstance(found, Evaluation)
    talk.requests.evaluated(found, 0.75)
    talk.requests.take(Evaluated(0, 0, 0.25))
    assert call.done() == 0.25
    shares = [said for said in talk.said if isinstance(said, EvaluationShare)]
    assert shares == [EvaluationShare(1, 0, 0, 3, 0.5), EvaluationShare(2, 0, 0, 3, 0.75)]


def test_an_evaluation_that_the_others_have_left_behind_is_asked_for() -> None:
    talk = started(7)
    call = talk.script(lambda: talk.requests.evaluate(3, 1, Items()))
    talk.requests.take(Evaluated(3, 1, 0.5))
    assert call.done() == 0.5
    assert EvaluationRequest(3, 1) in talk.said


def test_a_result_that_was_lost_with_a_coordinator_is_asked_for_again() -> None:
    talk = started()
    call = talk.script(lambda: talk.requests.evaluate(0, 0, Items()))
    found = talk.due(0)
    assert isinstance(found, Evaluation)
    talk.requests.evaluated(found, None)
    assert talk.said == [EvaluationRequest(0, 0)]
    talk.said.clear()
    talk.requests.recall()
    assert talk.said[-1] == EvaluationRequest(0, 0)
    talk.requests.take(Evaluated(0, 0, 0.5))
    assert call.done() == 0.5


def test_a_save_is_settled_written_when_ordered_and_written_again_in_another_group() -> None:
    talk = started(4)
    request = SaveRequest(4, 0, "/kept")
    first, second = (SaveShare(path, {}, 0, None) for path in ("/a", "/b"))
    call = talk.script(lambda: talk.requests.save(4, 0, "/kept", stays=True))
    assert talk.due(4) == Save(None)
    talk.requests.saved(None)
    assert talk.requests.next(4) is Next.WAIT
    talk.requests.take(SaveOrder(1, 4, 0, "/a"))
    assert talk.due(4) == Save("/a")
    talk.requests.saved(first)
    assert talk.requests.next(4) is Next.WAIT
    talk.requests.take(SaveOrder(2, 4, 0, "/b"))
    assert talk.requests.next(4) is Next.WAIT, "that is for the next group"
    talk.requests.arrive(4, 0, (0, 1), 2, is_main=False)
    assert talk.due(4) == Save("/b")
    talk.requests.saved(second)
    assert talk.said == [request, first, second]
    talk.requests.recall()
    assert talk.said[3:] == [request, second]
    talk.requests.take(Saved(4, 0, "/b", None))
    assert call.done().path == "/b"


def test_rows_are_asked_for_once_and_again_of_a_new_coordinator() -> None:
    talk = started()
    call = talk.script(lambda: talk.requests.row(0))
    while RowRequest(0) not in talk.said:
        pass
    talk.said.clear()
    talk.requests.recall()
    assert talk.said == [RowRequest(0)]
    row = StepRow(0, 0.5, 0.1, 4, "0 0")
    talk.requests.take(row)
    assert call.done() == row
    assert talk.requests.row(0) == row


def test_what_becomes_of_a_step_is_said_early_once_in_a_group_if_a_script_waits_for_it() -> None:
    talk = started(4)
    call = talk.script(lambda: talk.requests.settled(3))
    assert talk.due(4) is Next.JUDGE
    talk.requests.judged(3)
    assert talk.said == [SettledRequest(3)]
    assert talk.requests.next(4) is Next.WAIT
    # Whoever was told is gone: the next one is told too.
    talk.requests.recall()
    assert talk.said[1:] == [SettledRequest(3)]
    assert talk.due(4) is Next.JUDGE
    talk.requests.judged(3)
    talk.requests.arrive(4, 0, (0, 1), 2, is_main=False)
    assert talk.due(4) is Next.JUDGE
    talk.requests.judged(3)
    settled = StepSettled(3, 1.5, is_skipped=False)
    talk.requests.take(settled)
    assert call.done() == settled == talk.requests.settled(3)
    assert len(talk.said) == 2


def test_a_step_that_is_made_again_is_made_before_anything_is_said_of_it() -> None:
    talk = started(4)
    talk.script(lambda: talk.requests.settled(3))
    while not talk.said:
        pass
    assert talk.due(3) is Next.STEP
    talk.requests.made(4)
    assert talk.due(4) is Next.JUDGE


def test_where_a_loop_has_begun_is_asked_for_and_again_of_a_new_coordinator() -> None:
    talk = started(4)
    assert [talk.requests.want(9, None), talk.requests.want(20, 4)] == [0, 1]
    call = talk.script(lambda: talk.requests.loop_begins(2))
    while LoopRequest(2) not in talk.said:
        pass
    talk.requests.recall()
    loops = [ScriptSteps(0, 9, None), ScriptSteps(1, 20, 4)]
    assert talk.said == [*loops, LoopRequest(2), *loops, LoopRequest(2)]
    talk.requests.take(LoopBegins(2, 4))
    assert call.done() == 4


def test_a_script_that_ends_says_where() -> None:
    talk = started(4)
    talk.requests.want(9)
    talk.requests.end()
    assert talk.said == [ScriptSteps(0, 9), ScriptEnded(4)]
    assert talk.requests.next(4) is Next.STOP
    assert talk.requests.next(3) is Next.STEP, "another worker has not made it yet"


def test_another_script_that_ended_earlier_is_an_error() -> None:
    talk = started(4)
    talk.requests.take(OtherEnded((1, 1), 4))
    assert talk.said == []
    talk.script(lambda: talk.requests.make(4))
    while not talk.said:
        pass
    (said,) = talk.said
    assert isinstance(said, Failed) and said.is_hopeless
    assert "worker 1:1 ended before step 4, and that of worker 0:1 asks for it" in said.why


def passed(talk: Talk) -> str:
    """The error of going on, if any."""
    talk.script(lambda: talk.requests.make(4))
    while not any(isinstance(said, Failed) for said in talk.said):
        pass
    (said,) = [said for said in talk.said if isinstance(said, Failed)]
    assert said.is_hopeless
    return said.why


def test_another_script_that_evaluates_where_this_one_goes_on_is_an_error() -> None:
    talk = started(4)
    talk.requests.take(OtherEvaluates((1, 1), 3, 0))
    talk.requests.take(OtherEvaluates((1, 1), 4, 0))
    assert talk.said == [], "this worker has joined after 4 steps, and may still ask for the second"
    assert "worker 1:1 evaluates after 4 steps, and that of worker 0:1 goes on without it" in passed(talk)


def test_one_evaluation_less_than_another_script_is_an_error() -> None:
    talk = started(4)
    talk.requests.take(OtherEvaluates((1, 1), 4, 0))
    call = talk.script(lambda: talk.requests.evaluate(4, 0, Items()))
    talk.requests.take(Evaluated(4, 0, 0.5))
    assert call.done() == 0.5
    assert talk.said == [EvaluationRequest(4, 0)]
    talk.requests.take(OtherEvaluates((1, 1), 4, 1))
    assert "evaluates after 4 steps" in passed(talk)


def test_a_script_that_ends_without_an_evaluation_of_another() -> None:
    talk = started(4)
    talk.requests.end()
    talk.requests.take(OtherEvaluates((1, 1), 4, 0))
    said = talk.said[-1]
    assert isinstance(said, Failed) and "goes on without it" in said.why


def test_another_script_that_saves_where_this_one_goes_on_is_an_error() -> None:
    talk = started(4)
    talk.requests.take(OtherSaves((1, 1), 3, 0))
    talk.requests.take(OtherSaves((1, 1), 4, 0))
    assert talk.said == [], "this worker has joined after 4 steps, and may still ask for the second"
    assert "worker 1:1 saves after 4 steps, and that of worker 0:1 goes on without it" in passed(talk)


def test_what_a_script_keeps_is_told_when_it_is_there() -> None:
    talk = started()
    talk.requests.take(KeptRequest(2))
    talk.requests.keep(1, b"one")
    assert talk.said == []
    talk.requests.keep(2, b"two")
    assert talk.said == [KeptState(2, b"two")]
    talk.requests.take(KeptRequest(1))
    talk.requests.keep(3, b"three")
    talk.requests.take(KeptRequest(1))
    assert talk.said[1:] == [KeptState(1, b"one"), KeptState(1, None)]


def test_a_joiner_gets_what_the_others_keep() -> None:
    talk = started(3)
    call = talk.script(lambda: talk.requests.kept(3))
    talk.requests.take(KeptState(3, b"state"))
    assert call.done() == b"state"
