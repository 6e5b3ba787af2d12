"""Where the tensors of a message lie in one piece of memory: one after the other, each well aligned."""

from collections.abc import Sequence
from math import prod

import torch

from recycle_runtime.transport import TensorSpec

_ALIGNED = 256


def spans(specs: Sequence[TensorSpec]) -> list[tuple[int, int]]:
    """First byte and the one after the last of each tensor."""
    found: list[tuple[int, int]] = []
    offset = 0
    for spec in specs:
        size = spec.dtype.itemsize * prod(spec.shape)
        found.append((offset, offset + size))
        offset += -(-size // _ALIGNED) * _ALIGNED
    return found


def packed_size(specs: Sequence[TensorSpec]) -> int:
    """Bytes that a message needs; never 0, so that there is always something to share."""
    last = max((end for _, end in spans(specs)), default=0)
    return max(1, -(-last // _ALIGNED)) * _ALIGNED


def pieces(memory: torch.Tensor, specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
    """The tensors of a message as they lie in the bytes."""
    return [
        memory[first:end].view(spec.dtype).view(spec.shape)
        for spec, (first, end) in zip(specs, spans(specs), strict=True)
    ]
