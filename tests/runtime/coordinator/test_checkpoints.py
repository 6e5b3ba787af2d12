"""Checkpoints as the coordinator sees them: writers that are late, fail or die."""

import time
from pathlib import Path

from recycle_runtime.checkpoint.checkpoint_folder import Beginning, CheckpointFolder
from recycle_runtime.checkpoint.manifest import CheckpointShape
from recycle_runtime.coordinator.checkpoint_files import CheckpointFiles
from recycle_runtime.coordinator.checkpoints import Checkpoints
from recycle_runtime.coordinator.events import (
    BeginCheckpoint,
    Order,
    Send,
    Tell,
)
from recycle_runtime.coordinator.participant import NewGeneration
from recycle_runtime.protocol.messages.checkpoints import (
    CheckpointFailed,
    CheckpointMissed,
    CheckpointOrder,
    CheckpointPath,
    CheckpointReply,
    CheckpointWritten,
    TakeCheckpoint,
)
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.state.names import shard_name

SHAPE = CheckpointShape(stages=2, pipelines=2, tensor=1, microbatches=3)
FIRST, SECOND = Member((0, 0), 0), Member((0, 1), 0)
ALL = [Member((pipeline, stage), 0) for stage in range(2) for pipeline in range(2)]
STAGES = {member.worker: member.worker[1] for member in ALL}


class Job:
    """The service as the state machine sees it, and writers that do as they are told."""

    def __init__(self, folder: Path, every: int, steps: int, begins: Beginning | None = None) -> None:
        self.kept_folder = CheckpointFolder(folder)
        self.files = CheckpointFiles(str(folder))
        self.orders: list[tuple[Member, TakeCheckpoint]] = []
        self.events: list[str] = []
        newest = next(
            (
                CheckpointPath(str(folder / found.name), found.manifest.step)
                for found in self.kept_folder.look()[0]
            ),
            None,
        )
        self.saving = Checkpoints(
            str(folder), SHAPE, every, steps, begins or Beginning(), self.kept_folder.names(), newest
        )

    def regroup(self, step: int, members: list[Member]) -> None:
        self.carry_out(self.saving.generation(NewGeneration(1, step, members, frozenset(), STAGES)))

    def progress(self, step: int) -> None:
        self.carry_out(self.saving.stand(step))

    def hear(self, member: Member, message: CheckpointReply) -> None:
        self.carry_out(self.saving.hear(member, message))

    def carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Send(member, TakeCheckpoint() as message):
                    self.orders.append((member, message))
                case Tell(text):
                    self.events.append(text)
                case BeginCheckpoint(name):
                    for failed in self.files.begin(name):
                        self.carry_out(self.saving.not_begun(failed.name, failed.why))
                case _:
                    self.files.does()[type(order)](order)

    def done(self, member: Member, name: str) -> None:
        part = self.kept_folder.folder / name / shard_name(member.worker[1], member.tp_rank)
        part.mkdir()
        (part / "part.json").touch()
        self.hear(member, CheckpointWritten(name, {part.name: 1}, seed=0))

    def has_completed(self, step: int) -> bool:
        """Once the file is there."""
        for _ in range(1000):
            for closed in self.files.take():
                self.carry_out(self.saving.closed(closed.name, closed.why))
            if self.saving.newest is not None and self.saving.newest.step == step:
                return True
            time.sleep(0.01)
        return False


def test_the_first_peers_write_at_multiples_and_at_the_end(tmp_path: Path) -> None:
    job = Job(tmp_path, 4, 6)
    job.regroup(0, ALL)
    assert [job.saving.asked_of(member) for member in ALL] == [
        CheckpointOrder(4, "step-00000004"), None, CheckpointOrder(4, "step-00000004"), None
    ]  # fmt: skip
    job.progress(5)
    job.done(FIRST, "step-00000004")
    assert job.orders == []
    job.done(SECOND, "step-00000004")
    assert job.has_completed(4)
    assert job.kept_folder.look()[0][0].manifest.items == 4 * SHAPE.per_step
    assert job.orders == [
        (FIRST, TakeCheckpoint(6, "step-00000006")), (SECOND, TakeCheckpoint(6, "step-00000006"))
    ]  # fmt: skip
    assert not job.saving.is_finished
    for member in (FIRST, SECOND):
        job.done(member, "step-00000006")
    assert job.has_completed(6)
    assert job.saving.is_finished


