"""The files of a job's checkpoints, as the coordinator touches them: folders, manifests, what is deleted.

Needs no torch.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from recycle_runtime.checkpoint.checkpoint_folder import Beginning, CheckpointFolder, beginning
from recycle_runtime.checkpoint.manifest import origin_of, shape_of
from recycle_runtime.coordinator.events import (
    BeginCheckpoint,
    CheckpointClosed,
    CheckpointNotBegun,
    CompleteCheckpoint,
    DropCheckpoint,
    Event,
    PruneCheckpoints,
)
from recycle_runtime.coordinator.file_thread import FileThread, RealFileThread
from recycle_runtime.coordinator.journal import Journal
from recycle_runtime.coordinator.last_generation import Remembered
from recycle_runtime.files import lock_checkpoints
from recycle_runtime.plan.bundle import Bundle

_log = logging.getLogger(__name__)
_CLOSE_SECONDS = 10.0


class CheckpointFiles:
    """Carries out what the state machine orders; a thread waits for the disk."""

    def __init__(self, folder: str, thread: FileThread | None = None) -> None:
        self._shelf, self._thread = CheckpointFolder(folder), thread or RealFileThread("checkpoints")
        self._closing: tuple[str, Future[None]] | None = None
        self._identity = _identity(self._shelf.folder)

    def does(self) -> Mapping[type[object], Callable[[Any], Iterable[Event] | None]]:
        """Orders, and who carries each out."""
        return {
            BeginCheckpoint: lambda order: self.begin(order.name),
            CompleteCheckpoint: self.complete,
            DropCheckpoint: lambda order: self._drop(order.name),
            PruneCheckpoints: lambda order: self._prune(order.name),
        }

    def begin(self, name: str) -> list[CheckpointNotBegun]:
        """Make its folder; an event if that cannot be done."""
        try:
            self._keep_folder()
            self._shelf.make(name)
        except OSError as error:
            return [CheckpointNotBegun(name, str(error))]
        return []

    def _keep_folder(self) -> None:
        """One that somebody has removed takes its lock along; FolderTakenError if another job has the folder
        that is there now."""
        folder = self._shelf.folder
        if self._identity is None or _identity(folder) == self._identity:
            return
        _log.warning("%s: somebody has removed this folder, with all checkpoints; it is made anew", folder)
        lock_checkpoints(folder)
        self._identity = _identity(folder)

    def complete(self, order: CompleteCheckpoint) -> None:
        self._closing = order.name, self._thread.submit(self._complete, order)

    def _complete(self, order: CompleteCheckpoint) -> None:
        if order.script is not None:
            order.script.write(self._shelf.folder / order.name)
        self._shelf.complete(order.name, order.manifest)

    def _prune(self, name: str) -> None:
        self._thread.submit(self._shelf.prune, name)

    def _drop(self, name: str) -> None:
        self._thread.submit(self._shelf.drop, name)

    def take(self) -> list[CheckpointClosed]:
        """A manifest that has reached the disk since, or cannot."""
        if self._closing is None or not self._closing[1].done():
            return []
        (name, future), self._closing = self._closing, None
        error = future.exception()
        return [CheckpointClosed(name, None if error is None else str(error))]

    def finish(self) -> list[CheckpointClosed]:
        """The same, and wait for it: no other manifest comes after this."""
        if self._closing is not None:
            self._thread.wait(self._closing[1], _CLOSE_SECONDS)
        return self.take()

    def close(self) -> None:
        self._thread.close()

    def sweep(self) -> None:
        """No worker writes any more: what has not become a checkpoint never will."""
        closing = None if self._closing is None else self._closing[0]
        for name in self._shelf.names():
            if name != closing:
                self._shelf.drop(name)


def _identity(folder: Path) -> tuple[int, int] | None:
    """None if there is no such folder."""
    try:
        status = folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def begin_run(
    folder: str | None,
    bundle: Bundle,
    steps: int,
    before: Remembered | None,
    copied: Beginning | None,
    journal: Journal,
    *,
    resume: bool,
    accepts_changes: bool = False,
    may_be_finished: bool = False,
) -> Beginning:
    """Start of a run, written to the journal if it is new; a run under way continues as its journal says.

    `copied`: start with a copy in memory, whatever checkpoints there are in the folder, if there is one.
    """
    if before is not None:
        return Beginning(before.restore, before.first_step, before.first_item)
    begins = copied
    if begins is None and folder is not None:
        begins = beginning(
            folder, shape_of(bundle), steps, resume=resume, reads_all=True, origin=origin_of(bundle),
            accepts_changes=accepts_changes, may_be_finished=may_be_finished,
        )  # fmt: skip
    if begins is None:
        return Beginning()
    journal.write(begins=[begins.checkpoint, begins.step, begins.item])
    if copied is None and folder is not None:
        # Of a run whose coordinator was killed, or that ran out of disk.
        kept_folder = CheckpointFolder(folder)
        for name in kept_folder.names():
            kept_folder.drop(name)
    return begins
