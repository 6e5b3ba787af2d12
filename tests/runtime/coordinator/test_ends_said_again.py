"""Agents say again which processes have ended: it counts for these processes, once."""

from collections.abc import Generator
from pathlib import Path

import pytest

from recycle_runtime.coordinator.journal import FILE
from recycle_runtime.coordinator.last_generation import remembered
from recycle_runtime.coordinator.outlives import read_journal
from recycle_runtime.coordinator.state_machine import Phase
from recycle_runtime.plan.bundle import Bundle, digest_of
from recycle_runtime.protocol.messages.agents import AgentJoin, ProcessEnded
from recycle_runtime.protocol.messages.generations import HeldState, Join, LeftGroup
from recycle_runtime.protocol.messages.members import Member
from tests.runtime.coordinator.lone_service import Job, Line, join, pid_of

MEMBERS = tuple(Member((pipeline, stage), 0) for pipeline in range(2) for stage in range(2))
FIRST, *OTHERS = MEMBERS


def begun(folder: Path, plan: str) -> Job:
    """A job that trains, with an agent for each worker."""
    job = Job(folder, plan, relay=False)
    for member in MEMBERS:
        job.agent(f"host-{member.worker}", member)
    lines = [Line(job.service) for _ in MEMBERS]
    for member, line in zip(MEMBERS, lines, strict=True):
        job.service.message(line, join(member))
    plans = digest_of(Bundle.read(plan))
    for line in lines:
        job.service.message(
            line, LeftGroup(job.service.job.number, HeldState(0, is_fresh=True), "", 0, plans)
        )
    assert job.service.job.phase is Phase.RUNNING
    return job


@pytest.fixture
def job(tmp_path: Path, square: str) -> Generator[Job]:
    made = begun(tmp_path, square)
    yield made
    made.service.let_go()


@pytest.fixture
def after(tmp_path: Path, square: str) -> Generator[Job]:
    """The same with another coordinator, to which nobody has come back yet."""
    begun(tmp_path, square).service.let_go()
    made = Job(tmp_path, square, relay=False)
    yield made
    made.service.let_go()


def come(job: Job, *ended: ProcessEnded) -> None:
    """The agent of the first worker, on a new connection."""
    job.service.message(Line(job.service), AgentJoin(f"host-{FIRST.worker}", 4, (), ended=ended))


def end(pid: int) -> ProcessEnded:
    return ProcessEnded(FIRST, pid, "was killed by signal 9", 0)


def test_the_journal_says_which_processes_train(job: Job, tmp_path: Path) -> None:
    before = remembered(read_journal(tmp_path / "state" / FILE))
    assert before is not None
    assert before.pids == {member: pid_of(member) for member in MEMBERS}


def test_an_end_that_the_coordinator_before_this_one_has_not_heard(after: Job) -> None:
    assert after.has(FIRST)
    come(after, end(pid_of(FIRST)))
    assert not after.has(FIRST) and all(map(after.has, OTHERS))


def test_the_end_of_a_process_before_the_one_that_trains(after: Job) -> None:
    """That one may run on another node, whose agent has not come back yet."""
    come(after, end(999))
    assert after.has(FIRST)
    after.service.message(Line(after.service), Join(FIRST, pid_of(FIRST), 1, 1, is_training=True))
    assert after.has(FIRST)


def test_an_end_that_was_heard(job: Job) -> None:
    come(job, end(pid_of(FIRST)))
    assert not job.has(FIRST)
    job.service.message(Line(job.service), Join(FIRST, 999, 0, 0, is_training=False))
    assert job.has(FIRST)
    come(job, end(pid_of(FIRST)))
    assert job.has(FIRST), "it is another process that has ended"
