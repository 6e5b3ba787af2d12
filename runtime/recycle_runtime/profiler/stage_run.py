"""One stage or layer of a program, run on copies of the same input."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from recycle_runtime.execution.chunk import as_computed
from recycle_runtime.program.loading import kind_of
from recycle_runtime.program.precision import Precision

Tensors = tuple[torch.Tensor, ...]


class StageRun:
    """Runs a stage on copies of the same input; the last stage also computes the loss, in its forward."""

    def __init__(
        self,
        module: torch.nn.Module,
        inputs: Sequence[torch.Tensor],
        *,
        is_first: bool,
        loss: Callable[[Any], torch.Tensor] | None,
        precision: Precision = Precision.AS_BUILT,
    ) -> None:
        self.module, self._precision = module, precision
        self.is_first = is_first
        self._inputs, self._loss = inputs, loss

    @property
    def is_last(self) -> bool:
        return self._loss is not None

    def fresh_inputs(self) -> Tensors:
        """As they arrive: data wants no gradient, what another stage computed does."""
        wants = not self.is_first
        return tuple(
            tensor.detach().clone().requires_grad_(wants and tensor.is_floating_point())
            for tensor in self._inputs
        )

    def forward(self, inputs: Tensors) -> Tensors:
        """Outputs of the forward, or the loss of the last stage: kept for the backward."""
        if self.is_first:
            inputs = tuple(self._precision.entering(tensor) for tensor in inputs)
        device = next((tensor.device for tensor in reversed(inputs)), torch.device("cpu"))
        with self._precision.computing(device):
            output: Any = self.module(*(as_computed(tensor) for tensor in inputs))
            return as_tensors(output if self._loss is None else self._loss(output))

    def gradients(self, outputs: Tensors) -> list[torch.Tensor | None]:
        """As they arrive from the next stage; the loss needs none."""
        if self._loss is not None:
            return [None]
        return [torch.ones_like(output) if output.is_floating_point() else None for output in outputs]

    def backward(self, outputs: Tensors, gradients: Sequence[torch.Tensor | None]) -> None:
        """The whole backward, as autograd does it."""
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if output.requires_grad
        ]
        if pairs:
            torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])


def as_tensors(value: Any) -> Tensors:
    """Output of a stage as a tuple of one tensor or several."""
    if isinstance(value, torch.Tensor):
        return (value,)
    given: Any = value
    parts = cast(Sequence[Any], value) if isinstance(value, tuple | list) else ()
    if not parts or not all(isinstance(part, torch.Tensor) for part in parts):
        raise TypeError(f"a stage must give a tensor or a tuple of tensors, got {kind_of(given)}")
    return tuple(cast(Sequence[torch.Tensor], parts))
