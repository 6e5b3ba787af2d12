"""What all units of a stage share."""

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from recycle_runtime.execution.split_backward.deferred import Unit
    from recycle_runtime.execution.split_backward.general import Call


class Collector(Protocol):
    """Takes what units put off."""

    def add(self, unit: "Unit", value: Tensor | None, gradient: Tensor) -> None:
        """Keep the input of a layer, if its weights need it, and the gradient of its output."""
        ...

    def add_call(self, call: "Call") -> None:
        """Keep one call of a module."""
        ...


class Owner:
    """One for each stage."""

    def __init__(self) -> None:
        self.collecting: Collector | None = None
        """Takes what is put off during backward; without one, nothing is put off."""
        self.anchor = torch.zeros((), requires_grad=True)
        """Makes an output require a gradient when no input does, so that its node runs in backward."""
