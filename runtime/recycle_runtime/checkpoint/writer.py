"""The state of a process to a checkpoint and back: a copy at the right moment, and a thread that writes it.

A shard is a layer, or a whole stage where the program gives stages, on one tensor-parallel rank. Layers are
the same under every cut, so a run may resume under another.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from recycle_runtime.checkpoint.checkpoint_folder import is_name
from recycle_runtime.checkpoint.manifest import Manifest
from recycle_runtime.checkpoint.settings import (
    options_of_layers,
    options_of_shard,
    other_arguments,
    other_options,
)
from recycle_runtime.checkpoint.storage import ShardFiles, open_checked, write_shard
from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.execution.optimizer.shards import Rows, StoredShard
from recycle_runtime.execution.optimizer.undo import Options, group_options
from recycle_runtime.protocol.messages.checkpoints import (
    CheckpointFailed,
    CheckpointMissed,
    CheckpointReply,
    CheckpointWritten,
)
from recycle_runtime.state.host_copy import HostCopy
from recycle_runtime.state.layer_state import (
    ARGUMENTS,
    EPOCH,
    SHARDS,
    Fields,
    LayerState,
    apply_states,
    as_settled,
    ends,
    needed,
    state_name,
    together,
    written_copies,
    written_states,
)
from recycle_runtime.state.names import CheckpointError, optimizers_of

_LONGEST = 500
"""Characters of an error that are sent; the rest is cut off."""


def restore(chunk: Chunk, checkpoint: Path, step: int, *, accepts_changes: bool = False) -> list[str]:
    """Become what the checkpoint holds, and say what should be known; CheckpointError when it does not fit.

    `accepts_changes`: also if it was made by a program with another source.
    """
    manifest = Manifest.read(checkpoint)
    _check(chunk, checkpoint, manifest.shape.layers)

    def opened(name: str, about: Fields) -> ShardFiles:
        checksum = manifest.shards.get(name, -1)
        return open_checked(checkpoint / name, about, checksum, accepts_changes=accepts_changes)

    states = {name: opened(name, about).state() for name, about in needed(chunk, step).items()}
    stored: dict[str, list[ShardFiles]] = {}
    for name, about in needed(chunk, step).items():
        if shards := optimizers_of(name, manifest.shards):
            stored[name] = [opened(each, about) for each in shards]
            states[name][SHARDS] = [_stored(each) for each in stored[name]]
    made = options_of_layers(chunk.layers)
    apply_states(chunk, states, checkpoint)
    if not accepts_changes:
        _expect_data(chunk, states, str(checkpoint))
    told = other_options(made, _options_saved(chunk, states, stored))
    if not (last := ends(chunk)):
        return [*told]
    arguments = states[state_name(chunk.setting, last[0].number)].get(ARGUMENTS)
    return [*other_arguments(arguments, chunk.program.script_arguments), *told]


def _options_saved(
    chunk: Chunk, states: Mapping[str, Any], stored: Mapping[str, Sequence[ShardFiles]]
) -> dict[int, list[Options]]:
    """By the number of the layer; optimizers of shards are made later, by those who are to own them."""
    found = options_of_layers(chunk.layers)
    for layer in chunk.layers:
        if layer.shards:
            name = state_name(chunk.setting, layer.number)
            whole, shards = states[name]["optimizer"], stored.get(name, ())
            groups = [] if whole is None else [group_options(group) for group in whole["param_groups"]]
            found[layer.number] = groups or next(filter(None, map(options_of_shard, shards)), [])
    return found


def _stored(shard: ShardFiles) -> StoredShard:
    """Optimizer state that is read by those who are to own it."""
    return StoredShard(tuple(Rows(*each) for each in shard.entry("rows")), lambda: shard.state()["state"])


def _expect_data(chunk: Chunk, states: Mapping[str, Any], source: str) -> None:
    """As long as that which the checkpoint was made with, where that is known."""
    for layer in ends(chunk):
        if isinstance(epoch := states[state_name(chunk.setting, layer.number)].get(EPOCH), int):
            chunk.data.must_have(epoch, source)


def write_layers(
    chunks: Collection[Chunk], folder: Path, proceed: Callable[[], None] = lambda: None
) -> dict[str, int]:
    """The state of chunks whose last step is settled, one shard after the other; their checksums.

    Memory is needed for a copy of one shard. `proceed` is called again and again, and may raise.
    """
    memory, written = HostCopy(), dict[str, int]()
    with as_settled(chunks):
        for shard in written_states(chunks):
            proceed()
            copies = memory.take(shard.tensors)
            written[shard.name] = write_shard(folder / shard.name, shard.about, shard.tree, copies, proceed)
    return written


class _GivenUp(Exception):  # noqa: N818
    """This checkpoint is not wanted any more."""


class BackgroundWriter:
    """Training stops for the copy alone; what becomes of it is said when it is known."""

    def __init__(self, folder: Path, say: Callable[[CheckpointReply], None]) -> None:
        self._folder, self._say = folder, say
        self._memory = HostCopy()
        self._thread: threading.Thread | None = None
        self._given_up = threading.Event()

    def prepare(self, chunks: Collection[Chunk]) -> None:
        """A checkpoint is to come; call it once the optimizer has its state."""
        with suppress(CheckpointError):
            self._memory.prepare(together(written_states(chunks)))

    def write(self, chunks: Collection[Chunk], step: int, name: str) -> None:
        """The state of these chunks, now, as shards of a checkpoint; their last step is settled."""
        if any(chunk.applied != step for chunk in chunks) or self._is_busy():
            # Whoever asked has given up what is still being written.
            self._given_up.set()
            self._say(CheckpointMissed(name))
            return
        try:
            if not is_name(name):
                raise CheckpointError(f"{name}: not the name of a checkpoint")
            shards = written_copies(chunks, self._memory)
        except CheckpointError as error:
            self._say(CheckpointFailed(name, str(error)[:_LONGEST]))
            return
        seed = next(chunk.seed for chunk in chunks)
        self._given_up.clear()
        self._thread = threading.Thread(
            target=self._write, args=(shards, name, seed), name="checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, shards: list[LayerState], name: str, seed: int) -> None:
        written: dict[str, int] = {}
        try:
            for shard in shards:
                folder = self._folder / name / shard.name
                written[shard.name] = write_shard(
                    folder, shard.about, shard.tree, shard.tensors, self._proceed
                )
        except _GivenUp:
            return
        except OSError as error:
            self._say(CheckpointFailed(name, str(error)[:_LONGEST]))
        except Exception as error:
            # Whatever it was, training goes on.
            self._say(CheckpointFailed(name, f"{type(error).__name__}: {error}"[:_LONGEST]))
        else:
            self._say(CheckpointWritten(name, written, seed))

    def _proceed(self) -> None:
        if self._given_up.is_set():
            raise _GivenUp

    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()


def _check(chunk: Chunk, checkpoint: Path, layers: int) -> None:
    """True if it is by layer, as the program is, and has as many of them."""
    is_layered = chunk.program.is_layered
    if bool(layers) != is_layered:
        raise CheckpointError(
            f"{checkpoint}: made {'by layer' if layers else 'by stage'}, "
            f"and the program gives {'layers' if is_layered else 'whole stages'}"
        )
    if is_layered and chunk.is_last and chunk.layers[-1].number + 1 != layers:
        raise CheckpointError(
            f"{checkpoint}: has {layers} layers, and the program has {chunk.layers[-1].number + 1}"
        )
