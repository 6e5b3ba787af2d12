"""Bytes of a state, from a process that has it to one that needs it: see `state.image`.

How much may arrive is bounded before any of it is read.
"""

import hmac
import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from recycle_runtime.protocol.access import Token, access_of
from recycle_runtime.protocol.mutual_proof import common_key, meeting, new_pair_nonce, offer
from recycle_runtime.transport.gloo import meet
from recycle_runtime.weights.tensor_bytes import bytes_of

_PIECE = 64 << 20
_MOST_TIMES = 64
"""A state has at most so many times the bytes of parameters and buffers; with AdamW it is 3 times."""
_MOST_BESIDE = 64 << 20
"""Bytes beside them, for the smallest chunks."""
_NO_MORE = -1
"""In place of the size of a message."""
_HEAD_NUMBERS = 5
"""A size and its signature, as numbers of eight bytes."""
_CHANGED = "a state arrives that was changed on its way"


def largest_of(modules: Iterable[torch.nn.Module]) -> int:
    """Bytes that are accepted as the state of these modules."""
    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    held = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return _MOST_TIMES * held + _MOST_BESIDE


class StatePair(Protocol):
    """Two processes, one that sends and one that receives."""

    async def send(self, data: torch.Tensor, meanwhile: Callable[[], None] | None = None) -> None: ...

    async def end(self) -> None: ...

    async def receive(
        self, largest: int, meanwhile: Callable[[], None] | None = None
    ) -> torch.Tensor | None: ...


class Pair:
    """Two processes that meet under a name, the first to send and the second to receive.

    Whoever connects first to a port of gloo's is taken for the other process. So each proves to the other
    that it knows the job's token before anything else is sent, and every message is signed: its size before
    memory is taken for it, and all of it before anybody reads it.
    """

    def __init__(self, store: dist.Store, name: str, rank: int, timeout: timedelta, token: Token) -> None:
        """RuntimeError if the other end does not come, or does not know the token."""
        # The group needs the store for as long as it is there.
        self._store = store
        self._group: Any = meet(dist.PrefixStore(name, store), rank, 2, timeout)
        self._key = self._prove(name, rank, access_of(token).tokens())
        self._number = 0
        """Of messages that have been sent or received."""

    def _prove(self, name: str, rank: int, tokens: Sequence[str]) -> bytes:
        """The key of what follows."""
        own = new_pair_nonce()
        both = meeting(name, rank, own, self._exchange(rank, own))
        key = common_key(tokens, rank, both, self._exchange(rank, offer(tokens, rank, both)))
        if key is None:
            raise RuntimeError(f"what answers for {name} does not know the job's token")
        return key

    def _exchange(self, rank: int, data: bytes) -> bytes:
        """One's own bytes for as many of the other end's."""
        theirs = torch.empty(len(data), dtype=torch.uint8)
        sent = self._group.send([torch.frombuffer(bytearray(data), dtype=torch.uint8)], 1 - rank, 0)
        self._group.recv([theirs], 1 - rank, 0).wait()
        sent.wait()
        return bytes(bytes_of(theirs))

    def _head(self, size: int) -> torch.Tensor:
        """The size of the next message, signed."""
        number = struct.pack(">Q", self._number)
        tag = hmac.digest(self._key, b"size" + number + struct.pack(">q", size), "sha256")
        return torch.frombuffer(bytearray(struct.pack("=q", size) + tag), dtype=torch.int64)

    def _signature(self) -> "hmac.HMAC":
        """Of the next message, piece by piece."""
        return hmac.new(self._key, b"data" + struct.pack(">Q", self._number), "sha256")

    async def send(self, data: torch.Tensor, meanwhile: Callable[[], None] | None = None) -> None:
        """A message; it is there when this returns. `meanwhile` is called when the other end expects it."""
        self._group.send([self._head(data.numel())], 1, 0).wait()
        if meanwhile is not None:
            meanwhile()
        signature = self._signature()
        for piece in data.split(_PIECE):
            sent = self._group.send([piece], 1, 0)
            signature.update(bytes_of(piece))
            sent.wait()
        tag = torch.frombuffer(bytearray(signature.digest()), dtype=torch.uint8)
        self._group.send([tag], 1, 0).wait()
        self._number += 1
        # The other end says that it has everything, so that nothing is closed too early.
        self._group.recv([torch.empty(1, dtype=torch.int64)], 1, 0).wait()

    async def end(self) -> None:
        """No message follows."""
        self._group.send([self._head(_NO_MORE)], 1, 0).wait()

    async def receive(self, largest: int, meanwhile: Callable[[], None] | None = None) -> torch.Tensor | None:
        """The next message, None if none follows; RuntimeError if it is more than `largest` bytes, before any
        of them is read, or not as it was sent."""
        head = torch.empty(_HEAD_NUMBERS, dtype=torch.int64)
        self._group.recv([head], 0, 0).wait()
        size = head[:1].clone()
        expected = self._head(int(size))
        if not hmac.compare_digest(bytes_of(head), bytes_of(expected)):
            raise RuntimeError(_CHANGED)
        if int(size) == _NO_MORE:
            return None
        if not 0 <= int(size) <= largest:
            raise RuntimeError(f"a state of {int(size)} bytes arrives, at most {largest} are accepted")
        if meanwhile is not None:
            meanwhile()
        data = torch.empty(int(size), dtype=torch.uint8)
        signature = self._signature()
        for piece in data.split(_PIECE):
            self._group.recv([piece], 0, 0).wait()
            signature.update(bytes_of(piece))
        tag = torch.empty(signature.digest_size, dtype=torch.uint8)
        self._group.recv([tag], 0, 0).wait()
        if not hmac.compare_digest(bytes_of(tag), signature.digest()):
            raise RuntimeError(_CHANGED)
        self._number += 1
        self._group.send([size], 0, 0).wait()
        return data


Meet = Callable[[str, int], Awaitable[StatePair]]
"""Meets another process under a name, 0 to send and 1 to receive."""


async def send_bytes(
    data: torch.Tensor, meet: Meet, name: str, meanwhile: Callable[[], None] | None = None
) -> None:
    """To the one who waits under this name."""
    pair = await meet(name, 0)
    await pair.send(data, meanwhile)


async def receive_bytes(
    meet: Meet, name: str, largest: int, meanwhile: Callable[[], None] | None = None
) -> torch.Tensor:
    """Receive bytes as they are; RuntimeError if they are more than `largest`, before any of them is read."""
    pair = await meet(name, 1)
    data = await pair.receive(largest, meanwhile)
    if data is None:
        raise RuntimeError("the other end has nothing to send")
    return data
