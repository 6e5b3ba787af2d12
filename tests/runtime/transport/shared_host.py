"""Host memory in place of a GPU that processes share: handles are keys into a table of this process."""

import threading
from typing import Any

import torch


class HostEvent:
    def __init__(self) -> None:
        self.records = 0

    def record(self) -> None:
        self.records += 1

    def query(self) -> bool:
        # The host has counted the message by now, so this must have been recorded.
        assert self.records > 0
        return True


class SharedHost:
    """One for all threads. What it allocates is remembered, to see how much there is."""

    def __init__(self) -> None:
        self._table: dict[int, Any] = {}
        self._lock = threading.Lock()
        self.allocated: list[int] = []

    def allocate(self, size: int) -> torch.Tensor:
        self.allocated.append(size)
        return torch.full((size,), 0xAB, dtype=torch.uint8)

    def share(self, memory: torch.Tensor) -> Any:
        return self._put(memory)

    def open(self, handle: Any) -> torch.Tensor:
        return self._table[handle]

    def new_event(self) -> tuple[HostEvent, Any]:
        event = HostEvent()
        return event, self._put(event)

    def open_event(self, handle: Any) -> HostEvent:
        return self._table[handle]

    def _put(self, value: Any) -> int:
        with self._lock:
            self._table[len(self._table)] = value
            return len(self._table) - 1
