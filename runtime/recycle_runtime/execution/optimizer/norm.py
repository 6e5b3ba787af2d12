"""The norm of the whole model: how all workers add it up, and what follows from it for a step."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, cast

import torch

from recycle_runtime.execution.device_copies import Readback
from recycle_runtime.transport.interface import Pending

_EPSILON = 1e-6
"""As in torch.nn.utils.clip_grad_norm_."""


@dataclass(frozen=True, slots=True)
class StepOptions:
    """Options of the steps of a run; the same on all workers."""

    clip_norm: float | None = None
    """Gradients are scaled down to this global norm; None leaves them alone."""
    clip_value: float | None = None
    """No number in the gradients is larger, or smaller than its negative, before the norm is taken."""
    staggered: bool = True
    """Step before the norm of the whole model is known; False waits for it."""
    validate: bool = True
    """Skip a step whose gradients are not all finite; False looks at nothing, ever."""
    recoverable: bool = True
    """Keep what `rollback` needs even where validation does not need it: for steps that do not wait for the
    norm. Of one that does, all workers have the gradients when the first of them makes it, so it is made by
    those who have not yet."""
    patience: int = 10
    """After a step that could not stand, wait for the norm until so many in a row could."""

    def __post_init__(self) -> None:
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(f"clip_norm must be a positive number, got {self.clip_norm}")
        if self.clip_value is not None and not 0 < self.clip_value < math.inf:
            raise ValueError(f"clip_value must be a positive number, got {self.clip_value}")
        if self.clip_norm is not None and not self.validate:
            raise ValueError("clipping needs the norm: set validate, or leave clip_norm out")
        if self.patience < 0:
            raise ValueError(f"patience must be at least 0, got {self.patience}")

    @property
    def keeps_undo(self) -> bool:
        return self.staggered if self.validate else self.recoverable

    def factor(self, totals: "Totals") -> float:
        """Factor for the gradients of a step; 1.0 if the step stands as it is."""
        if self.clip_norm is None:
            return 1.0
        return min(1.0, self.clip_norm / (totals.norm + _EPSILON))

    def accepts(self, totals: "Totals") -> bool:
        """True if a step may stand that was made with unscaled gradients."""
        return totals.finite and self.factor(totals) == 1.0


class Totals(NamedTuple):
    """Over all workers."""

    squares: float
    """Sum of the squares of the finite gradients."""
    not_finite: float
    """Number of workers with gradients that are not finite."""

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
    """End of a step, as it stands."""

    step: int
    """Counted from 0."""
    norm: float | None
    """Of all gradients before clipping; None if not computed, NaN if not finite."""
    factor: float
    """Gradients were multiplied by it; 0.0 for a step that was left out."""
    redone: bool
    """It was first made without the norm, and could not stand."""


StartSum = Callable[[torch.Tensor], Pending | None]
"""Starts the sum of a tensor over a group, in place; None if it is done."""


class NormSum:
    """This worker's share of the sum of squares over all workers, and the sum itself."""

    def __init__(self) -> None:
        self.first_peer = True
        """True if this worker answers for its chunk; exactly one of the chunk's live holders does."""
        self._own: torch.Tensor | None = None
        self._under_way: tuple[torch.Tensor, Pending | None] | None = None
        self._readback = Readback()

    def measure(self, squares: torch.Tensor) -> None:
        """Take the sum of squares of this worker's gradients, on their device and without waiting for it."""
        finite = torch.isfinite(squares)
        self._own = torch.stack([torch.where(finite, squares, 0.0), (~finite).to(torch.float64)])
        self._under_way = None

    def start(self, start_sum: StartSum) -> None:
        """Begin, or begin again in another group after a failure."""
        assert self._own is not None, "nothing was measured"
        total = self._own.clone()
        if not self.first_peer:
            # Its gradients are those of the first; that they are finite may be said twice.
            total[0].zero_()
        self._under_way = (total, start_sum(total))
        self._readback = Readback()
        if self._under_way[1] is None:
            self._readback.take(total)

    def wait(self) -> Totals:
        """The sum, the same on all workers."""
        assert self._under_way is not None, "the sum was not started"
        total, pending = self._under_way
        if pending is not None:
            self._readback.take(total, pending)
            self._under_way = (total, None)
        squares, not_finite = self._readback.read()
        return Totals(squares, not_finite)

    def own(self) -> Totals:
        """Totals that this worker has measured, whether or not it answers for its chunk."""
        assert self._own is not None, "nothing was measured"
        squares, not_finite = cast("list[float]", self._own.tolist())  # pyright: ignore[reportUnknownMemberType]
        return Totals(squares, not_finite)

    def drop(self) -> None:
        self._under_way = None
