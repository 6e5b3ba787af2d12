"""Finds that all processes of a group wait for each other, in memory that they share. Standard library only.

Every process has a number there: 0 while it works, and another one for each of its waits for a message, a sum
or an answer that only another process can give. If none of these numbers is 0 and none changes, nobody is
left who could give anything: something was lost, though everybody is alive. Whoever sees that first says so,
and stops waiting. Waits for the device do not count: it goes on by itself.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NoReturn

LONGEST_LOOK = 0.1
"""Seconds that one look counts at most: while this process is stopped, the others may be too."""


_FOUND = -1
"""The number of one that has seen a standstill."""


class StandstillError(RuntimeError):
    """Nobody can go on."""


class WaitBoard:
    """One process's side: it shows when it waits, and looks at the others while it does."""

    def __init__(
        self,
        numbers: "memoryview[int] | list[int]",
        first: int,
        size: int,
        me: int,
        seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """The group's numbers stand from `first` on; `seconds` without a change are a standstill."""
        self._numbers, self._first, self._size, self._me = numbers, first, size, me
        self._seconds, self._now = seconds, now
        self._waits = 0
        self._seen: list[int] = []
        self._unchanged = 0.0
        self._looked = 0.0
        self._has_found = False

    @contextmanager
    def waiting(self) -> Generator[None]:
        """For another process, which has to do something first."""
        self._waits += 1
        self._numbers[self._first + self._me] = self._waits
        self._seen, self._looked = [], self._now()
        try:
            yield
        finally:
            self._numbers[self._first + self._me] = _FOUND if self._has_found else 0

    def look(self) -> None:
        """To be called many times while it waits; StandstillError if nobody can go on."""
        now = self._now()
        elapsed, self._looked = now - self._looked, now
        seen = list(self._numbers[self._first : self._first + self._size])
        if _FOUND in seen:
            self._end()
        if seen != self._seen or 0 in seen:
            self._seen, self._unchanged = seen, 0.0
            return
        self._unchanged += min(elapsed, LONGEST_LOOK)
        if self._unchanged > self._seconds:
            self._end()

    def _end(self) -> NoReturn:
        self._has_found = True
        raise StandstillError(
            f"all {self._size} processes of the group have waited for each other for "
            f"{self._seconds:g} s: a message is lost"
        )
