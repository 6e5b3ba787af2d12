"""nn.Conv1d, nn.Conv2d and nn.Conv3d, padded with zeros, as many on either side."""

from typing import Any

import torch
from torch import Tensor, nn

from recycle_runtime.execution.split_backward.accumulate import Hooked, add
from recycle_runtime.execution.split_backward.autocast import lowered
from recycle_runtime.execution.split_backward.deferred import Unit
from recycle_runtime.execution.split_backward.kernels import Geometry, convolution_backward
from recycle_runtime.execution.split_backward.owner import Owner

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def fits(module: Convolution) -> bool:
    """Whether it is padded with zeros, as many on either side."""
    return module.padding_mode == "zeros" and _padding(module) is not None


class ConvolutionUnit(Unit):
    """Keeps the input and the gradient; only the input's shape if the weight is frozen."""

    def __init__(self, module: Convolution, owner: Owner) -> None:
        super().__init__(module, owner)
        padding = _padding(module)
        assert padding is not None
        self.geometry: Geometry = (module.stride, padding, module.dilation, module.groups)
        self.dimensions = len(module.stride) + 2

    def compute(self, ctx: Any, value: Tensor) -> Tensor:
        weight, bias = self.weight, self.parameters["bias"]
        used: tuple[Tensor, Tensor, Tensor | None] = (value, weight, bias)
        if torch.is_autocast_enabled(value.device.type):
            used = lowered(value, weight, bias)
        value = used[0]
        kept = value if weight.requires_grad else value.new_empty(()).expand(value.shape)
        ctx.save_for_backward(kept, weight)
        stride, padding, dilation, groups = self.geometry
        edges = [0] * len(stride)
        output = torch.convolution(
            self._batch(value), used[1], used[2], stride, padding, dilation, False, edges, groups
        )
        return output if value.dim() == self.dimensions else output.squeeze(0)

    def input_gradient(self, saved: tuple[Any, ...], gradient: Tensor) -> Tensor:
        value: Tensor = saved[0]
        return self._backward(value, saved[1], gradient, (True, False, False))[0].reshape(value.shape)

    def accumulate(self, value: Tensor | None, gradient: Tensor, hooked: Hooked) -> None:
        assert value is not None
        weight, bias = self.weight, self.parameters["bias"]
        wanted = (False, weight.requires_grad, bias is not None and bias.requires_grad)
        _, of_weight, of_bias = self._backward(value, weight, gradient, wanted)
        if wanted[1]:
            add(weight, of_weight, hooked)
        if bias is not None and wanted[2]:
            add(bias, of_bias, hooked)

    def _backward(
        self, value: Tensor, weight: Tensor, gradient: Tensor, wanted: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        weight = weight if weight.dtype == gradient.dtype else weight.to(gradient.dtype)
        return convolution_backward(self._batch(gradient), self._batch(value), weight, self.geometry, wanted)

    def _batch(self, tensor: Tensor) -> Tensor:
        return tensor if tensor.dim() == self.dimensions else tensor.unsqueeze(0)


def _padding(module: Convolution) -> tuple[int, ...] | None:
    """What is added on either side; None if the sides differ."""
    padding: str | tuple[int, ...] = module.padding
    if not isinstance(padding, str):
        return padding
    if padding == "valid":
        return tuple(0 for _ in module.stride)
    whole = [step * (size - 1) for step, size in zip(module.dilation, module.kernel_size, strict=True)]
    return None if any(each % 2 for each in whole) else tuple(each // 2 for each in whole)
