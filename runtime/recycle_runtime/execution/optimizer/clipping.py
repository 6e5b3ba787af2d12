"""What all workers must know of a step before it counts, and what follows from it."""

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

_EPSILON = 1e-6
"""As in torch.nn.utils.clip_grad_norm_."""


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How the steps of a run are made; the same on all workers."""

    clip_norm: float | None = None
    """Gradients are scaled down to this global norm; None leaves them alone."""
    staggered: bool = True
    """Step before the norm of the whole model is known; False waits for it."""
    validate: bool = True
    """Skip a step whose gradients are not all finite; False looks at nothing, ever."""
    recoverable: bool = True
    """Keep what `rollback` needs even where validation does not need it."""
    patience: int = 10
    """After a step that could not stand, wait for the norm until so many in a row could."""

    def __post_init__(self) -> None:
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(f"clip_norm must be a positive number, got {self.clip_norm}")
        if self.clip_norm is not None and not self.validate:
            raise ValueError("clipping needs the norm: set validate, or leave clip_norm out")
        if self.patience < 0:
            raise ValueError(f"patience must be at least 0, got {self.patience}")

    @property
    def keeps_undo(self) -> bool:
        return self.recoverable or (self.staggered and self.validate)

    def factor(self, totals: "Totals") -> float:
        """What the gradients of a step are multiplied by; 1.0 if it stands as it is."""
        if self.clip_norm is None:
            return 1.0
        return min(1.0, self.clip_norm / (totals.norm + _EPSILON))

    def accepts(self, totals: "Totals") -> bool:
        """Whether a step may stand that was made with unscaled gradients."""
        return totals.finite and self.factor(totals) == 1.0


class Totals(NamedTuple):
    """Over all workers."""

    squares: float
    """Sum of the squares of the finite gradients."""
    not_finite: float
    """How many workers have gradients that are not finite."""

    @property
    def finite(self) -> bool:
        return self.not_finite == 0 and math.isfinite(self.squares)

    @property
    def norm(self) -> float:
        return math.sqrt(self.squares) if self.finite else math.nan


class Verdict(Enum):
    """Of a step that was made before its norm was known."""

    KEEP = "keep"
    """It stands."""
    REDO = "redo"
    """It was taken back and made properly, or left out: run the next one again from its start."""


class Progress(NamedTuple):
    """The same on all workers after the same step."""

    steps: int
    """Made or left out."""
    skipped: int
    """Left out."""
    redone: int
    """Undone, and then made properly or left out."""
    calm: int
    """Steps in a row that could stand without the norm, counted up to the patience."""


class StepRecord(NamedTuple):
    """What became of a step."""

    step: int
    """Counted from 0."""
    norm: float | None
    """Of all gradients before clipping; None if nobody looked, NaN if not finite."""
    factor: float
    """Gradients were multiplied by it; 0.0 for a step that was left out."""
    redone: bool
    """It was first made without the norm, and could not stand."""
