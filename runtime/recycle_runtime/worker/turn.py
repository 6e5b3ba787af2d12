"""Whose turn it is to do a worker process's work, and how it passes on from a thread that is never woken.

Gloo forgets whom to tell when a socket breaks in the middle of a message: a thread that waits for that
message waits until its time is up, though everybody has left. Nothing calls it back. So it is left behind
where it waits, and another thread does from then on what it would have done.
"""

import threading
import time

from recycle_runtime.testing.faults import EARS, Ears
from recycle_runtime.transport.guarded import Waits
from recycle_runtime.transport.sockets import break_off_everything


class Turn:
    """Belongs to the thread that made it, until another takes it."""

    def __init__(self, shown: Waits, ears: Ears = EARS) -> None:
        self._shown, self._ears, self._holder = shown, ears, threading.get_ident()
        self._lock = threading.Lock()
        self._since: float | None = None
        """When the wait began that lasts."""

    @property
    def is_waiting(self) -> bool:
        """Whether the holder waits for other workers; to be set by nobody else."""
        return self._since is not None

    @is_waiting.setter
    def is_waiting(self, value: bool) -> None:
        if value:
            self._shown.is_waiting, self._since = True, time.monotonic()
            if self._ears.are_deaf:
                self._ears.are_deaf = False
                break_off_everything()
                _sleep_for_ever()
            return
        with self._lock:
            is_holder = threading.get_ident() == self._holder
            if is_holder:
                self._shown.is_waiting, self._since = False, None
        if not is_holder:
            # Too late: what this thread would do next has been done.
            _sleep_for_ever()

    def take(self, seconds: float) -> bool:
        """Whether it is the caller's turn now: only if the holder has waited for so long, and does still."""
        with self._lock:
            if self._since is None or time.monotonic() - self._since < seconds:
                return False
            self._holder = threading.get_ident()
            self._shown.is_waiting, self._since = False, None
            return True


def _sleep_for_ever() -> None:
    while True:
        time.sleep(3600.0)
