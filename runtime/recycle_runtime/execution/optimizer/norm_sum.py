"""The two numbers that all workers add up to judge a step, on their way."""

from collections.abc import Callable
from typing import Protocol, cast

import torch

from recycle_runtime.execution.optimizer.clipping import Totals


class Pending(Protocol):
    """An operation under way, such as a torch.distributed Work."""

    def wait(self) -> object: ...


StartSum = Callable[[torch.Tensor], Pending | None]
"""Starts the sum of a tensor over a group, in place; None if it is done."""


class NormSum:
    """This worker's part in the sum of squares over all workers, and the sum itself."""

    def __init__(self) -> None:
        self.first_peer = True
        """Whether this worker answers for its stage; exactly one of its live peers does."""
        self._own: torch.Tensor | None = None
        self._under_way: tuple[torch.Tensor, Pending | None] | None = None

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

    def wait(self) -> Totals:
        """The sum, the same on all workers."""
        assert self._under_way is not None, "the sum was not started"
        total, pending = self._under_way
        if pending is not None:
            pending.wait()
        squares, not_finite = cast("list[float]", total.tolist())  # pyright: ignore[reportUnknownMemberType]
        return Totals(squares, not_finite)

    def own(self) -> Totals:
        """What this worker has measured, whether or not it answers for its stage."""
        assert self._own is not None, "nothing was measured"
        squares, not_finite = cast("list[float]", self._own.tolist())  # pyright: ignore[reportUnknownMemberType]
        return Totals(squares, not_finite)

    def drop(self) -> None:
        self._under_way = None
