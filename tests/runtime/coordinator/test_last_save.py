"""All steps are made, and workers write their parameters: what of them a failure takes away."""

from recycle_runtime.coordinator.events import (
    EndJob,
    Note,
    Order,
    Returned,
    Said,
    Tell,
    WorkerFailed,
)
from recycle_runtime.coordinator.journal import JournalLine, Lines
from recycle_runtime.coordinator.last_generation import Remembered
from recycle_runtime.coordinator.last_save import LastSave
from recycle_runtime.coordinator.state_machine import StateMachine
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.plan_book import PlanBook
from recycle_runtime.protocol.messages.generations import AtBoundary, Done
from recycle_runtime.protocol.messages.members import Member
from tests.runtime.recovery.plans_for_tests import fake_bundle

RANKS = 2


def saving(workers: list[Worker], without_state: tuple[Worker, ...] = ()) -> StateMachine:
    """A job of one stage whose workers of two ranks each are asked to save."""
    book = PlanBook(fake_bundle(1, len(workers), [[]]))
    job = StateMachine(book, RANKS, 5, set(book.grid), 0.0)
    members = [Member(worker, rank) for worker in workers for rank in range(RANKS)]
    stages = tuple((member, None if member.worker in without_state else 0) for member in members)
    fields = {"last_save": LastSave(5, stages, None)}
    job.remember(Remembered(1, 0, tuple(workers)), Lines("journal", (JournalLine(1, fields),)))
    return job


def done(job: StateMachine, worker: Worker, rank: int) -> list[Order]:
    return job.handle(Said(Member(worker, rank), Done(None)), 1.0)


def fail(job: StateMachine, worker: Worker) -> list[Order]:
    return job.handle(WorkerFailed(worker, "0:0 was killed"), 1.0)


def errors(orders: list[Order]) -> list[str | None]:
    return [order.error for order in orders if isinstance(order, EndJob)]


def test_one_rank_has_saved_when_its_worker_fails() -> None:
    job = saving([(0, 0)])
    assert errors(done(job, (0, 0), 0)) == []
    assert errors(fail(job, (0, 0))) == ["the parameters of stage 0 were not saved: 0:0 was killed"]


def test_a_peer_has_saved_other_ranks_than_the_one_that_fails() -> None:
    job = saving([(0, 0), (1, 0)])
    done(job, (0, 0), 0)
    done(job, (1, 0), 0)
    assert errors(fail(job, (1, 0))) == []
    assert errors(fail(job, (0, 0))) == ["the parameters of stage 0 were not saved: 0:0 was killed"]


def test_peers_save_the_same() -> None:
    job = saving([(0, 0), (1, 0)])
    orders = fail(job, (0, 0))
    said = "0:0 was killed while it saved its parameters, which its peers save too"
    assert [order.text for order in orders if isinstance(order, Tell)] == [said]
    noted = Note({"done": Member((1, 0), 0), "error": None})
    assert done(job, (1, 0), 0) == [noted]
    assert errors(done(job, (1, 0), 1)) == [None]


def test_one_that_waited_to_join_has_saved_nothing() -> None:
    job = saving([(0, 0), (1, 0)], without_state=((1, 0),))
    done(job, (1, 0), 0)
    done(job, (1, 0), 1)
    assert errors(fail(job, (0, 0))) == ["the parameters of stage 0 were not saved: 0:0 was killed"]


def test_who_has_something_to_save() -> None:
    """One of the two is still to be given its state."""
    book = PlanBook(fake_bundle(1, 2, [[]]))
    job = StateMachine(book, 1, 5, set(book.grid), 0.0)
    lines = Lines("journal", (JournalLine(1, {"row": 4}),))
    job.remember(Remembered(1, 0, ((0, 0), (1, 0)), joiners={(1, 0): (0, 0)}), lines)
    members = list(job.roster.members())
    for member in members:
        job.handle(Returned(member, is_training=True, asked=1, saves=True), 1.0)
    orders = [order for member in members for order in job.handle(Said(member, AtBoundary(5)), 2.0)]
    (last,) = [
        order.fields["last_save"]
        for order in orders
        if isinstance(order, Note) and "last_save" in order.fields
    ]
    assert dict(last.saving) == {Member((0, 0), 0): 0, Member((1, 0), 0): None}


def test_nothing_is_lost_with_one_that_waited_to_join() -> None:
    job = saving([(0, 0), (1, 0)], without_state=((1, 0),))
    done(job, (0, 0), 0)
    done(job, (0, 0), 1)
    orders = fail(job, (1, 0))
    assert errors(orders) == [None] and not any(isinstance(order, Tell) for order in orders)
