"""nn.Linear: the weight's gradient is one product, added in place."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from recycle_runtime.execution.split_backward.accumulate import Hooked, add, has_hooks
from recycle_runtime.execution.split_backward.autocast import lowered
from recycle_runtime.execution.split_backward.deferred import Unit


class LinearUnit(Unit):
    """Keeps the input and the gradient; only the gradient if the weight is frozen."""

    def compute(self, ctx: Any, value: Tensor) -> Tensor:
        weight, bias = self.weight, self.parameters["bias"]
        if torch.is_autocast_enabled(value.device.type):
            value, low_weight, low_bias = lowered(value, weight, bias)
            output = F.linear(value, low_weight, low_bias)
        else:
            output = F.linear(value, weight, bias)
        ctx.save_for_backward(value if weight.requires_grad else None, weight)
        return output

    def input_gradient(self, saved: tuple[Any, ...], gradient: Tensor) -> Tensor:
        weight: Tensor = saved[1]
        return gradient.matmul(weight if weight.dtype == gradient.dtype else weight.to(gradient.dtype))

    def accumulate(self, value: Tensor | None, gradient: Tensor, hooked: Hooked) -> None:
        bias = self.parameters["bias"]
        rows = gradient.reshape(-1, gradient.shape[-1])
        if value is not None:
            self._add_product(rows, value.reshape(-1, value.shape[-1]), hooked)
        if bias is not None and bias.requires_grad:
            add(bias, rows.sum(0), hooked)

    def _add_product(self, rows: Tensor, values: Tensor, hooked: Hooked) -> None:
        weight = self.weight
        grad = weight.grad
        if grad is None or grad.dtype != rows.dtype or has_hooks(weight):
            add(weight, rows.t().mm(values), hooked)
        else:
            grad.addmm_(rows.t(), values)
