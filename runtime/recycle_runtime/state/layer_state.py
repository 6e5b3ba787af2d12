"""The state of one layer, as it leaves a process and as it is loaded in another.

A layer's state is parameters, buffers, what its optimizer and schedules keep, and how far the steps are; with
the first and the last layer of the model also where the data stands. A program that gives whole stages has
one layer for every chunk. Layers are the same under every cut, so a state may be loaded under another.
"""

import logging
import shlex
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from recycle_runtime.execution.chunk import Chunk, Setting
from recycle_runtime.execution.layer import Layer
from recycle_runtime.program.source_digest import changed_parts, short_digest
from recycle_runtime.state.names import (
    ACCEPT,
    CheckpointError,
    layer_shard_name,
    optimizer_shard_name,
    shard_name,
)
from recycle_runtime.state.tree import Tensors, take_apart

Fields = dict[str, Any]
PROGRAM = "program"
SEED = "seed"
EPOCH = "epoch"
"""Micro-batches of the program's data in an epoch, where that is known."""
ARGUMENTS = "arguments"
"""Of the script, where one is trained."""
SHARDS = "shards"
"""Of optimizer state that was in shards when it was written."""
_MOST_NAMED = 8
_LOGGER = logging.getLogger(__name__)


class LayerState(NamedTuple):
    """The state of one layer or stage, taken apart."""

    name: str
    about: Fields
    """Facts by which it is known: step, seed, rank, program, layer or stage."""
    tree: Any
    tensors: Tensors


class CopyMemory(Protocol):
    """Place where copies of tensors are made."""

    def take(self, tensors: Tensors) -> Tensors: ...


class Clones:
    """Copies where the tensors are: quick, and on a GPU no host waits for them."""

    def take(self, tensors: Tensors) -> Tensors:
        return {name: tensor.clone() for name, tensor in tensors.items()}


def arguments_text(arguments: Sequence[str]) -> str:
    return shlex.join(arguments)


def state_name(setting: Setting, number: int) -> str:
    """Of the layer with this number."""
    name = layer_shard_name if setting.program.is_layered else shard_name
    return name(number, setting.tp_rank)


def optimizer_shard(chunk: Chunk, layer: Layer, shard: int, *, with_weights: bool = False) -> LayerState:
    """State of this process as an owner of a shard of a layer's optimizer; no tensor is copied."""
    tree, tensors = take_apart(layer.shard_state(shard, with_weights=with_weights))
    name = optimizer_shard_name(state_name(chunk.setting, layer.number), shard, len(layer.shards))
    return LayerState(name, about(chunk, layer, chunk.applied), tree, tensors)


def written_states(chunks: Collection[Chunk]) -> Iterator[LayerState]:
    """States that this process writes where every byte of a model is written once; no tensor is copied.

    One of the holders of a chunk writes its layers, and the first owner of each shard that shard.
    """
    yield from states_of([chunk for chunk in chunks if chunk.answers.for_layers])
    for chunk in chunks:
        for layer in chunk.layers:
            for shard in chunk.answers.for_shards.get(layer.number, ()):
                yield optimizer_shard(chunk, layer, shard)


def states_of(chunks: Collection[Chunk], numbers: Collection[int] | None = None) -> Iterator[LayerState]:
    """Of the layers of these chunks, or of those with such numbers, as they are now; no tensor is copied."""
    for chunk in chunks:
        data = chunk.data_position()
        for layer in chunk.layers:
            if numbers is not None and layer.number not in numbers:
                continue
            state = {**layer.state(), "stepper": chunk.stepper.state_dict()}
            if data is not None and layer in ends(chunk):
                state["data"] = data
            if layer in ends(chunk) and (epoch := chunk.data.epoch(chunk.applied)) is not None:
                state[EPOCH] = epoch
            if layer in ends(chunk) and chunk.program.script_arguments is not None:
                state[ARGUMENTS] = arguments_text(chunk.program.script_arguments)
            tree, tensors = take_apart(state)
            yield LayerState(
                state_name(chunk.setting, layer.number), about(chunk, layer, chunk.applied), tree, tensors
            )


@contextmanager
def as_settled(chunks: Collection[Chunk]) -> Generator[None]:
    """Chunks after as many steps as were applied, all of them settled.

    The next step may be under way, as long as its gradients have not been used: buffers that its forwards
    have changed are as they were before.
    """
    with ExitStack() as stack:
        for chunk in chunks:
            stack.enter_context(chunk.buffers.as_begun(chunk.applied))
        yield


def copied_state(
    chunks: Collection[Chunk], memory: CopyMemory, numbers: Collection[int] | None = None
) -> list[LayerState]:
    """States of settled chunks; what they were taken from may change afterwards."""
    with as_settled(chunks):
        return _copies(list(states_of(chunks, numbers)), memory)


def copied_shards(
    chunks: Collection[Chunk], memory: CopyMemory, places: Collection[tuple[int, int]]
) -> list[LayerState]:
    """The same for shards of optimizer state that are owned here, by layer and shard, and their weights."""
    layers = {layer.number: (chunk, layer) for chunk in chunks for layer in chunk.layers}
    shards = [optimizer_shard(*layers[number], shard, with_weights=True) for number, shard in sorted(places)]
    return _copies(shards, memory)


