"""Messages of one sender leave the memory they arrived in one after the other, whatever is asked for first.

A plan may use a later message before an earlier one. If it did so with slots that come round in turn, a slot
would be filled again while its message still waits; so whoever asks for a message takes those before it too.
"""

from collections import deque
from collections.abc import Callable

import torch

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
