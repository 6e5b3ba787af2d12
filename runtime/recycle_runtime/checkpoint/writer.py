"""The state of a process to a checkpoint and back: a copy at the right moment, and a thread that writes it.

A shard is a layer, or a whole stage where the program gives stages, on one tensor-parallel rank. Layers are
the same under every cut, so a run may resume under another.
"""

import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from recycle_runtime.checkpoint.host_copy import HostCopy
from recycle_runtime.checkpoint.manifest import CheckpointError, Manifest, layer_shard_name, shard_name
from recycle_runtime.checkpoint.settings import (
    ARGUMENTS,
    arguments_text,
    options_of_layers,
    other_arguments,
    other_options,
)
from recycle_runtime.checkpoint.shelf import is_name
from recycle_runtime.checkpoint.storage import EPOCH, PROGRAM, Tensors, read_shard, take_apart, write_shard
from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.execution.layer import Layer
from recycle_runtime.protocol.messages.checkpoints import (
    CheckpointFailed,
    CheckpointMissed,
    CheckpointReply,
    CheckpointWritten,
)

_LONGEST = 500
"""Letters of an error that are told."""


class Shard(NamedTuple):
    """The state of one layer or stage, taken apart."""

    name: str
    about: dict[str, int | str]
    """What it must say about itself to be of use."""
    tree: Any
    tensors: Tensors


class CopyMemory(Protocol):
    """Where copies of tensors are made."""

    def take(self, tensors: Tensors) -> Tensors: ...


def copied(chunks: Collection[Chunk], memory: CopyMemory) -> list[Shard]:
    """The state after as many steps as were applied, all of them settled.

    The next step may be under way, as long as its gradients have not been used: buffers that its forwards
    have changed are taken as they were before.
    """
    with ExitStack() as stack:
        for chunk in chunks:
            stack.enter_context(chunk.buffers.as_begun(chunk.applied))
        shards = list(taken_apart(chunks))
        copies = memory.take(together(shards))
    return [shard._replace(tensors=_of(shard, copies)) for shard in shards]


def restore(chunk: Chunk, checkpoint: Path, step: int, *, accepts_changes: bool = False) -> list[str]:
    """Become what the checkpoint holds, and say what should be known; CheckpointError when it does not fit.

    `accepts_changes`: also if it was made by a program with another source.
    """
    manifest = Manifest.read(checkpoint)
    _check(chunk, checkpoint, manifest.shape.layers)
    states: dict[int, Any] = {}
    for layer in chunk.layers:
        name = _name(chunk, layer)
        about = _about(chunk, layer, step)
        checksum = manifest.shards.get(name, -1)
        states[layer.number] = read_shard(checkpoint / name, about, checksum, accepts_changes=accepts_changes)
    made = options_of_layers(chunk.layers)
    _load(chunk, states, checkpoint)
    if not accepts_changes:
        _expect_data(chunk, states, str(checkpoint))
    told = other_options(made, options_of_layers(chunk.layers))
    if not (ends := _ends(chunk)):
        return [*told]
    arguments = states[ends[0].number].get(ARGUMENTS)
    return [*other_arguments(arguments, chunk.program.script_arguments), *told]


def _expect_data(chunk: Chunk, states: Mapping[int, Any], source: str) -> None:
    """As long as that which the checkpoint was made with, where that is known."""
    for layer in _ends(chunk):
        if isinstance(epoch := states[layer.number].get(EPOCH), int):
            chunk.data.must_have(epoch, source)


def needed(chunk: Chunk, step: int) -> dict[str, dict[str, int | str]]:
    """The shards that a chunk consists of, and what each must say about itself."""
    return {_name(chunk, layer): _about(chunk, layer, step) for layer in chunk.layers}


def restore_from(chunk: Chunk, states: Mapping[str, Any], source: str) -> None:
    """Become what these shards hold, by name; CheckpointError when they do not fit."""
    _load(chunk, {layer.number: states[_name(chunk, layer)] for layer in chunk.layers}, Path(source))


