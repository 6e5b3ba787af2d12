"""The state of a chunk as bytes, from a process that has it to one that needs it.

Parameters, buffers, the optimizer's state and the stepper's, in one message between two processes. What
arrives is read by `torch.load(weights_only=True)`: tensors and plain numbers, nothing that could be executed.
How much may arrive is bounded before any of it is read.
"""

import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime.checkpoint.host_copy import bytes_of
from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.transport.gloo import meet

_PIECE = 64 << 20
_MOST_TIMES = 64
"""A state has at most so many times the bytes of parameters and buffers; with AdamW it is 3 times."""
_MOST_BESIDE = 64 << 20
"""Bytes beside them, for the smallest chunks."""


def pack(state: dict[str, Any]) -> torch.Tensor:
    """A state as bytes."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)


def unpack(data: torch.Tensor, device: torch.device) -> dict[str, Any]:
    """What `pack` was given, with its tensors on a device; any error if these are other bytes."""
    return torch.load(io.BytesIO(bytes_of(data)), map_location=device, weights_only=True)


def largest_state(chunk: Chunk) -> int:
    """Bytes that are accepted as the state of a chunk."""
    tensors = [*chunk.module.parameters(), *chunk.module.buffers()]
    held = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return _MOST_TIMES * held + _MOST_BESIDE


def send_bytes(
    data: torch.Tensor, store: dist.Store, name: str, timeout: timedelta, meanwhile: Callable[[], None]
) -> None:
    """To the one who waits under this name."""
    group = _pair(store, name, 0, timeout)
    group.send([torch.tensor([data.numel()])], 1, 0).wait()
    meanwhile()
    for piece in data.split(_PIECE):
        group.send([piece], 1, 0).wait()
    # The other end says that it has everything, so that nothing is closed too early.
    group.recv([torch.empty(1, dtype=torch.int64)], 1, 0).wait()


def receive_bytes(
    store: dist.Store, name: str, timeout: timedelta, meanwhile: Callable[[], None], largest: int
) -> torch.Tensor:
    """What arrives, as it is; RuntimeError if it is more than `largest` bytes, before any of them is read."""
    group = _pair(store, name, 1, timeout)
    size = torch.empty(1, dtype=torch.int64)
    group.recv([size], 0, 0).wait()
    if not 0 <= int(size) <= largest:
        raise RuntimeError(f"a state of {int(size)} bytes arrives, at most {largest} are accepted")
    meanwhile()
    data = torch.empty(int(size), dtype=torch.uint8)
    for piece in data.split(_PIECE):
        group.recv([piece], 0, 0).wait()
    group.send([size], 0, 0).wait()
    return data


def _pair(store: dist.Store, name: str, rank: int, timeout: timedelta) -> Any:
    return meet(dist.PrefixStore(name, store), rank, 2, timeout)
