"""Counts of a step's forwards, summed over peers, and the state that they change: statistics of norms, and
requests for experts.

The state may still be on its way here, as it was some steps ago: sums are kept then until it has come.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from recycle_runtime.transport.interface import Pending

StartSum = Callable[[torch.Tensor], Pending | None]


class StepCounts(ABC):
    """One kind of counts of a chunk, within one step at a time."""

    sum: "StepSum"

    @abstractmethod
    def begin(self, count: int) -> None:
        """A step of so many micro-batches begins, or begins again."""

    @abstractmethod
    def before_forward(self, index: int, share: float) -> None:
        """Of a micro-batch, by its number among all of the step; `share`: of its loss in the mean over it."""

    @abstractmethod
    def after_forward(self, index: int) -> None:
        """The same micro-batch, as soon as it is through."""

    @abstractmethod
    def start(self, start_sum: StartSum) -> None:
        """Begin to sum over peers, when all forwards of the step are done."""

    def finish(self) -> None:
        """Take in the sum."""
        self.sum.take()


class StepSum:
    """The sums of one state."""

    def __init__(
        self, apply: Callable[[torch.Tensor], None], before_late: Callable[[], None] = lambda: None
    ) -> None:
        """`apply` changes the state by a sum; `before_late` is called before it applies one that was kept."""
        self._apply, self._before_late = apply, before_late
        self._sum: torch.Tensor | None = None
        """Over peers, once it has begun."""
        self._under_way: Pending | None = None
        self._kept: list[torch.Tensor] | None = None
        """Of each step since the state left for here."""

    @property
    def has_begun(self) -> bool:
        return self._sum is not None

    def begin(self, counted: torch.Tensor, start_sum: StartSum) -> None:
        """Begin the sum when all forwards of the step are done."""
        self._sum, self._under_way = counted, start_sum(counted)

    def take(self) -> torch.Tensor | None:
        """Wait for the sum, and apply it where the state is here; None if none has begun."""
        if (whole := self._sum) is None:
            return None
        if self._under_way is not None:
            self._under_way.wait()
        self.drop()
        if self._kept is None:
            self._apply(whole)
        else:
            self._kept.append(whole)
        return whole

    def drop(self) -> None:
        """Let go of a sum that is under way."""
        self._sum = self._under_way = None

    def record(self) -> None:
        """The state is on its way here: keep what is to be done to it."""
        self._kept = []

    def forget(self) -> None:
        """It will not come."""
        self._kept = None

    @property
    def recorded(self) -> int:
        """Steps that are kept."""
        return len(self._kept or ())

    def catch_up(self, *, but: int = 0) -> None:
        """It is here, as it was when `record` began; the last `but` steps stay kept."""
        kept = self._kept or []
        last = max(0, len(kept) - but)
        self._kept = kept[last:] if but else None
        for each in kept[:last]:
            self._before_late()
            self._apply(each)
