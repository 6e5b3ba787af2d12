"""Occurrences of each index, without waiting for the device where no index can be too large.

    chosen = torch.topk(probabilities, 2).indices                 places along an axis: less than its length
    torch.bincount(chosen.reshape(-1), minlength=experts)         waits on a GPU, for the largest index

`torch.bincount` asks the device how long its result is. The losses of mixtures of experts count like this,
once for each layer. Indices that name places along an axis are less than its length, however they are shaped:
with a `minlength` of that or more the result's length is known, and the same whole numbers are added up where
nobody waits. An index that may be larger, weights and a smaller `minlength` are left to `torch.bincount`.
"""

# The version of a tensor, by which changes in place are noticed, is private.
# pyright: reportPrivateUsage=false

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_PLACES = frozenset(["topk", "argmax", "argmin"])
"""Functions that give places along an axis."""
_SAME_NUMBERS = frozenset(["reshape", "view", "flatten", "ravel", "contiguous", "detach", "clone"])
"""Functions whose results have no other numbers than what they were given first."""


class IndexCounts:
    """Follows indices through the code of one forward, call by call."""

    def __init__(self) -> None:
        self._bounds: dict[int, tuple[Tensor, int, int]] = {}
        """By `id`: a tensor, which is held so that its `id` stays its own, its version, and what is more than
        any number in it."""

    def counted(self, name: str, args: Sequence[Any], options: dict[str, Any]) -> Tensor | None:
        """The result of `torch.bincount`; None for all other calls, and where that has to look."""
        if name != "bincount" or len(args) > 3 or options.keys() - {"weights", "minlength"}:
            return None
        given = dict(zip(("input", "weights", "minlength"), args, strict=False)) | options
        indices: Any = given.get("input")
        length = given.get("minlength")
        bound = self._bound_of(indices)
        if bound is None or given.get("weights") is not None or type(length) is not int or length < bound:
            return None
        if indices.dim() != 1:
            return None
        counts = torch.zeros(length, dtype=torch.int64, device=indices.device)
        return counts.scatter_add_(0, indices, torch.ones_like(indices))

    def see(self, name: str, args: Sequence[Any], options: dict[str, Any], made: Any) -> None:
        """Note the result of a call."""
        if name in _PLACES:
            self._know(made[1] if name == "topk" else made, _length(name, args, options))
        elif name in _SAME_NUMBERS and args:
            self._know(made, self._bound_of(args[0]))

    def _know(self, made: Any, bound: int | None) -> None:
        if bound is not None and isinstance(made, Tensor) and made.dtype == torch.int64:
            self._bounds[id(made)] = made, made._version, bound

    def _bound_of(self, value: Any) -> int | None:
        known = self._bounds.get(id(value))
        return known[2] if known is not None and known[1] == value._version else None


def _length(name: str, args: Sequence[Any], options: dict[str, Any]) -> int | None:
    """Of the axis that a call gives places along."""
    value = args[0] if args else options.get("input")
    if not isinstance(value, Tensor) or value.dim() == 0:
        return None
    at = 2 if name == "topk" else 1
    axis = options.get("dim", args[at] if len(args) > at else None)
    if axis is None:
        return value.shape[-1] if name == "topk" else value.numel()
    return value.shape[axis] if type(axis) is int else None
