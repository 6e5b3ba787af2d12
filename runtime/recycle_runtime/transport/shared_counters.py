"""Counters that the processes of one machine share: who has sent and used how many messages.

A file in memory with one 64-bit number for each counter; each has a single writer. Standard library only.
"""

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

_FOLDER = Path("/dev/shm")
_NAP = 20e-6


class Stopped(RuntimeError):  # noqa: N818
    """A wait was ended from outside."""


class SharedCounters:
    """A row of counters, all 0 at first."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._stopped = False
        descriptor = os.open(_FOLDER / name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, 8 * count)
            self._memory = mmap.mmap(descriptor, 8 * count)
        finally:
            os.close(descriptor)
        self._numbers = memoryview(self._memory).cast("q")

    def remove_name(self) -> None:
        """Nobody can open them any more; whoever has them keeps them. May be called by everyone."""
        remove_counters(self._name)

    def add(self, counter: int) -> None:
        """One more; only ever called by the counter's own process."""
        self._numbers[counter] += 1

    def wait_for(self, counter: int, least: int, timeout: float) -> None:
        """Until the counter has come so far; TimeoutError if it does not, Stopped after `stop`."""
        if self._numbers[counter] >= least:
            return
        give_up = time.monotonic() + timeout
        while self._numbers[counter] < least:
            if self._stopped:
                raise Stopped("waiting for the other side was ended")
            if time.monotonic() > give_up:
                raise TimeoutError(f"the other side has not come to {least} in {timeout:.0f} s")
            time.sleep(_NAP)

    def wait_until(self, is_done: Callable[[], bool], timeout: float) -> None:
        """The same for anything that can be asked; TimeoutError and Stopped as above."""
        give_up = time.monotonic() + timeout
        while not is_done():
            if self._stopped:
                raise Stopped("waiting for the other side was ended")
            if time.monotonic() > give_up:
                raise TimeoutError(f"the other side's work is not done after {timeout:.0f} s")
            time.sleep(_NAP)

    def stop(self) -> None:
        """End what other threads of this process wait for, now and later."""
        self._stopped = True

    def close(self) -> None:
        """Let go."""
        self._numbers.release()
        self._memory.close()
        self.remove_name()


def remove_counters(name: str) -> None:
    """The file, if it is still there."""
    (_FOLDER / name).unlink(missing_ok=True)
