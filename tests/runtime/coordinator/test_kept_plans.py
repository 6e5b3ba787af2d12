"""Plan files that differ between nodes, or are replaced while a job runs."""

import errno
import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from recycle_runtime.coordinator.kept_plans import FILE, keep_plans
from recycle_runtime.coordinator.last_generation import OtherJobError, remembered
from recycle_runtime.coordinator.outlives import read_journal
from recycle_runtime.coordinator.state_machine import Phase
from recycle_runtime.plan.bundle import Bundle, digest_of, join_bundle
from recycle_runtime.plan.bundle_index import Index
from recycle_runtime.protocol.messages.agents import ProcessEnded
from recycle_runtime.protocol.messages.generations import Began, HeldState, Join, LeftGroup
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.observers import JobEvent
from tests.runtime.coordinator.lone_service import Job, Line, join, pid_of

MEMBERS = tuple(Member((pipeline, stage), 0) for pipeline in range(2) for stage in range(2))


@pytest.fixture
def plan(tmp_path: Path, square: str) -> Path:
    """A copy that a test may replace."""
    path = tmp_path / "own.plan"
    path.write_bytes(Path(square).read_bytes())
    return path


def replaced(plan: Path) -> None:
    """By a bundle of the same job with fewer plans."""
    bundle = Bundle.read(plan)
    plan.write_bytes(_fewer(bundle))
    assert digest_of(Bundle.read(plan)) != digest_of(bundle)


def _fewer(bundle: Bundle) -> bytes:
    values: dict[str, Any] = {each.name: getattr(bundle, each.name) for each in fields(Index)}
    values["plans"], values["layouts"] = bundle.plans[:1], bundle.layouts[:1]
    return join_bundle(Index(**values), bundle.packed_plans[:1])


def say(job: Job, line: Line, plans: str) -> None:
    job.service.message(line, LeftGroup(job.service.job.number, HeldState(0, is_fresh=True), "", 0, plans))
    job.pass_time(0.0)


def arrive(job: Job) -> dict[Member, Line]:
    job.agent("host-a/1", *MEMBERS[:2])
    job.agent("host-b/2", *MEMBERS[2:])
    lines = {member: Line(job.service) for member in MEMBERS}
    for member, line in lines.items():
        job.service.message(line, join(member))
    return lines


def begun(folder: Path, plan: Path) -> tuple[Job, dict[Member, Line]]:
    """A job that trains."""
    job = Job(folder, str(plan), relay=False)
    lines = arrive(job)
    for line in lines.values():
        say(job, line, digest_of(Bundle.read(plan)))
    for line in lines.values():
        job.service.message(line, Began(1, 1, None))
    assert job.service.job.phase is Phase.RUNNING
    return job, lines


def test_a_job_that_has_not_begun_ends_with_a_sentence(tmp_path: Path, plan: Path) -> None:
    job = Job(tmp_path, str(plan), relay=False)
    lines = arrive(job)
    own = digest_of(Bundle.read(plan))
    say(job, lines[MEMBERS[0]], own)
    say(job, lines[MEMBERS[3]], "0123456789ab")
    assert job.service.ended.error.endswith(
        f"worker 1:1 on host-b has another plan file than the coordinator (plans 0123456789ab and {own}): "
        "every node needs the same file"
    )
    job.service.let_go()


def test_a_job_that_trains_leaves_that_worker_out(tmp_path: Path, plan: Path) -> None:
    """Its file was replaced, and it is started again."""
    job, lines = begun(tmp_path, plan)
    told: list[Any] = []
    job.service.watch(told.append)
    *others, late = MEMBERS
    agent = job.agent("host-c/3", late)
    job.service.message(agent, ProcessEnded(late, pid_of(late), "killed", 9))
    own = digest_of(Bundle.read(plan))
    for member in others:
        say(job, lines[member], own)
    assert job.service.job.phase is Phase.RUNNING
    line = Line(job.service)
    job.service.message(line, Join(late, 999, 0, 0, is_training=False))
    say(job, line, "0123456789ab")
    texts = [event.text for event in told if isinstance(event, JobEvent)]
    assert any("1:1 failed: worker 1:1 on " in text and "has another plan file" in text for text in texts)
    assert job.service.job.phase is Phase.RUNNING and job.service.ended is None
    assert not job.has(late) and all(map(job.has, others))
    job.service.let_go()


def test_a_restarted_coordinator_uses_the_plans_that_its_workers_have(
    tmp_path: Path, plan: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = digest_of(Bundle.read(plan))
    job, _ = begun(tmp_path, plan)
    job.service.let_go()
    replaced(plan)
    with caplog.at_level(logging.WARNING):
        after = Job(tmp_path, str(plan), relay=False)
    assert digest_of(after.service.job.book.bundles[0]) == own
    assert f"the job was started with {own}): the copy in" in caplog.text
    after.service.let_go()
    (tmp_path / "state" / FILE).unlink()
    with pytest.raises(OtherJobError, match=f"was started with other plans .plans {own} there"):
        Job(tmp_path, str(plan), relay=False)


def test_a_job_that_has_not_begun_takes_the_plans_that_are_there(tmp_path: Path, plan: Path) -> None:
    Job(tmp_path, str(plan), relay=False).service.let_go()
    replaced(plan)
    job, _ = begun(tmp_path, plan)
    job.service.let_go()
    before = remembered(read_journal(tmp_path / "state" / "journal.jsonl"))
    assert before is not None and before.setup is not None
    assert before.setup.plans == digest_of(Bundle.read(tmp_path / "state" / FILE))


def test_no_room_for_the_copy(
    tmp_path: Path, plan: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr("recycle_runtime.coordinator.kept_plans.write_whole", full)
    keep_plans(str(plan), tmp_path)
    assert "while the job runs" in caplog.text
