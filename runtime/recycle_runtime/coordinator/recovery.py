"""Times of each change of generation. Needs no torch."""

from dataclasses import dataclass, field

from recycle_runtime.protocol.messages.observers import Recovered


@dataclass(slots=True)
class Recovery:
    """One change of generation; times in seconds of the machine's monotonic clock."""

    generation: int
    causes: list[str] = field(default_factory=list[str])
    began: float = 0.0
    """Time at which the coordinator learned of it."""
    fault_at: float | None = None
    """Time of the injected fault, if that is known."""
    left: float = 0.0
    """Time at which all had left the old group and reported their step."""
    going: float = 0.0
    """Time at which all run in the new group; 0 until then."""
    step: int = 0
    """Step from which training goes on."""
    undone: int = 0
    """Count of workers that took a step back."""
    repeated: float = 0.0
    """Seconds of training that are run again."""
    plan: str = ""
    reason: str = ""
    """The error of the first worker whose own work failed."""

    def told(self) -> Recovered:
        """Message to observers about the change, with the time of each phase."""
        start = self.began if self.fault_at is None else self.fault_at
        return Recovered(
            generation=self.generation,
            causes=tuple(self.causes),
            step=self.step,
            undone=self.undone,
            repeated=self.repeated,
            plan=self.plan,
            detection=round(self.began - start, 6),
            leaving=round(self.left - self.began, 6),
            regroup=round(self.going - self.left, 6),
            total=round(self.going - start, 6),
        )
