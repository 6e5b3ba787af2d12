"""How long a policy has been working, between pauses and since its last checkpoint."""


class WorkClock:
    """Seconds of work. A checkpoint is taken after every so many of them."""

    def __init__(self, checkpoint_every: float) -> None:
        self._every = checkpoint_every
        self.now = 0.0
        self._worked = 0.0
        self.busy_until = 0.0
        """When the last pause is over."""

    def pass_to(self, at: float, rate: float) -> None:
        """Time has gone on, at this rate once the pause was over."""
        if rate > 0:
            self._worked += max(0.0, at - max(self.now, self.busy_until))
        self.now = at

    def pause(self, seconds: float) -> None:
        """From now on; a longer one that is under way stays."""
        self.busy_until = max(self.busy_until, self.now + seconds)

    @property
    def is_paused(self) -> bool:
        return self.now < self.busy_until

    @property
    def since_pause(self) -> float:
        """How long work has been going on, if it has."""
        return min(self._worked, max(0.0, self.now - self.busy_until))

    def back_to_checkpoint(self) -> float:
        """Work since the last checkpoint, which is lost now."""
        lost = self._worked % self._every
        self._worked -= lost
        return lost

    def checkpoint(self) -> None:
        """One is taken now, besides the regular ones; the next comes a whole interval later."""
        self._worked -= self._worked % self._every
