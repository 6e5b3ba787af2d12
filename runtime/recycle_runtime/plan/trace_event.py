"""One entry of a trace. Standard library only."""

from typing import NamedTuple


class Event(NamedTuple):
    """A compute instruction as it ran; times in nanoseconds of the machine's monotonic clock."""

    name: str
    step: int
    start: int
    end: int
    waited: int = 0
    """Of the time between start and end."""
