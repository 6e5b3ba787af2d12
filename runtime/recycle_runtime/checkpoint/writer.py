"""A chunk's state to a checkpoint and back: a copy at the right moment, and a thread that writes it."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from recycle_runtime.checkpoint.host_copy import HostCopy
from recycle_runtime.checkpoint.manifest import CheckpointError, Manifest, shard_name
from recycle_runtime.checkpoint.shelf import is_name
from recycle_runtime.checkpoint.storage import Tensors, read_shard, take_apart, write_shard
from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.protocol.messages import (
    CheckpointFailed,
    CheckpointMissed,
    CheckpointReply,
    CheckpointWritten,
)

_LONGEST = 500
"""Letters of an error that are told."""


def copied(chunk: Chunk, memory: HostCopy) -> tuple[Any, Tensors]:
    """The state after as many steps as were applied, all of them settled.

    The next step may be under way, as long as its gradients have not been used: buffers that its forwards
    have changed are taken as they were before.
    """
    with chunk.buffers.as_begun(chunk.applied):
        tree, tensors = take_apart(chunk.state())
        return tree, memory.take(tensors)


def restore(chunk: Chunk, checkpoint: Path, step: int) -> None:
    """Become what the checkpoint holds; CheckpointError when it does not fit."""
    manifest = Manifest.read(checkpoint)
    name = shard_name(chunk.number, chunk.tp_rank)
    state = read_shard(checkpoint / name, _about(chunk, step), manifest.shards.get(name, -1))
    chunk.is_whole = False
    try:
        chunk.load(state)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        why = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{checkpoint / name}: does not fit the program's stage: {why}") from None


class _GivenUp(Exception):  # noqa: N818
    """This checkpoint is not wanted any more."""


class BackgroundWriter:
    """Training stops for the copy alone; what becomes of it is said when it is known."""

    def __init__(self, folder: Path, say: Callable[[CheckpointReply], None]) -> None:
        self._folder, self._say = folder, say
        self._memory = HostCopy()
        self._thread: threading.Thread | None = None
        self._given_up = threading.Event()

    def prepare(self, chunk: Chunk) -> None:
        """A checkpoint is to come; call it once the optimizer has its state."""
        with suppress(CheckpointError):
            self._memory.prepare(take_apart(chunk.state())[1])

    def write(self, chunk: Chunk, step: int, name: str) -> None:
        """The state of this chunk, now, as its shard of a checkpoint; its last step is settled."""
        if chunk.applied != step or self._is_busy():
            # Whoever asked has given up what is still being written.
            self._given_up.set()
            self._say(CheckpointMissed(name))
            return
        try:
            if not is_name(name):
                raise CheckpointError(f"{name}: not the name of a checkpoint")
            tree, tensors = copied(chunk, self._memory)
        except CheckpointError as error:
            self._say(CheckpointFailed(name, str(error)[:_LONGEST]))
            return
        self._given_up.clear()
        self._thread = threading.Thread(
            target=self._write, args=(chunk, step, name, tree, tensors), name="checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, chunk: Chunk, step: int, name: str, tree: Any, tensors: Tensors) -> None:
        folder = self._folder / name / shard_name(chunk.number, chunk.tp_rank)
        try:
            checksum = write_shard(folder, _about(chunk, step), tree, tensors, self._proceed)
        except _GivenUp:
            return
        except OSError as error:
            self._say(CheckpointFailed(name, str(error)[:_LONGEST]))
        except Exception as error:
            # Whatever it was, training goes on.
            self._say(CheckpointFailed(name, f"{type(error).__name__}: {error}"[:_LONGEST]))
        else:
            self._say(CheckpointWritten(name, checksum, chunk.seed))

    def _proceed(self) -> None:
        if self._given_up.is_set():
            raise _GivenUp

    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()


def _about(chunk: Chunk, step: int) -> dict[str, int]:
    """What a shard must say about itself to be of use; the names are those of the format."""
    return {"step": step, "seed": chunk.seed, "stage": chunk.number, "part": chunk.tp_rank}
