"""Sums over peers that change a state which is still on its way here: kept until it has come."""

from collections.abc import Callable

import torch


class LateSums:
    """Those of one state."""

    def __init__(self, apply: Callable[[torch.Tensor], None]) -> None:
        """`apply` changes the state by a sum that was kept."""
        self._apply = apply
        self._kept: list[torch.Tensor] | None = None
        """Of each step since the state left for here."""

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
            self._apply(each)

    def keep(self, summed: torch.Tensor) -> bool:
        """Keep the sum of a step; False if the state is here, and it is to be applied now."""
        if self._kept is None:
            return False
        self._kept.append(summed)
        return True
