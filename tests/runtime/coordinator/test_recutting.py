"""Candidates for another cut, and how long one that came to nothing has to wait."""

from typing import Any

import pytest

from recycle_runtime.coordinator.candidates import Candidate, Recuts, Situation
from recycle_runtime.coordinator.events import Joined, RecutWanted, Said, Send
from recycle_runtime.coordinator.state_machine import StateMachine
from recycle_runtime.plan.change import Outlook
from recycle_runtime.plan.moves import CostOfMoves
from recycle_runtime.plan.plan_book import PlanBook
from recycle_runtime.protocol.messages.generations import Began, Go, HeldState, LayerExperts, Leave, LeftGroup
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.observers import JobEvent
from tests.runtime.recovery.plans_for_tests import bundle_with_cuts, fake_bundle


class Notes:
    """In place of a journal."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []

    def write(self, **fields: Any) -> None:
        self.written.append(fields)


def settled_job() -> StateMachine:
    """Its own plans take 100 and 104 ticks; one of another cut takes 100 with all workers."""
    book = PlanBook(bundle_with_cuts(3))
    job = StateMachine(book, 1, 500, set(book.grid), 0.0)
    orders = [order for worker in book.grid for order in job.handle(Joined(Member(worker, 0)), 0.0)]
    for order in orders:
        match order:
            case Send(member, Leave(generation)):
                orders += job.handle(Said(member, LeftGroup(generation, HeldState(0, is_fresh=True))), 1.0)
            case Send(member, Go(generation)):
                orders += job.handle(Said(member, Began(generation, 0, None)), 1.0)
            case _:
                pass
    assert job.is_settled
    return job


def slower(job: StateMachine) -> None:
    """The plan in use has become a slow one."""
    assert job.assignment is not None
    job.assignment = job.assignment._replace(period=200)


def candidates(
    recuts: Recuts, job: StateMachine, rows: int = 5, until_change: float = 10_000.0
) -> list[Candidate]:
    left = job.steps - job.participants.rows.next
    now = Situation(job, rows, Outlook(1.0, until_change, left), CostOfMoves())
    return recuts.candidates(now)


def known(job: StateMachine, when: str = "auto") -> tuple[Recuts, Notes]:
    notes = Notes()
    recuts = Recuts(job.book, when, notes)
    recuts.began(0, [8, 8])
    recuts.began(2, [8, 8])
    return recuts, notes


def test_there_is_none_as_long_as_nothing_is_faster() -> None:
    job = settled_job()
    assert candidates(known(job)[0], job) == []


def test_a_faster_cut() -> None:
    job = settled_job()
    slower(job)
    recuts, notes = known(job)
    assert notes.written == [{"layer_bytes": [8, 8, 8, 8]}]
    (found,) = candidates(recuts, job)
    assert found.change.pays and str(found.change).endswith(": re-cut")
    assert isinstance(found.take(), RecutWanted)


def test_it_is_not_considered() -> None:
    """Switched off."""
    job = settled_job()
    slower(job)
    recuts = Recuts(job.book, "off", Notes())
    recuts.began(0, [8, 8, 8, 8])
    assert not recuts.is_considered
    assert candidates(recuts, job) == []


def test_a_job_that_ends_soon_is_left_alone() -> None:
    job = settled_job()
    slower(job)
    (found,) = candidates(known(job)[0], job, until_change=1e-3)
    assert not found.change.pays and str(found.change).endswith(": not re-cut")
    (asked_for,) = candidates(known(job, "always")[0], job, until_change=1e-3)
    assert asked_for.change.pays and str(asked_for.change).endswith(": re-cut, as asked for")


def test_what_came_to_nothing_waits() -> None:
    job = settled_job()
    slower(job)
    recuts, _ = known(job)
    assert candidates(recuts, job)
    recuts.ended("its donor is gone", rows=5)
    assert candidates(recuts, job, rows=20) == []
    assert candidates(recuts, job, rows=21)
    recuts.ended("its donor is gone", rows=21)
    recuts.generation()
    assert candidates(recuts, job, rows=31) == []
    assert candidates(recuts, job, rows=32)
    recuts.ended(None, rows=32)
    recuts.generation()
    assert candidates(recuts, job, rows=1)


def test_another_coordinator_knows_what_layers_take() -> None:
    job = settled_job()
    slower(job)
    recuts = Recuts(job.book, "auto", Notes())
    recuts.recall([8, 8, 8, 8])
    assert candidates(recuts, job)


def test_a_program_in_whole_stages_keeps_its_cut_and_says_so_once() -> None:
    job = settled_job()
    slower(job)
    recuts = Recuts(job.book, "always", Notes())
    for _ in range(2):
        recuts.began(0, [])
    assert recuts.news() == [JobEvent("the job keeps its cut: the program gives whole stages")]
    assert recuts.news() == [] and not recuts.is_considered and candidates(recuts, job) == []


def test_halves_count_only_if_nobody_has_seen_a_micro_batch_that_cannot_be_split() -> None:
    job = settled_job()
    split = fake_bundle(2, 3, [[]], (2, 2))
    split.__dict__["microbatches"] *= 2
    split.__dict__["plans"] = [split.plans[0]._replace(period=50)]
    book = job.book.with_bundle(job.book.add(split))

    def layouts(*said: bool | None) -> list[str]:
        recuts, _ = known(job)
        recuts.generation()
        for can_halve in said:
            recuts.began(0, [8, 8], can_halve=can_halve)
        slower(job)
        return [found.change.what.removeprefix("layout ") for found in candidates(recuts, job)]

    assert book.split == 2
    assert layouts(True, None) == ["2x3,2x3 in halves"]
    assert layouts(True, False) == layouts(False, True) == layouts(None) == layouts() != ["2x3,2x3 in halves"]


@pytest.mark.parametrize(("experts", "found"), [(12, 1), (13, 0)])
def test_a_cut_whose_stages_have_too_few_slots_is_left_out(experts: int, found: int) -> None:
    """Of the last layer, as whoever holds it has told; one other cut has a stage of six workers."""
    job = settled_job()
    slower(job)
    for book in job.book.family:
        book.slots = 2
    for entry in job.roster.entries.values():
        entry.experts = (LayerExperts(3, experts),)
    assert len(candidates(known(job)[0], job)) == found
