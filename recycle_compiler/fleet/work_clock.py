"""How long a policy has been working, between pauses and since it last started from a checkpoint."""


class WorkClock:
    """Seconds of work. What a return to a checkpoint costs is an expected value: half a cycle.

    Where in a cycle a loss falls is chance, and should not hang on whether a trace's times and those of
    checkpoints have a common divisor.
    """

    def __init__(self, checkpoint_cycle: float) -> None:
        self._cycle = checkpoint_cycle
        """From one checkpoint to the next, with the save where the policy's rate includes it."""
        self.now = 0.0
        self._worked = 0.0
        """Since the start, or since a checkpoint that was taken or gone back to."""
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
        """Work since the last checkpoint, on average, which is lost now."""
        lost = min(self._worked, self._cycle / 2)
        self._worked = 0.0
        return lost

    def checkpoint(self) -> None:
        """One is taken now, besides the regular ones."""
        self._worked = 0.0
