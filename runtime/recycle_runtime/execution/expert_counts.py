"""Requests for each expert in a step, by all peers together.

Every peer counts what its own micro-batches choose; REDUCE adds that up. From the sums follow the bias of
mixtures that balance without a loss, at once, and the next placement of experts that are shared
(`state.expert_places`).
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

import torch

from recycle_runtime.execution.step_sum import StartSum, StepCounts, StepSum
from recycle_runtime.experts.among_peers import AmongPeers, Arrivals
from recycle_runtime.experts.mixture import MixtureOfExperts
from recycle_runtime.experts.shared import SharedExperts


class ExpertCounts(StepCounts):
    """Those of a chunk's mixtures."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.layers = [each for each in module.modules() if isinstance(each, SharedExperts)]
        """In the order in which a forward comes to them."""
        mixtures = [each for each in module.modules() if isinstance(each, MixtureOfExperts)]
        self._mixtures: dict[SharedExperts, MixtureOfExperts] = {each.experts: each for each in mixtures}
        self.popularity: torch.Tensor | None = None
        """By layer, by expert: how often it was asked for in the last step that was summed."""
        self._choices: list[torch.Tensor] = []
        """Of the last step here: of each layer with a capacity how many there were, and how many dropped."""
        self.sum = StepSum(self._balance)
        """Of what all peers have asked for."""

    def begin(self, count: int) -> None:
        self.sum.drop()
        self._choices.clear()
        for layer in self.layers:
            layer.take_counts()

    def before_forward(self, index: int, share: float) -> None:
        for mixture in self._mixtures.values():
            mixture.loss_scale = share

    def after_forward(self, index: int) -> None:
        """Layers have counted by themselves."""

    @contextmanager
    def keeping(self, arrivals: Arrivals) -> Generator[None]:
        """Around a forward or a backward of the micro-batch that these belong to."""
        exchanges = [layer.exchange for layer in self.layers if isinstance(layer.exchange, AmongPeers)]
        for each in exchanges:
            each.arrivals = arrivals
        try:
            yield
        finally:
            for each in exchanges:
                each.arrivals = None

    def start(self, start_sum: StartSum) -> None:
        if self.sum.has_begun:
            return
        device = next(self.layers[0].parameters()).device
        most = max(layer.experts for layer in self.layers)
        table = torch.zeros(len(self.layers), most, dtype=torch.float64, device=device)
        for row, layer in zip(table, self.layers, strict=True):
            if (counted := layer.take_counts()) is not None:
                row[: layer.experts] = counted.popularity
                if layer.capacity is not None:
                    self._choices.append(torch.stack([counted.popularity.sum(), counted.dropped]))
        self.sum.begin(table, start_sum)

    def finish(self) -> None:
        if (table := self.sum.take()) is not None:
            self.popularity = table

    @property
    def choices(self) -> tuple[int, int]:
        """Of experts in the last step, in forwards here, by layers with a capacity; and those dropped."""
        if not self._choices:
            return 0, 0
        made, dropped = cast("list[int]", torch.stack(self._choices).sum(0).tolist())  # pyright: ignore[reportUnknownMemberType]
        return made, dropped

    def _balance(self, table: torch.Tensor) -> None:
        with torch.no_grad():
            for row, layer in zip(table, self.layers, strict=True):
                if (mixture := self._mixtures.get(layer)) is not None:
                    mixture.balance(row[: layer.experts])
