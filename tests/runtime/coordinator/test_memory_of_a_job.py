"""Records that outlive a coordinator or an agent: the journal, and which processes run where."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.coordinator.agents import Agents
from recycle_runtime.coordinator.events import (
    AllReturned,
    BeginGeneration,
    EndJob,
    Joined,
    Note,
    Returned,
    Said,
    Send,
    WorkerFailed,
)
from recycle_runtime.coordinator.journal import Journal, JournalLine, Lines
from recycle_runtime.coordinator.last_generation import Remembered, remembered
from recycle_runtime.coordinator.last_save import LastSave
from recycle_runtime.coordinator.layer_moves import LayerMoves
from recycle_runtime.coordinator.outlives import read_journal
from recycle_runtime.coordinator.scripts import Scripts
from recycle_runtime.coordinator.skipped_steps import SkippedSteps
from recycle_runtime.coordinator.state_machine import Phase, StateMachine
from recycle_runtime.coordinator.step_rows import StepRows, told_since
from recycle_runtime.plan.plan_book import PlanBook
from recycle_runtime.protocol.messages.agents import (
    AgentJoin,
    KillProcess,
    RenameProcess,
    RunningProcess,
    StartProcess,
)
from recycle_runtime.protocol.messages.generations import (
    AtBoundary,
    Began,
    Done,
    End,
    Go,
    HeldState,
    Hold,
    Leave,
    LeftGroup,
)
from recycle_runtime.protocol.messages.members import InjectedFault, Member
from recycle_runtime.protocol.messages.steps import Recall, Settled, StepRow, StepSettled
from recycle_runtime.protocol.messages.wire import ToAgent
from tests.runtime.recovery.plans_for_tests import fake_bundle


def test_nothing_to_go_on_from(tmp_path: Path) -> None:
    assert remembered(read_journal(tmp_path / "journal")) is None
    journal = Journal(tmp_path / "journal")
    journal.write(row=0, told=StepRow(0, 0.5, 1.0, 2, "0"))
    journal.close()
    assert remembered(read_journal(tmp_path / "journal")) is None


def up_to(step: int) -> Lines:
    """A journal in which this is the first step without a row."""
    return Lines("journal", (JournalLine(1, {"row": step - 1}),))


def fill(path: Path) -> list[Lines]:
    """The state that is known after each line."""
    journal = Journal(path)
    states: list[Lines] = []

    def write(**fields: Any) -> None:
        journal.write(**fields)
        states.append(read_journal(path))

    write(bundle="a.plan")
    write(generation=1, step=0, places=[[0, 0], [1, 0]])
    write(row=0, told=StepRow(0, 0.5, 1.0, 2, "0"))
    write(row=1, told=StepRow(1, float("nan"), 1.0, 2, "0"))
    write(generation=4, step=2, places=[[1, 0]])
    write(bundle="b.plan")
    write(row=2, told=StepRow(2, 0.25, 1.0, 1, "1"))
    journal.close()
    return states


def test_the_end_of_a_journal(tmp_path: Path) -> None:
    fill(tmp_path / "journal")
    lines = read_journal(tmp_path / "journal")
    assert remembered(lines) == Remembered(4, 2, ((1, 0),))
    assert lines.values("bundle") == ["a.plan", "b.plan"]
    assert [row.step for row in told_since(lines, 1)] == [1, 2]
    rows = StepRows()
    rows.recall(lines)
    assert rows.next == 3


def test_who_was_joining_is_remembered(tmp_path: Path) -> None:
    """With where it stands; older journals do not say."""
    journal = Journal(tmp_path / "journal")
    journal.write(generation=1, step=0, places=[(0, 0), (1, 0)])
    journal.write(generation=2, step=3, places=[(0, 0)], joiners=[((1, 0), (2, 0))])
    journal.close()
    found = remembered(read_journal(tmp_path / "journal"))
    assert found is not None and found.joiners == {(1, 0): (2, 0)}


def test_a_joiner_may_be_all_that_is_left_of_a_stage() -> None:
    """It has caught up, its only peer fails, and it has not found the restarted coordinator yet."""
    book = PlanBook(fake_bundle(2, 2, [[], [(0, 1)], [(1, 1)]]))
    job = StateMachine(book, 1, 30, set(book.grid), 0.0)
    job.remember(Remembered(3, 4, ((0, 0), (0, 1), (1, 0)), joiners={(1, 1): (1, 1)}), up_to(5))
    here = [Member(worker, 0) for worker in ((0, 0), (0, 1), (1, 0))]
    for member in here:
        assert job.handle(Returned(member, is_training=True, asked=3), 1.0)
    job.handle(WorkerFailed((0, 1), "was killed"), 2.0)
    assert job.phase is Phase.GATHERING
    late = Member((1, 1), 0)
    assert job.handle(Returned(late, is_training=True, asked=3), 3.0) == [
        Send(late, Recall(5)),
        Send(late, Leave(4)),
    ]
    for member in (here[0], here[2], late):
        orders = job.handle(Said(member, LeftGroup(4, HeldState(5, is_fresh=False))), 4.0)
    assert next(order for order in orders if isinstance(order, BeginGeneration)).step == 5


@pytest.mark.parametrize(("training", "asked"), [(False, 3), (False, 6), (True, 6)])
def test_a_change_that_the_coordinator_before_began_is_made(training: bool, asked: int) -> None:
    """Processes obey nothing that is older than what they have heard of: it has a later number."""
    book = PlanBook(fake_bundle(1, 2, [[], [(1, 0)]]))
    job = StateMachine(book, 1, 30, set(book.grid), 0.0)
    members = [Member(worker, 0) for worker in book.grid]
    job.remember(Remembered(3, 4, tuple(book.grid)), up_to(5))
    # It may have been told to stop before a step by the coordinator before.
    assert job.handle(Returned(members[0], is_training=True, asked=3), 1.0) == [
        Send(members[0], Recall(5)),
        Send(members[0], Hold(30, 0)),
    ]
    assert job.handle(Returned(members[1], is_training=training, asked=asked), 1.0)
    orders = job.handle(AllReturned(), 1.0)
    number = max(4, asked + 1)
    assert [order for order in orders if isinstance(order, Send)] == [
        Send(member, Leave(number)) for member in members
    ]
    for member in members:
        orders = job.handle(Said(member, LeftGroup(number, HeldState(5, is_fresh=False))), 2.0)
    assert [(each.number, each.step) for each in orders if isinstance(each, BeginGeneration)] == [(number, 5)]


def test_what_a_joiner_was_given_counts_though_all_are_asked_to_leave_again() -> None:
    """It has come back with an old state, joins, catches up, and its donor fails before it has been heard."""
    book = PlanBook(fake_bundle(1, 2, [[], [(1, 0)]]))
    job = StateMachine(book, 1, 30, set(book.grid), 0.0)
    donor, joiner = Member((0, 0), 0), Member((1, 0), 0)
    job.remember(Remembered(3, 4, (donor.worker,)), up_to(5))
    job.handle(Returned(donor, is_training=True, asked=3), 1.0)
    job.handle(AllReturned(), 1.0)
    job.handle(Joined(joiner, has_trained=True, asked=0), 2.0)
    job.handle(Said(joiner, LeftGroup(3, HeldState(2, is_fresh=False))), 2.0)
    job.handle(Said(donor, AtBoundary(7)), 3.0)
    job.handle(Said(donor, LeftGroup(4, HeldState(7, is_fresh=False))), 3.0)
    orders = job.handle(Said(joiner, LeftGroup(4, HeldState(2, is_fresh=False))), 3.0)
    assert [
        order.message.donor for order in orders if isinstance(order, Send) and isinstance(order.message, Go)
    ]
    job.handle(WorkerFailed(donor.worker, "was killed"), 4.0)
    job.handle(Said(joiner, Began(4, 0, None)), 4.0)
    orders = job.handle(Said(joiner, LeftGroup(5, HeldState(8, is_fresh=False))), 4.0)
    assert [order.step for order in orders if isinstance(order, BeginGeneration)] == [8]


def test_moves_of_layers_are_counted(tmp_path: Path) -> None:
    """Over all generations, so that none has the number of another."""
    journal = Journal(tmp_path / "journal")
    for generation, layout in enumerate(("4x3,2x2", "3x2,3x2"), 1):
        journal.write(generation=generation, step=0, places=[[0, 0]])
        journal.write(move=layout)
        journal.write(move=None)
    journal.close()
    moves = LayerMoves()
    moves.recall(read_journal(tmp_path / "journal"))
    assert moves.begun == 2 and moves.all_returned() == []


def test_a_restarted_coordinator_waits_for_what_is_being_saved(tmp_path: Path) -> None:
    """One worker had said that it was done, another has ended well since, a third is still at it."""
    members = [Member((pipeline, 0), 0) for pipeline in range(3)]
    journal = Journal(tmp_path / "journal")
    journal.write(generation=1, step=0, places=[member.worker for member in members])
    journal.write(last_save=LastSave(7, tuple((member, 0) for member in members), None))
    journal.write(done=members[0], error=None)
    journal.close()
    lines = read_journal(tmp_path / "journal")
    state = remembered(lines)
    assert state is not None
    book = PlanBook(fake_bundle(1, 3, [[]]))
    job = StateMachine(book, 1, 30, set(book.grid), 0.0)
    job.remember(state, lines)
    assert job.handle(Returned(members[2], is_training=False, asked=1), 1.0) == [
        Send(members[2], Recall(0)),
        Send(members[2], End(ok=True)),
    ]
    assert job.handle(Said(members[1], Done(None)), 2.0) == [Note({"done": members[1], "error": None})]
    orders = job.handle(Said(members[2], Done("the disk is full")), 3.0)
    assert [order.error for order in orders if isinstance(order, EndJob)] == ["worker 2:0: the disk is full"]
    assert job.steps == 7


def test_whether_a_worker_saves_is_known_again_after_a_restart() -> None:
    """Found by the simulated world: the job ended well before anything was saved."""
    book = PlanBook(fake_bundle(1, 2, [[]]))
    job = StateMachine(book, 1, 5, set(book.grid), 0.0)
    job.remember(Remembered(1, 0, ((0, 0), (1, 0))), up_to(5))
    members = list(job.roster.members())
    for member in members:
        job.handle(Returned(member, is_training=True, asked=1, saves=True), 1.0)
    orders = [order for member in members for order in job.handle(Said(member, AtBoundary(5)), 2.0)]
    assert job.phase is Phase.SAVING and any(
        isinstance(order, Note) and "last_save" in order.fields for order in orders
    )


@given(cut=st.integers(0, 10_000))
def test_a_line_cut_short_counts_for_nothing(tmp_path_factory: Any, cut: int) -> None:
    path: Path = tmp_path_factory.mktemp("journal") / "journal"
    states = fill(path)
    text = path.read_bytes()
    kept = text[: cut % (len(text) + 1)]
    path.write_bytes(kept)
    whole = kept.count(b"\n")
    # A line without its end may be whole all the same.
    assert read_journal(path) in (
        states[whole - 1] if whole else Lines(path),
        states[min(whole, len(states) - 1)],
    )


class Line:
    """A connection to an agent."""

    def __init__(self) -> None:
        self.said: list[ToAgent] = []

    def send(self, message: ToAgent) -> None:
        self.said.append(message)

    def close(self) -> None: ...


def test_workers_start_where_there_is_room() -> None:
    agents, first, second = Agents(1), Line(), Line()
    assert not agents.start((0, 0), ())
    agents.arrive(first, AgentJoin("", 1, ()), 0.0)
    agents.arrive(second, AgentJoin("", 1, ()), 0.0)
    assert agents.start((0, 0), (InjectedFault("kill", 3, -1),))
    assert not agents.start((0, 0), ())
    assert agents.start((1, 0), ())
    assert not agents.start((2, 0), ())
    assert [len(line.said) for line in (first, second)] == [1, 1]
    assert agents.gone(first, Member((0, 0), 0))
    assert not agents.gone(first, Member((0, 0), 0))
    assert agents.start((2, 0), ())


def test_parts_of_a_worker_run_on_one_node() -> None:
    agents, narrow, wide = Agents(2), Line(), Line()
    agents.arrive(narrow, AgentJoin("", 1, ()), 0.0)
    agents.arrive(wide, AgentJoin("", 3, ()), 0.0)
    assert agents.start((0, 0), ())
    assert not narrow.said
    assert wide.said == [StartProcess(Member((0, 0), rank), ()) for rank in (0, 1)]
    assert not agents.start((1, 0), ())


def test_an_agent_that_starts_again_knows_its_processes() -> None:
    agents, first, again = Agents(1), Line(), Line()
    agents.arrive(first, AgentJoin("", 2, ()), 0.0)
    agents.start((0, 0), ())
    agents.leave(first)
    assert not agents.has(Member((0, 0), 0))
    agents.arrive(again, AgentJoin("", 2, (RunningProcess(Member((0, 0), 0), 123),)), 0.0)
    assert agents.has(Member((0, 0), 0))
    agents.kill(Member((0, 0), 0))
    agents.rename(Member((0, 0), 0), Member((0, 1), 0))
    assert [type(message) for message in again.said] == [KillProcess, RenameProcess]
    assert agents.has(Member((0, 1), 0))


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """They were a traceback; the lines around them count."""
    path = tmp_path / "journal"
    states = fill(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\xff\xfe{]\n", *lines[2:]]))
    assert remembered(read_journal(path)) == remembered(states[-1])
    path.write_bytes(b"".join([*lines, b"\xc3"]))
    assert read_journal(path) == states[-1]


def test_the_line_after_one_that_was_cut_short(tmp_path: Path) -> None:
    """It was written behind the half line, and lost with it."""
    path = tmp_path / "journal"
    fill(path)
    path.write_bytes(path.read_bytes()[:-5])
    journal = Journal(path)
    journal.write(row=2, told=StepRow(2, 0.25, 1.0, 1, "1"))
    journal.write(row=3, told=StepRow(3, 0.25, 1.0, 1, "1"))
    journal.close()
    assert [row.step for row in told_since(read_journal(path), 0)] == [0, 1, 2, 3]


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The job ended. Lines wait now until there is room, and the user is told once each way."""
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.write(generation=1, step=0, places=[[0, 0]])
    assert journal.news() == []
    room = [10, 0, 3]

    class Full:
        def write(self, data: bytes) -> int:
            if not room:
                return os.write(descriptor, data)
            if (left := room.pop(0)) == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return os.write(descriptor, data[:left])

    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    monkeypatch.setattr(journal, "_file", Full())
    journal.write(row=0, told=StepRow(0, 0.5, 1.0, 2, "0"))
    told = journal.news()
    assert "cannot write" in told[0].text and "no space left on device" in told[0].text
    assert journal.news() == []
    journal.write(row=1, told=StepRow(1, 0.5, 1.0, 2, "0"))
    assert [event.text for event in journal.news()] == [f"{path} can be written again"]
    os.close(descriptor)
    assert [row.step for row in told_since(read_journal(path), 0)] == [0, 1]


