"""Counters that the processes of one machine share: who has sent and used how many messages.

A file in memory with one 64-bit number for each counter; each has a single writer. Standard library only.
"""

import mmap
import os
import time
from pathlib import Path

_FOLDER = Path("/dev/shm")
_NAP = 20e-6


class SharedCounters:
    """A row of counters, all 0 at first."""

    def __init__(self, name: str, count: int) -> None:
        path = _FOLDER / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, 8 * count)
            self._memory = mmap.mmap(descriptor, 8 * count)
        finally:
            os.close(descriptor)
        self._path = path
        self._numbers = memoryview(self._memory).cast("q")

    def add(self, counter: int) -> None:
        """One more; only ever called by the counter's own process."""
        self._numbers[counter] += 1

    def wait_for(self, counter: int, least: int, timeout: float) -> None:
        """Until the counter has come so far; TimeoutError if it does not."""
        if self._numbers[counter] >= least:
            return
        give_up = time.monotonic() + timeout
        while self._numbers[counter] < least:
            if time.monotonic() > give_up:
                raise TimeoutError(f"the other side has not come to {least} in {timeout:.0f} s")
            time.sleep(_NAP)

    def close(self) -> None:
        """Let go; the name goes with the first who closes."""
        self._numbers.release()
        self._memory.close()
        self._path.unlink(missing_ok=True)