def _load(chunk: Chunk, states: Mapping[int, Any], source: Path) -> None:
    """The state of each layer, by its number."""
    chunk.is_whole = False
    for layer in chunk.layers:
        state = states[layer.number]
        with _blaming(source / _name(chunk, layer)):
            layer.load(state)
            chunk.stepper.load_state_dict(state["stepper"])
        chunk.take_data_position(state.get("data") if layer in _ends(chunk) else None)
    chunk.is_whole, chunk.is_fresh = True, False


def write_layers(
    chunks: Collection[Chunk], folder: Path, proceed: Callable[[], None] = lambda: None
) -> dict[str, int]:
    """The state of chunks whose last step is settled, one shard after the other; their checksums.

    Memory is needed for a copy of one shard. `proceed` is called again and again, and may raise.
    """
    memory, written = HostCopy(), dict[str, int]()
    with ExitStack() as stack:
        for chunk in chunks:
            stack.enter_context(chunk.buffers.as_begun(chunk.applied))
        for shard in taken_apart(chunks):
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
            self._memory.prepare(together(taken_apart(chunks)))

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
            shards = copied(chunks, self._memory)
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

    def _write(self, shards: list[Shard], name: str, seed: int) -> None:
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


def taken_apart(chunks: Collection[Chunk]) -> Iterator[Shard]:
    """The shards of these chunks as they are now, with the tensors themselves."""
    for chunk in chunks:
        data = chunk.data_position()
        for layer in chunk.layers:
            state = {**layer.state(), "stepper": chunk.stepper.state_dict()}
            if data is not None and layer in _ends(chunk):
                state["data"] = data
            if layer in _ends(chunk) and (epoch := chunk.data.epoch(chunk.applied)) is not None:
                state[EPOCH] = epoch
            if layer in _ends(chunk) and chunk.program.script_arguments is not None:
                state[ARGUMENTS] = arguments_text(chunk.program.script_arguments)
            tree, tensors = take_apart(state)
            yield Shard(_name(chunk, layer), _about(chunk, layer, chunk.applied), tree, tensors)


def _ends(chunk: Chunk) -> list[Layer]:
    """The layers of a chunk whose shards say where the data stands: the first and the last of the model,
    which lie with workers that draw it under every cut."""
    first = chunk.layers[:1] if chunk.is_first else ()
    return [*first, *(chunk.layers[-1:] if chunk.is_last else ())]


def together(shards: Iterable[Shard]) -> Tensors:
    """The tensors of all of them, under names of their own."""
    return {f"{shard.name}/{name}": tensor for shard in shards for name, tensor in shard.tensors.items()}


def _of(shard: Shard, copies: Tensors) -> Tensors:
    return {name: copies[f"{shard.name}/{name}"] for name in shard.tensors}


def _name(chunk: Chunk, layer: Layer) -> str:
    name = layer_shard_name if chunk.program.is_layered else shard_name
    return name(layer.number, chunk.tp_rank)


def _about(chunk: Chunk, layer: Layer, step: int) -> dict[str, int | str]:
    """What a shard must say about itself; the names are those of the format."""
    common: dict[str, int | str] = {"step": step, "seed": chunk.seed, "part": chunk.tp_rank}
    common[PROGRAM] = chunk.program.source_digest
    if chunk.program.is_layered:
        return {**common, "layer": layer.number, "name": layer.name}
    return {**common, "stage": layer.number}


def _check(chunk: Chunk, checkpoint: Path, layers: int) -> None:
    """Whether it is by layer, as the program is, and has as many of them."""
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


@contextmanager
def _blaming(shard: Path) -> Generator[None]:
    """A state that cannot be loaded is one that does not fit."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        why = " ".join(str(error).split())[:300]
        what = "layer" if shard.name.startswith("layer") else "stage"
        raise CheckpointError(f"{shard}: does not fit the program's {what}: {why}") from None
