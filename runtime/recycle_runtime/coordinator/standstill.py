"""When nobody gets on although nobody is lost: a guard against the unforeseen. Standard library only."""

_LEAST = 120.0
_LONGEST_STEPS = 20


class Standstill:
    """How long a job may go without a step: as long as many of its longest ones."""

    def __init__(self) -> None:
        self._longest = 0.0

    def step(self, seconds: float) -> None:
        """One was made, and took so long."""
        self._longest = max(self._longest, seconds)

    def is_long(self, seconds: float) -> bool:
        """Whether so many seconds without a step are too many."""
        return seconds > max(_LEAST, _LONGEST_STEPS * self._longest)
