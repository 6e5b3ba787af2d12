"""Messages that travel through slots of memory: how their tensors lie in one, and who leaves it when.

The tensors of a message lie one after the other, each well aligned. Messages of one sender leave the slots
they arrived in one after the other, whatever is asked for first. A plan may use a later message before an
earlier one. If it did so with slots that come round in turn, a slot would be filled again while its message
still waits; so asking for a message takes those before it too.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import prod

import torch

from recycle_runtime.transport.interface import TensorSpec

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


def message_pieces(memory: torch.Tensor, specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
    """The tensors of a message as they lie in the bytes."""
    return [
        memory[first:end].view(spec.dtype).view(spec.shape)
        for spec, (first, end) in zip(specs, spans(specs), strict=True)
    ]


Fetch = Callable[[], list[torch.Tensor]]
"""Waits for a message and copies it out of its slot."""


class InOrder:
    """The messages of one sender that were asked for and not fetched yet."""

    def __init__(self) -> None:
        self._waiting: deque[OrderedArrival] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, fetch: Fetch) -> "OrderedArrival":
        """One more."""
        arrival = OrderedArrival(self, fetch)
        self._waiting.append(arrival)
        return arrival

    def fetch_next(self) -> None:
        """The oldest of them."""
        self._waiting.popleft().fetch()


class OrderedArrival:
    """One message; `wait` may be called in any order."""

    def __init__(self, queue: InOrder, fetch: Fetch) -> None:
        self._queue = queue
        self._fetch: Fetch | None = fetch
        self._tensors: list[torch.Tensor] = []

    def fetch(self) -> None:
        """Copy it out."""
        assert self._fetch is not None, "a message is fetched once"
        self._tensors = self._fetch()
        self._fetch = None

    def wait(self) -> list[torch.Tensor]:
        while self._fetch is not None:
            self._queue.fetch_next()
        return self._tensors
