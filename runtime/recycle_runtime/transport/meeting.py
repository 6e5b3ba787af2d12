"""Gloo groups that one can stop waiting for while they are being made.

While gloo waits for another process to connect there is no socket yet that could be shut down, and nothing
else ends the wait before its time is up. So a thread of its own makes the group; whoever is called off leaves
it behind, and what it makes after all is dropped.
"""

import threading
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_lock = threading.Lock()
_under_way: "set[_Meeting]" = set()


class CalledOffError(RuntimeError):
    """Nobody wants this group any more."""


class _Meeting:
    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        self._arguments = (store, rank, size, timeout)
        self._made: Any = None
        self._error: BaseException | None = CalledOffError("called off while it met the others")
        self._is_over = threading.Event()
        self._is_called_off = False

    def hold(self) -> Any:
        threading.Thread(target=self._make, name="meeting", daemon=True).start()
        self._is_over.wait()
        with _lock:
            if self._error is not None:
                raise self._error
            return self._made

    def call_off(self) -> None:
        """Under the lock."""
        self._is_called_off = True
        self._is_over.set()

    def _make(self) -> None:
        gloo: Any = dist.ProcessGroupGloo
        made, error = None, None
        try:
            made = gloo(*self._arguments)
        except Exception as failure:
            # Whatever it is: whoever waits has to hear of it. A store may fail in ways of its own.
            error = failure
        with _lock:
            if not self._is_called_off:
                self._made, self._error = made, error
                self._is_over.set()


def meet(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    """The group, when everybody is there; RuntimeError if somebody does not come, or it is called off.

    What goes wrong with the store is raised as it is.
    """
    meeting = _Meeting(store, rank, size, timeout)
    with _lock:
        _under_way.add(meeting)
    try:
        return meeting.hold()
    finally:
        with _lock:
            _under_way.discard(meeting)


def call_off() -> None:
    """End all meetings of this process that are under way, from any thread."""
    with _lock:
        for meeting in _under_way:
            meeting.call_off()
