"""The time limit: a guard on top of effort that is counted in work."""

import time


class Deadline:
    """Some time from now. Where work ends early because of it, `struck` stays true."""

    def __init__(self, nanoseconds: int) -> None:
        self._end = time.monotonic_ns() + nanoseconds
        self.struck = False

    @property
    def nanoseconds_left(self) -> int:
        return max(0, self._end - time.monotonic_ns())

    @property
    def seconds_left(self) -> float:
        return self.nanoseconds_left / 1e9

    def passed(self) -> bool:
        """Asked where work would go on: whoever asks stops when it is true."""
        self.struck = self.struck or time.monotonic_ns() > self._end
        return self.struck
