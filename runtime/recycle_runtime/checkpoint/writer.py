"""A worker's part in checkpoints: a copy of its state at the right moment, and a thread that writes it."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from recycle_runtime.checkpoint.host_copy import HostCopy
from recycle_runtime.checkpoint.manifest import CheckpointError, part_name
from recycle_runtime.checkpoint.shelf import is_name
from recycle_runtime.checkpoint.stage_state import about, copied
from recycle_runtime.checkpoint.storage import Tensors, take_apart, write_part
from recycle_runtime.execution.stage import Stage
from recycle_runtime.protocol.messages import (
    CheckpointFailed,
    CheckpointMissed,
    CheckpointReply,
    CheckpointWritten,
)
from recycle_runtime.worker.copies import state_of

_LONGEST = 500
"""Letters of an error that are told."""


class _GivenUp(Exception):  # noqa: N818
    """Nobody wants this checkpoint any more."""


class BackgroundWriter:
    """Training stops for the copy alone; what becomes of it is said when it is known."""

    def __init__(self, folder: Path, say: Callable[[CheckpointReply], None]) -> None:
        self._folder, self._say = folder, say
        self._memory = HostCopy()
        self._thread: threading.Thread | None = None
        self._given_up = threading.Event()

    def prepare(self, stage: Stage) -> None:
        """A checkpoint is to come; call it once the optimizer has its state."""
        with suppress(CheckpointError):
            self._memory.prepare(take_apart(state_of(stage))[1])

    def write(self, stage: Stage, step: int, name: str) -> None:
        """The state of this stage, now, as its part of a checkpoint; its last step is settled."""
        if stage.applied != step or self._is_busy():
            # Whoever asked has given up what is still being written.
            self._given_up.set()
            self._say(CheckpointMissed(name))
            return
        try:
            if not is_name(name):
                raise CheckpointError(f"{name}: not the name of a checkpoint")
            tree, tensors = copied(stage, self._memory)
        except CheckpointError as error:
            self._say(CheckpointFailed(name, str(error)[:_LONGEST]))
            return
        self._given_up.clear()
        self._thread = threading.Thread(
            target=self._write, args=(stage, step, name, tree, tensors), name="checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, stage: Stage, step: int, name: str, tree: Any, tensors: Tensors) -> None:
        folder = self._folder / name / part_name(stage.stage, stage.part)
        try:
            checksum = write_part(folder, about(stage, step), tree, tensors, self._proceed)
        except _GivenUp:
            return
        except OSError as error:
            self._say(CheckpointFailed(name, str(error)[:_LONGEST]))
        except Exception as error:
            # Whatever it was, training is not harmed.
            self._say(CheckpointFailed(name, f"{type(error).__name__}: {error}"[:_LONGEST]))
        else:
            self._say(CheckpointWritten(name, checksum, stage.seed))

    def _proceed(self) -> None:
        if self._given_up.is_set():
            raise _GivenUp

    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()
