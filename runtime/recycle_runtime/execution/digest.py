"""Digest of what peers must have in common, in a few digits for each field.

Parameters, optimizer state, options of groups, schedules and averages. Gradients are summed with the same
bits on every peer, and all that follows is computed alike, so peers of a chunk are equal bit by bit after
every settled step; also one that joined, since it has made the same steps. Of optimizer state in shards,
owners of the same shard are, and weights of experts are compared there alone: their slots differ. Buffers are
left out: running statistics are a worker's own.

A tensor becomes the sum of its words as integers: one read of it on its device, and one wait for them all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch

from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.local_tensors import local
from recycle_runtime.execution.optimizer import LayerOptimizer
from recycle_runtime.execution.optimizer.plain_state import state_of
from recycle_runtime.protocol.messages.steps import OF_SHARD

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MASK = (1 << 64) - 1


def tensor_digest(layers: Iterable[Layer]) -> dict[str, str]:
    """By the name of the field: numbers as they are, tensors as a sum that begins with #."""
    fields = {name: value for layer in layers for name, value in _fields(layer)}
    tensors = {name: local(value) for name, value in fields.items() if isinstance(value, torch.Tensor)}
    sums = _numbers([_sum_of_words(tensor) for tensor in tensors.values()])
    shown = {name: f"#{total & _MASK:016x}" for name, total in zip(tensors, sums, strict=True)}
    return {name: shown.get(name) or repr(value) for name, value in fields.items()}


def _fields(layer: Layer) -> Iterator[tuple[str, Any]]:
    frozen = ((name, value) for name, value in layer.module.named_parameters() if not value.requires_grad)
    yield from frozen
    for number, (name, value) in enumerate(zip(layer.parameter_names, layer.parameters, strict=True)):
        if number not in layer.experts.stacked:
            yield name, value
    if layer.stepped is not None:
        yield from _of_optimizer(layer, layer.stepped, layer.parameters)
    for shard, made in layer.owned.items():
        for number in layer.experts.stacked:
            yield f"{OF_SHARD}{shard}: {layer.parameter_names[number]}", made.rows[number]
        for name, value in _of_optimizer(layer, made, made.rows):
            yield f"{OF_SHARD}{shard}: {name}", value


def _of_optimizer(
    layer: Layer, made: LayerOptimizer, weights: Sequence[torch.Tensor]
) -> Iterator[tuple[str, Any]]:
    """Fields of the optimizer of these weights, of a layer or of a shard of it."""
    optimizer, masters, title = made.optimizer, made.masters, layer.title
    stepped = weights if masters is None else masters.parameters
    if masters is not None:
        yield from ((f"{name} master", value) for name, value in _named(layer, masters.parameters))
    names = {parameter: name for name, parameter in _named(layer, stepped)}
    for key, state in cast("dict[Any, Any]", optimizer.state).items():
        # A tensor that is no parameter has no name, and its text would be all of its numbers.
        other = "state" if isinstance(key, torch.Tensor) else f"state {key}"
        yield from _leaves(names.get(key, f"{title}: {other}"), state)
    for number, group in enumerate(optimizer.param_groups):
        options = {name: value for name, value in group.items() if name not in ("params", "param_names")}
        yield from _leaves(f"{title}: param_groups {number}", options)
    for name, part in made.moving.parts.items():
        yield from _leaves(f"{title}: {name}", _common_state(part))


def _named(layer: Layer, parameters: Iterable[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    return zip(layer.parameter_names, parameters, strict=True)


def _common_state(part: Any) -> Any:
    """Of something that moves; of a module without buffers of modules in it, which may be statistics."""
    if not isinstance(part, torch.nn.Module):
        return state_of(part)
    return {**dict(part.named_parameters()), **dict(part.named_buffers(recurse=False))}


def _leaves(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            yield from _leaves(f"{where} {key}", item)
    elif isinstance(value, list | tuple) and any(isinstance(each, torch.Tensor) for each in _items(value)):
        for number, item in enumerate(_items(value)):
            yield from _leaves(f"{where} {number}", item)
    else:
        yield where, value


def _items(value: Any) -> list[Any]:
    return list(value)


def _sum_of_words(tensor: torch.Tensor) -> torch.Tensor:
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    flat = values.detach().contiguous().view(-1)
    size = flat.element_size()
    # Words as long as the sum are read several times as fast on a CPU.
    is_even = flat.numel() * size % 8 == 0 and flat.storage_offset() * size % 8 == 0
    return flat.view(torch.int64 if is_even else _WORDS[size]).sum(dtype=torch.int64)


def _numbers(sums: list[torch.Tensor]) -> list[int]:
    """Of all devices with one wait each."""
    found: dict[int, int] = {}
    for device in {total.device for total in sums}:
        places = [place for place, total in enumerate(sums) if total.device == device]
        numbers: list[Any] = torch.stack([sums[place] for place in places]).tolist()  # pyright: ignore
        found |= dict(zip(places, numbers, strict=True))
    return [found[place] for place in range(len(sums))]
