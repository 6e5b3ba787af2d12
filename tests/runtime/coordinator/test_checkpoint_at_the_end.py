"""A job that ends while the manifest of a checkpoint is being written."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from recycle_runtime.checkpoint.manifest import FILE
from recycle_runtime.protocol.messages.agents import ProcessEnded
from recycle_runtime.protocol.messages.checkpoints import CheckpointWritten
from recycle_runtime.protocol.messages.generations import Began, HeldState, LeftGroup
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.observers import JobEvent
from recycle_runtime.state.names import shard_name
from tests.runtime.coordinator.lone_service import Job, Line, join, pid_of

MEMBERS = tuple(Member((pipeline, stage), 0) for pipeline in range(2) for stage in range(2))
WRITERS = MEMBERS[:2]
"""The first peer of each stage."""
OLDER, NAME = "step-00000000", "step-00000001"


class Patient:
    """A file thread that does nothing before it is waited for, or closed."""

    def __init__(self) -> None:
        self._work: deque[tuple[Future[None], Callable[[], None]]] = deque()
        self.is_closed = False

    def submit(self, work: Callable[..., None], *arguments: Any) -> Future[None]:
        if self.is_closed:
            raise RuntimeError("closed already")
        future: Future[None] = Future()
        self._work.append((future, lambda: work(*arguments)))
        return future

    def wait(self, future: Future[None], seconds: float) -> None:
        while not future.done():
            self._do_next()

    def close(self) -> None:
        """As a real one: what was asked for before is still done."""
        self.is_closed = True
        while self._work:
            self._do_next()

    def _do_next(self) -> None:
        future, work = self._work.popleft()
        try:
            work()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(None)


class Ending:
    """A job that trains, with the shards of its first checkpoint on disk and its manifest not."""

    def __init__(self, folder: Path, plan: str) -> None:
        self.threads: list[Patient] = []
        self.kept = folder / "kept"
        self._job = Job(folder, plan, relay=False, checkpoint=str(self.kept), file_thread=self._thread)
        self.service, self._told = self._job.service, list[Any]()
        self.service.watch(self._told.append)
        agent = self._job.agent("host/1", *MEMBERS)
        lines = {member: Line(self.service) for member in MEMBERS}
        for member, line in lines.items():
            self.service.message(line, join(member))
        for line in lines.values():
            self.service.message(line, LeftGroup(1, HeldState(0, is_fresh=True), "", 0, ""))
        for line in lines.values():
            self.service.message(line, Began(1, 1, None))
        # One that was given up: it goes with the next one that is complete.
        (self.kept / OLDER).mkdir()
        for member in WRITERS:
            part = shard_name(member.worker[1], member.tp_rank)
            self.service.message(lines[member], CheckpointWritten(NAME, {part: 1}, seed=0))
        assert not (self.kept / NAME / FILE).exists()
        self._agent = agent

    def _thread(self, name: str) -> Patient:
        self.threads.append(Patient())
        return self.threads[-1]

    def end(self) -> None:
        """Nobody is left."""
        for member in MEMBERS:
            self.service.message(self._agent, ProcessEnded(member, pid_of(member), "killed", 9))
        assert self.service.ended is not None

    def leave(self) -> None:
        self.service.close()
        assert all(thread.is_closed for thread in self.threads)

    def told(self) -> list[str]:
        return [event.text for event in self._told if isinstance(event, JobEvent)]


def test_older_ones_go_with_the_end(tmp_path: Path, square: str) -> None:
    """Found once: the thread that deletes them was closed already, and the coordinator ended with that."""
    job = Ending(tmp_path, square)
    job.end()
    assert job.service.ended.checkpoint.path == str(job.kept / NAME)
    job.leave()
    assert (job.kept / NAME / FILE).exists() and not (job.kept / OLDER).exists()


def test_one_that_cannot_be_completed_goes_itself(tmp_path: Path, square: str) -> None:
    job = Ending(tmp_path, square)
    (job.kept / NAME).rmdir()
    (job.kept / NAME).touch()
    job.end()
    assert job.service.ended.checkpoint is None
    assert any(text.startswith("no checkpoint of step 1: ") for text in job.told())
    job.leave()
