"""Meetings: groups that are made on a thread of their own, and can be called off while they are.

While a library waits for a process to connect, nothing else may end that wait before its time is up: there is
no socket yet that could be shut down, or no communicator that could be aborted. A thread that is called off
is left behind, and what it makes after all is dropped."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_Made = TypeVar("_Made")
_lock = threading.Lock()
_under_way: "set[_Meeting[object]]" = set()


class CalledOffError(RuntimeError):
    """This group is not wanted any more."""


class _Meeting(Generic[_Made]):
    def __init__(self, make: Callable[[], _Made], on_call_off: Callable[[], None]) -> None:
        self._make_group, self._on_call_off = make, on_call_off
        self._made: list[_Made] = []
        self._error: BaseException | None = CalledOffError("called off while the group was being made")
        self._is_over = threading.Event()
        self._is_called_off = False

    def hold(self) -> _Made:
        threading.Thread(target=self._make, name="meeting", daemon=True).start()
        self._is_over.wait()
        with _lock:
            if self._error is not None:
                raise self._error
            return self._made.pop()

    def call_off(self) -> None:
        with _lock:
            self._is_called_off = True
            self._is_over.set()
        self._on_call_off()

    def _make(self) -> None:
        made, error = list[_Made](), None
        try:
            made.append(self._make_group())
        except Exception as failure:
            # Whatever it is: whoever waits has to hear of it. A store may fail in ways of its own.
            error = failure
        with _lock:
            if not self._is_called_off:
                self._made, self._error = made, error
                self._is_over.set()


def hold_meeting(make: Callable[[], _Made], on_call_off: Callable[[], None] = lambda: None) -> _Made:
    """Result of `make`, or its error; CalledOffError if it is called off, after `on_call_off` has heard of
    it."""
    meeting = _Meeting(make, on_call_off)
    with _lock:
        _under_way.add(meeting)  # pyright: ignore[reportArgumentType]
    try:
        return meeting.hold()
    finally:
        with _lock:
            _under_way.discard(meeting)  # pyright: ignore[reportArgumentType]


def call_off() -> None:
    """End all meetings of this process that are under way, from any thread."""
    with _lock:
        meetings = list(_under_way)
    for meeting in meetings:
        meeting.call_off()