def test_a_writer_that_is_late_is_asked_earlier(tmp_path: Path) -> None:
    job = Job(tmp_path, 1, 100)
    job.regroup(0, ALL)
    job.hear(FIRST, CheckpointMissed("step-00000001"))
    job.done(SECOND, "step-00000001")
    job.progress(10)
    assert {order.step for _, order in job.orders} == {14}
    assert job.events == []


def test_a_writer_that_fails_says_why(tmp_path: Path) -> None:
    job = Job(tmp_path, 2, 4)
    job.regroup(0, ALL)
    job.hear(FIRST, CheckpointFailed("step-00000002", "the disk is full"))
    assert job.events == ["no checkpoint of step 2: the disk is full"]
    job.progress(1)
    assert {order.name for _, order in job.orders} == {"step-00000004"}
    job.hear(SECOND, CheckpointFailed("step-00000004", "the disk is full"))
    assert job.saving.is_finished
    assert job.saving.newest is None


def test_a_writer_that_dies_is_replaced(tmp_path: Path) -> None:
    """The step is tried again if nobody has gone past it; what the others wrote for the first try is void."""
    job = Job(tmp_path, 4, 20)
    job.regroup(0, ALL)
    job.done(SECOND, "step-00000004")
    job.saving.drop(FIRST)
    left = [member for member in ALL if member != FIRST]
    job.regroup(4, left)
    assert [job.saving.asked_of(member) for member in left] == [
        CheckpointOrder(4, "step-00000004.1"), CheckpointOrder(4, "step-00000004.1"), None
    ]  # fmt: skip
    job.done(SECOND, "step-00000004.1")
    job.regroup(5, left)
    assert job.saving.asked_of(SECOND) is None
    job.done(Member((1, 0), 0), "step-00000004.1")
    assert job.has_completed(4)


def test_a_writer_that_is_done_may_die(tmp_path: Path) -> None:
    job = Job(tmp_path, 4, 20)
    job.regroup(0, ALL)
    job.done(FIRST, "step-00000004")
    job.saving.drop(FIRST)
    job.regroup(5, [member for member in ALL if member != FIRST])
    job.done(SECOND, "step-00000004")
    assert job.has_completed(4)


def test_steps_that_are_made_again_are_written_again(tmp_path: Path) -> None:
    job = Job(tmp_path, 4, 20)
    job.regroup(0, ALL)
    job.done(FIRST, "step-00000004")
    job.regroup(3, ALL)
    assert job.saving.asked_of(FIRST) == CheckpointOrder(4, "step-00000004.1")


def test_a_run_that_goes_on_counts_its_items_from_there(tmp_path: Path) -> None:
    job = Job(tmp_path, 5, 20, Beginning("step-00000010", step=10, item=1000))
    job.regroup(10, ALL)
    assert job.saving.asked_of(FIRST) == CheckpointOrder(15, "step-00000015")
    for member in (FIRST, SECOND):
        job.done(member, "step-00000015")
    assert job.has_completed(15)
    assert job.kept_folder.look()[0][0].manifest.items == 1000 + 5 * SHAPE.per_step


def test_a_coordinator_that_starts_again_finds_what_is_there(tmp_path: Path) -> None:
    first = Job(tmp_path, 2, 20)
    first.regroup(0, ALL)
    for member in (FIRST, SECOND):
        first.done(member, "step-00000002")
    assert first.has_completed(2)
    second = Job(tmp_path, 2, 20)
    second.saving.go_on(NewGeneration(1, 0, ALL, frozenset(), STAGES))
    assert second.saving.newest == first.saving.newest
    second.progress(3)
    assert {order.step for _, order in second.orders} == {6}


def test_a_folder_that_cannot_be_made_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    job = Job(tmp_path / "file" / "kept", 2, 4)
    job.regroup(0, ALL)
    assert job.saving.asked_of(FIRST) is None
    assert job.events[0].startswith("no checkpoint of step 2: ")
    job.progress(4)
    assert job.saving.is_finished
