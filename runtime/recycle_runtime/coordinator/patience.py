"""Limits of the coordinator's wait for workers that are alive. Needs no torch."""

import time
from collections.abc import Callable
from dataclasses import dataclass

_MARGIN = 60.0
"""Seconds by which the coordinator waits longer than agents do, who know more."""
_LONGEST_STEPS = 20
_LONGEST_TURN = 2.0
"""Seconds between two turns beyond which the process must have been stopped."""


@dataclass(frozen=True, slots=True)
class Patience:
    """In seconds."""

    standstill: float = 120.0
    """Without a step, though every worker trains."""
    first_step: float = 1860.0
    """The same while a worker makes its first step with the layers that it has."""
    leaving: float = 15.0
    """For a worker to leave its group, if its stage has another; one that gloo never wakes is given up."""
    last_leaving: float = 2000.0
    """For the last of a stage: longer than it waits for other workers, so that it comes out by itself."""

    @staticmethod
    def beside(instruction: float, first_step: float) -> "Patience":
        """Of a job whose agents have these limits."""
        return Patience(
            standstill=max(120.0, 2 * instruction),
            first_step=first_step + _MARGIN,
            leaving=max(15.0, instruction),
            last_leaving=group_timeout(instruction, first_step) + _MARGIN,
        )


def group_timeout(instruction: float, first_step: float) -> float:
    """Seconds that a worker waits for the others of its group: longer than any of them may take."""
    return max(600.0, instruction + _MARGIN, first_step + _MARGIN)


class AttentiveClock:
    """The machine's monotonic clock, less the time in which this process was stopped with all others.

    After ctrl-Z and `fg`, or in a container that was paused, nobody is late.
    """

    def __init__(self, real: Callable[[], float] = time.monotonic) -> None:
        self._real, self._last = real, real()
        self.stopped = 0.0
        """Seconds."""

    def now(self) -> float:
        return self._real() - self.stopped

    def turn(self) -> None:
        """To be called many times a second."""
        real = self._real()
        if real - self._last > _LONGEST_TURN:
            self.stopped += real - self._last
        self._last = real


class Standstill:
    """Limit of the time that a job may go without a step: as long as many of its longest ones."""

    def __init__(self, patience: Patience, now: float) -> None:
        self._patience, self._longest = patience, 0.0
        self.since = now
        """Time at which the last step was made, or a script was last busy."""

    def step(self, now: float, seconds: float) -> None:
        """One was made, and took so long."""
        self._longest = max(self._longest, seconds)
        self.since = now

    def wait(self, now: float) -> None:
        """Nobody can make a step until now."""
        self.since = now

    def is_over(self, now: float, begun: float, have_stepped: Callable[[], bool]) -> bool:
        """True if it has gone without for too long, in a generation that began then; some who train may not
        `have_stepped` yet."""
        seconds = now - max(self.since, begun)
        least = max(self._patience.standstill, _LONGEST_STEPS * self._longest)
        return seconds > least and (seconds > self._patience.first_step or have_stepped())
