"""How long each change of the group took, and what was lost. Standard library only."""

from dataclasses import dataclass, field

from recycle_runtime.protocol.messages import Recovered


@dataclass(slots=True)
class Recovery:
    """One change of generation; times in seconds of the machine's monotonic clock."""

    generation: int
    causes: list[str] = field(default_factory=list[str])
    began: float = 0.0
    """When the coordinator heard of it."""
    harmed: float | None = None
    """When it happened, if that is known."""
    left: float = 0.0
    """When everybody had left the old group and said where they stand."""
    going: float = 0.0
    """When everybody runs in the new one."""
    step: int = 0
    """Where training goes on."""
    undone: int = 0
    """How many workers took a step back."""
    repeated: float = 0.0
    """Seconds of training that are run again."""
    plan: str = ""
    reason: str = ""
    """What the first worker said whose own work failed."""

    def told(self) -> Recovered:
        """What happened and how long each part of it took."""
        start = self.began if self.harmed is None else self.harmed
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
