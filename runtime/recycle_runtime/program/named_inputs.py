"""Inputs of a model by name: `model(**inputs)` for a micro-batch whose input is a dictionary.

Between workers and layers everything is a tuple of tensors, so the names go first, as a text in a tensor.
Where inputs are loaded it stays on the host: to read it on a device would wait for all that was asked of it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

_MARK = b"inputs:"


def as_tuple(value: Any) -> tuple[Any, ...]:
    """One value or several; a dictionary has its names before them."""
    if isinstance(value, Mapping):
        named = cast(Mapping[str, Any], value)
        return (pack_inputs(list(named)), *named.values())
    return tuple(cast(Sequence[Any], value)) if isinstance(value, tuple | list) else (value,)


def with_host_text(inputs: Any, arguments: Sequence[torch.Tensor]) -> int:
    """Number of the arguments, made of these inputs, that stay on the host."""
    return int(isinstance(inputs, Mapping) and bool(arguments))


def pack_inputs(content: Any) -> torch.Tensor:
    """Pack a JSON value into a tensor."""
    return torch.tensor(list(_MARK + json.dumps(content, separators=(",", ":")).encode()), dtype=torch.uint8)


def unpacked(tensor: torch.Tensor) -> Any:
    """The same again; None if the tensor is none of these."""
    if tensor.dtype is not torch.uint8 or tensor.dim() != 1:
        return None
    text = bytes(tensor.tolist())
    return json.loads(text[len(_MARK) :]) if text.startswith(_MARK) else None
