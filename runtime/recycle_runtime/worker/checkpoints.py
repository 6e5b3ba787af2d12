"""Checkpoints of a worker process: begins with one, and writes its shards when asked."""

import logging
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from pathlib import Path

from recycle_runtime.checkpoint.checkpoint_folder import is_copy
from recycle_runtime.data.microbatches import OtherDataError
from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.files import sentence
from recycle_runtime.plan.worker_ids import workers_in
from recycle_runtime.protocol.messages.generations import Go
from recycle_runtime.protocol.messages.scripts import SaveShare
from recycle_runtime.state.names import CheckpointError
from recycle_runtime.worker.engine import Engine, Writer
from recycle_runtime.worker.link import Link

_log = logging.getLogger(__name__)
_LONGEST = 500
"""Characters of an error that are sent; the rest is cut off."""


class WorkerCheckpoints:
    """`folder` is where this node sees the job's checkpoints, if known."""

    def __init__(self, folder: str | None, link: Link, engine: Engine) -> None:
        self._told, self._link, self._engine = folder, link, engine
        self._writer: Writer | None = None

    def begin(self, chunks: Collection[Chunk], order: Go) -> None:
        """A generation begins; in the first ones, chunks as built take over what the checkpoint holds."""
        for chunk in chunks:
            chunk.data.count_from(order.first_step, order.first_item)
        if order.checkpoint is not None:
            # What is missing should show now, and not when the first one is due.
            self._folder()
        has_donor = order.copy_from is not None or order.donor is not None
        if order.restore is None or is_copy(order.restore) or has_donor:
            return
        for chunk in chunks:
            if chunk.is_fresh:
                told = self._engine.restore(chunk, self._folder() / order.restore, order.first_step)
                if order.role == workers_in(order.grid)[0]:
                    # One for all.
                    for words in told:
                        _log.warning("%s: %s", order.restore, words)
                if chunk.is_first or chunk.is_last:
                    # What has to be drawn to get there is drawn now, while nobody waits.
                    with as_checkpoint_error():
                        chunk.data.approach(order.first_step)

    def write_if_due(self, chunks: Collection[Chunk]) -> None:
        """The last step of all these chunks is settled: those that the worker works on."""
        asked = self._link.checkpoint
        applied = min(chunk.applied for chunk in chunks)
        if asked is None or applied == 0:
            return
        if self._writer is None:
            self._writer = self._engine.writer(self._folder(), self._link.say)
            self._writer.prepare(chunks)
        if applied >= asked.step:
            self._link.checkpoint = None
            self._writer.write(chunks, *asked)

    def write_now(self, chunks: Collection[Chunk], path: str, proceed: Callable[[], None]) -> SaveShare:
        """The state of these chunks, which is settled, as shards of a checkpoint; `proceed` may end it."""
        from recycle_runtime.checkpoint.writer import write_layers

        seed = next(chunk.seed for chunk in chunks)
        try:
            return SaveShare(path, write_layers(chunks, Path(path), proceed), seed, None)
        except Exception as error:
            # Whatever it was is told to all scripts, unless this process has to leave its group.
            proceed()
            why = sentence(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            return SaveShare(path, {}, seed, why[:_LONGEST])

    def _folder(self) -> Path:
        if self._told is None:
            raise CheckpointError("--checkpoint is missing: the agent of this worker was started without it")
        return Path(self._told)


@contextmanager
def as_checkpoint_error() -> Generator[None]:
    """Other data than a checkpoint was made with: nobody can go on with that."""
    try:
        yield
    except OtherDataError as error:
        raise CheckpointError(str(error)) from None
