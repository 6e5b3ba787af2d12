"""Tensors in the arguments and results of a module: tuples, lists and dictionaries, one in the other."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


class UnknownKindError(Exception):
    """A value of another kind, which may hide tensors."""


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same structure with every tensor replaced, in a fixed order."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, _PLAIN):
        return value
    kind: Any = type(value)
    if kind is tuple or kind is list:
        return kind(map_tensors(function, item) for item in value)
    if kind is dict or kind is OrderedDict:
        return kind((key, map_tensors(function, item)) for key, item in value.items())
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*(map_tensors(function, item) for item in value))
    raise UnknownKindError(kind.__name__)


def tensors_of(value: Any) -> list[Tensor]:
    """All tensors of the structure, in the order of `map_tensors`."""
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(keep, value)
    return found
