"""How long each change of the group took, and what was lost. Standard library only."""

from dataclasses import asdict, dataclass, field
from typing import Any


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

    def row(self) -> dict[str, Any]:
        """For reports: what happened and how long each part of it took."""
        start = self.began if self.harmed is None else self.harmed
        times = {
            "detection": self.began - start,
            "leaving": self.left - self.began,
            "regroup": self.going - self.left,
            "total": self.going - start,
        }
        fields = asdict(self)
        for name in ("reason", "began", "harmed", "left", "going"):
            del fields[name]
        return fields | {key: round(value, 6) for key, value in times.items()}