def written_copies(chunks: Collection[Chunk], memory: CopyMemory) -> list[LayerState]:
    """The same for what this process writes."""
    with as_settled(chunks):
        return _copies(list(written_states(chunks)), memory)


def _copies(states: list[LayerState], memory: CopyMemory) -> list[LayerState]:
    return with_tensors(states, memory.take(together(states)))


def together(states: Iterable[LayerState]) -> Tensors:
    """The tensors of all of them, under names of their own."""
    return {f"{state.name}/{name}": tensor for state in states for name, tensor in state.tensors.items()}


def with_tensors(states: Iterable[LayerState], copies: Tensors) -> list[LayerState]:
    """The same states, with copies of what `together` gave."""
    return [
        state._replace(tensors={name: copies[f"{state.name}/{name}"] for name in state.tensors})
        for state in states
    ]


def ends(chunk: Chunk) -> list[Layer]:
    """The layers of a chunk whose states say where the data stands: the first and the last of the model,
    which lie with workers that draw it under every cut."""
    first = chunk.layers[:1] if chunk.is_first else ()
    return [*first, *(chunk.layers[-1:] if chunk.is_last else ())]


def about(chunk: Chunk, layer: Layer, step: int) -> Fields:
    """Facts that the state of a layer must say about itself; the names are those of the format."""
    common: Fields = {"step": step, SEED: chunk.seed, "part": chunk.tp_rank}
    common[PROGRAM] = chunk.program.source_digest
    if chunk.program.is_layered:
        return {**common, "layer": layer.number, "name": layer.name}
    return {**common, "stage": layer.number}


def needed(chunk: Chunk, step: int) -> dict[str, Fields]:
    """The states that a chunk consists of, and what each must say about itself."""
    return {state_name(chunk.setting, layer.number): about(chunk, layer, step) for layer in chunk.layers}


def needed_shards(chunk: Chunk, step: int) -> dict[str, dict[str, Fields]]:
    """By the names of these states: those of the shards of their optimizers, where there are any."""
    found: dict[str, dict[str, Fields]] = {}
    for layer in chunk.layers:
        name, count = state_name(chunk.setting, layer.number), len(layer.shards)
        names = (optimizer_shard_name(name, shard, count) for shard in range(count))
        found[name] = dict.fromkeys(names, about(chunk, layer, step))
    return found


def apply_states(
    chunk: Chunk, states: Mapping[str, Any], source: str | Path, *, is_stepping: bool = False
) -> None:
    """Become what these states hold, by name; CheckpointError when they do not fit.

    `is_stepping`: the chunk makes steps with its peers already, and goes on with them.
    """
    chunk.is_whole = False
    for layer in chunk.layers:
        name = state_name(chunk.setting, layer.number)
        state = states[name]
        with _blaming(Path(source) / name):
            layer.load(state, is_stepping=is_stepping)
            if not is_stepping:
                chunk.stepper.load_state_dict(state["stepper"])
        chunk.take_data_position(state.get("data") if layer in ends(chunk) else None)
    chunk.is_whole, chunk.is_fresh = True, False


@contextmanager
def _blaming(shard: Path) -> Generator[None]:
    """A state that cannot be loaded is one that does not fit."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        why = " ".join(str(error).split())[:300]
        what = "layer" if shard.name.startswith("layer") else "stage"
        raise CheckpointError(f"{shard}: does not fit the program's {what}: {why}") from None


def check_about(
    source: Path, checkpoint: Path, found: Fields, wanted: Fields, *, accepts_changes: bool = False
) -> None:
    """CheckpointError unless a state, at this source in a checkpoint, says about itself what it must.

    `accepts_changes`: also if it has another seed, or was made by a program with another source.
    """
    for name, value in wanted.items():
        if name == PROGRAM or (other := found.get(name)) == value:
            continue
        if name != SEED:
            raise CheckpointError(f"{source}: has {name} {other}, and this run has {value}")
        if not accepts_changes:
            raise CheckpointError(f"{source}: has {name} {other}, and this run has {value}: {ACCEPT}")
    if not accepts_changes:
        # Last: what cannot be used in any case says more.
        _check_program(checkpoint, found.get(PROGRAM), wanted.get(PROGRAM))


def _check_program(checkpoint: Path, made_by: object, now: object) -> None:
    """States of older versions do not say it, nor do programs whose source cannot be read."""
    if not isinstance(made_by, str) or not isinstance(now, str):
        return
    if not made_by or not now:
        _tell_unknown(checkpoint)
        return
    if changed := changed_parts(made_by, now):
        named = ", ".join(changed[:_MOST_NAMED]) + (", ..." if len(changed) > _MOST_NAMED else "")
        raise CheckpointError(
            f"{checkpoint}: made by a program with another source ({named} changed; source "
            f"{short_digest(made_by)} then, {short_digest(now)} now): {ACCEPT}"
        )


@cache
def _tell_unknown(checkpoint: Path) -> None:
    """Once, not for every shard."""
    _LOGGER.warning(
        "%s: the source of its program, or of this one, could not be read: whether it has changed is "
        "not known",
        checkpoint,
    )


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of a tensor in host memory; made beside training, and used by it."""
    if device.type == "cpu":
        return tensor.clone()
    there = tensor.to(device)
    if there.is_cuda:
        # The memory is free when training has come that far.
        there.record_stream(torch.cuda.default_stream(device))
    return there
