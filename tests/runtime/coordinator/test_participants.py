"""A participant is a class in a file of its own and a line in the list: nothing else has to know it."""

import pytest

from recycle_runtime.coordinator import participants
from recycle_runtime.coordinator.events import EndJob, GivenUp, Note, Order, Said, Tell
from recycle_runtime.coordinator.journal import Field, JournalLine, Lines
from recycle_runtime.coordinator.last_generation import Remembered
from recycle_runtime.coordinator.participant import Asked, Hears, Memory, NewGeneration, Participant, View
from recycle_runtime.coordinator.peer_digests import PeerDigests
from recycle_runtime.coordinator.state_machine import StateMachine
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.plan_book import PlanBook
from recycle_runtime.protocol.messages.checkpoints import CheckpointMissed
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.neighbour_copies import CopyMissed
from recycle_runtime.protocol.messages.steps import PeerDigest
from tests.runtime.coordinator.fake_job import FakeJob
from tests.runtime.recovery.plans_for_tests import fake_bundle

WORKER = Member((0, 0), 0)


class Digests(Participant):
    """Writes down how many it has heard of."""

    memory = (Memory("digests", said=(PeerDigest,), journal={"digests": Field(int)}),)

    def __init__(self) -> None:
        self.count, self.generations = 0, list[int]()

    @classmethod
    def open(cls, asked: Asked, job: View) -> "Digests":
        return cls()

    def hears(self) -> Hears:
        return {PeerDigest: self._hear}

    def _hear(self, member: Member, said: PeerDigest) -> list[Order]:
        self.count += 1
        return [Note({"digests": self.count})]

    def recall(self, lines: Lines) -> None:
        self.count = lines.values("digests")[-1]

    def go_on(self, new: NewGeneration) -> None:
        self.generations.append(new.number)

    def ends(self) -> list[Order]:
        return [Tell(f"{self.count} digests")]


def job() -> StateMachine:
    book = PlanBook(fake_bundle(1, 1, [[]]))
    made = StateMachine(book, 1, 5, set(book.grid), 0.0)
    made.remember(Remembered(7, 0, ((0, 0),)), Lines("journal", (JournalLine(1, {"digests": 3}),)))
    return made


def test_its_messages_its_journal_and_its_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [kind for kind in participants.PARTICIPANTS if kind is not PeerDigests]
    monkeypatch.setattr(participants, "PARTICIPANTS", (*others, Digests))
    made = job()
    assert made.handle(Said(WORKER, PeerDigest(7, 2, {})), 1.0) == [Note({"digests": 4})]
    (found,) = (each for each in made.participants if isinstance(each, Digests))
    assert found.generations == [7]
    orders = made.handle(GivenUp("no more"), 2.0)
    assert orders.count(Tell("4 digests")) == 1
    assert orders.index(Tell("4 digests")) < orders.index(EndJob("no more", no_plan=False))


def test_it_has_the_last_word_of_a_job_that_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [kind for kind in participants.PARTICIPANTS if kind is not PeerDigests]
    monkeypatch.setattr(participants, "PARTICIPANTS", (*others, Digests))
    orders = list[Order]()

    class Job(FakeJob):
        def _carry_out(self, order: Order) -> None:
            orders.append(order)
            super()._carry_out(order)

    Job(2, AdaptationOptions()).run(3)
    assert orders.count(Tell("0 digests")) == 1
    assert orders.index(Tell("0 digests")) < orders.index(EndJob(None, no_plan=False))


def test_what_is_meant_for_one_that_is_not_there_leads_to_nothing() -> None:
    """It may answer a coordinator that was started with other options."""
    made = job()
    names = [type(each).__name__ for each in made.participants]
    assert "Checkpoints" not in names and "NeighbourCopies" not in names
    for message in (CheckpointMissed("step-1"), CopyMissed("copy-1")):
        assert type(message) in made.messages.kinds
        assert made.handle(Said(WORKER, message), 1.0) == []
