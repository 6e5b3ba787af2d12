"""Completion of gradients, layer by layer, while the last backward of a step still runs.

Autograd runs the nodes of a graph from the one made last to the one made first. So when the gradient of a
layer's input arrives, nothing adds to gradients of this layer and of those after it any more. On a GPU a mark
is left there in the queue of work; sums over peers that wait for the mark begin while the rest is computed.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch

from recycle_runtime.execution.device_copies import mark_on
from recycle_runtime.execution.layer import Layer


class BackwardWatch:
    """Of one micro-batch, whose backward is the last of a chunk in a step."""

    def __init__(
        self, layers: Sequence[Layer], groups: Sequence[Sequence[torch.Tensor]], device: torch.device
    ) -> None:
        """`groups` are parameters that are summed together, in the order of their sums."""
        self._device = device
        numbers: dict[torch.Tensor, int] = {
            parameter: layer.number for layer in layers for parameter in layer.parameters
        }
        self._firsts = [min(numbers[parameter] for parameter in group) for group in groups]
        """The first layer of each group: the last to be complete."""
        self.complete: list[Any] = []
        """Marks of the groups whose gradients are complete there."""

    def before_layer(self, number: int, value: Any) -> None:
        """In forward: what goes into a layer."""
        inputs = cast("Sequence[Any]", value if isinstance(value, tuple) else (value,))
        for each in inputs:
            if isinstance(each, torch.Tensor) and each.grad_fn is not None:
                each.register_hook(partial(self._reached, number))  # pyright: ignore[reportUnknownMemberType]

    def _reached(self, layer: int, _: torch.Tensor) -> None:
        """In backward, on a thread of autograd's."""
        while len(self.complete) < len(self._firsts) and layer <= self._firsts[len(self.complete)]:
            self.complete.append(mark_on(self._device))
