"""Sums among processes that share one GPU: everybody reads everybody's numbers where they lie.

Each process copies its numbers into memory that its peers have opened, and says so; then all of them add up
all of these in the same order, so that all get the same bits. Before the memory is written again, everybody
must have read it. Sums are made in the order in which they were started, the same on all peers.
"""

import json
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from recycle_runtime.transport.shared_counters import SharedCounters


class _Event(Protocol):
    def record(self) -> None: ...

    def query(self) -> bool: ...


class _Device(Protocol):
    """See `cuda_ipc.SharedDevice`."""

    def allocate(self, size: int) -> torch.Tensor: ...

    def share(self, memory: torch.Tensor) -> Any: ...

    def open(self, handle: Any) -> torch.Tensor: ...

    def new_event(self) -> tuple[_Event, Any]: ...

    def open_event(self, handle: Any) -> _Event: ...


class _Sum:
    def __init__(self, sums: "SharedSums", tensor: torch.Tensor) -> None:
        self._sums, self.tensor = sums, tensor
        self.is_done = False

    def wait(self) -> None:
        while not self.is_done:
            self._sums.make_next()


class SharedSums:
    """One process's side. `counters` has two numbers for each peer from `first` on: written, and read."""

    def __init__(
        self,
        store: dist.Store,
        device: _Device,
        ranks: Sequence[int],
        me: int,
        counters: SharedCounters,
        first: int,
        timeout: float,
    ) -> None:
        self._store, self._device, self._ranks, self._me = store, device, tuple(ranks), me
        self._counters, self._first, self._timeout = counters, first, timeout
        self._waiting: deque[_Sum] = deque()
        self._made = 0
        self._size = 0
        self._growth = 0
        self._memory: dict[int, torch.Tensor] = {}
        self._written: dict[int, _Event] = {}
        self._read: dict[int, _Event] = {}

    @property
    def has_peers(self) -> bool:
        return len(self._ranks) > 1

    def start(self, tensor: torch.Tensor) -> _Sum:
        """One more; it is made when it, or one after it, is waited for."""
        entry = _Sum(self, tensor)
        self._waiting.append(entry)
        return entry

    def make_next(self) -> None:
        """The oldest that is not made yet."""
        entry = self._waiting.popleft()
        tensor = entry.tensor
        if not self._written:
            self._exchange_events()
        others = [rank for rank in self._ranks if rank != self._me]
        for rank in others if self._made else ():
            self._counters.wait_for(self._counter(rank, 1), self._made, self._timeout)
            self._counters.wait_until(self._read[rank].query, self._timeout)
        self._make_room(tensor.numel() * tensor.element_size())
        self._view(self._me, tensor).copy_(tensor)
        self._written[self._me].record()
        self._counters.add(self._counter(self._me, 0))
        for rank in others:
            self._counters.wait_for(self._counter(rank, 0), self._made + 1, self._timeout)
            self._counters.wait_until(self._written[rank].query, self._timeout)
        for number, rank in enumerate(self._ranks):
            part = self._view(rank, tensor)
            if number == 0:
                tensor.copy_(part)
            else:
                tensor.add_(part)
        self._read[self._me].record()
        self._counters.add(self._counter(self._me, 1))
        self._made += 1
        entry.is_done = True

    def close(self) -> None:
        self._waiting.clear()
        self._memory.clear()
        self._written.clear()
        self._read.clear()

    def _view(self, rank: int, tensor: torch.Tensor) -> torch.Tensor:
        size = tensor.numel() * tensor.element_size()
        return self._memory[rank][:size].view(tensor.dtype).view(tensor.shape)

    def _make_room(self, size: int) -> None:
        """All peers sum tensors of the same sizes in the same order, so all of them grow at the same time."""
        if size <= self._size:
            return
        self._size = size
        memory = self._device.allocate(size)
        self._tell(f"{self._me}/{self._growth}", self._device.share(memory))
        for rank in self._ranks:
            if rank == self._me:
                self._memory[rank] = memory
            else:
                self._memory[rank] = self._device.open(self._told(f"{rank}/{self._growth}"))
        self._growth += 1

    def _exchange_events(self) -> None:
        for name, events in (("written", self._written), ("read", self._read)):
            events[self._me], handle = self._device.new_event()
            self._tell(f"{self._me}/{name}", handle)
        for name, events in (("written", self._written), ("read", self._read)):
            for rank in self._ranks:
                if rank != self._me:
                    events[rank] = self._device.open_event(self._told(f"{rank}/{name}"))

    def _tell(self, key: str, value: Any) -> None:
        self._store.set(f"sums/{key}", json.dumps(value))

    def _told(self, key: str) -> Any:
        return json.loads(self._store.get(f"sums/{key}"))

    def _counter(self, rank: int, which: int) -> int:
        return self._first + 2 * rank + which
