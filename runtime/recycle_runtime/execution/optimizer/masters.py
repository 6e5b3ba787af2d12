"""Float32 copies of weights in a lower precision: what an optimizer steps in their place.

    gradients of the weights -> gradients of the copies -> step -> copies -> weights

A step changes a weight by less than bf16 can show; the copies remember it.
"""

from collections.abc import Sequence

import torch

from recycle_runtime.execution.optimizer.undo import Copies


class Masters:
    """Of the trainable parameters of a layer."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], values: Sequence[torch.Tensor]) -> None:
        """`values` are what the parameters were before their precision was lowered."""
        self._weights = tuple(parameters)
        self.parameters = [torch.nn.Parameter(value.detach().clone()) for value in values]
        for weight, master in zip(self._weights, self.parameters, strict=True):
            # What the program has written on a parameter counts for its optimizer too.
            for name, value in vars(weight).items():
                setattr(master, name, value)
        self.has_gradients = False
        """True if those of the coming step have been taken."""

    def take_gradients(self) -> None:
        """Those of the weights, before a step."""
        for weight, master in zip(self._weights, self.parameters, strict=True):
            master.grad = None if weight.grad is None else weight.grad.to(master.dtype)
        self.has_gradients = True

    def drop_gradients(self) -> None:
        """The step is made."""
        for master in self.parameters:
            master.grad = None
        self.has_gradients = False

    @torch.no_grad()
    def give_values(self) -> None:
        """To the weights, rounded."""
        copies = Copies()
        for weight, master in zip(self._weights, self.parameters, strict=True):
            copies.add(weight, master)
        copies.run()

    @torch.no_grad()
    def load(self, values: Sequence[torch.Tensor]) -> None:
        """Become these."""
        for master, value in zip(self.parameters, values, strict=True):
            master.copy_(value)