def test_what_became_of_steps_is_remembered(tmp_path: Path) -> None:
    """Else a job whose steps are all skipped would be told to have gone well."""
    path = tmp_path / "journal"
    fill(path)
    journal = Journal(path)
    for step, is_skipped in enumerate((False, True, True)):
        journal.write(settled=StepSettled(step, float("nan") if is_skipped else 0.5, is_skipped))
    journal.write(row=3, told=StepRow(3, 0.25, 1.0, 1, "1"))
    journal.close()
    skipped = SkippedSteps(most=3)
    skipped.recall(read_journal(path))
    assert skipped.in_a_row == 2 and not skipped.is_too_often
    # `--max-skipped` counts those before the coordinator died.
    process = Member((0, 0), 0)
    skipped.hear(process, Settled(3, float("nan"), True), [process], lambda worker: 0)
    assert skipped.is_too_often
    # Workers do not say again what stands in the journal: a script that waits for it would wait for ever.
    scripts, waits = Scripts(), Member((0, 0), 0)
    scripts.recall(read_journal(path))
    assert scripts.wants_settled(waits, 0) == [Send(waits, StepSettled(0, 0.5, is_skipped=False))]
    told = told_since(read_journal(path), 2)
    assert [(type(each), each.step) for each in told] == [
        (StepRow, 2),
        (StepSettled, 1),
        (StepSettled, 2),
        (StepRow, 3),
    ]
    # The run goes on from a checkpoint: what comes is made again.
    journal = Journal(path)
    journal.write(begins=["step-00000002", 2, 16])
    journal.close()
    skipped, scripts = SkippedSteps(), Scripts()
    skipped.recall(read_journal(path))
    scripts.recall(read_journal(path))
    assert skipped.in_a_row == 0
    assert scripts.wants_settled(waits, 2) == [] == scripts.wants_row(waits, 3)
