"""Four layers in float64 whose matrices are sliced over the tensor-parallel ranks of a worker."""

from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 4
LAYERS = 4


def total(value: Tensor, group: Any) -> Tensor:
    copy = value.clone(memory_format=torch.contiguous_format)
    if group is not None:
        dist.all_reduce(copy, group=group)
    return copy


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return total(gradients[0], ctx.group), None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Any) -> Tensor:
        return total(value, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def slice_of(shape: tuple[int, int], dimension: int, group: Any) -> nn.Parameter:
    matrix = torch.randn(shape, dtype=torch.float64) / shape[1] ** 0.5
    if group is None:
        return nn.Parameter(matrix)
    parameter = nn.Parameter(matrix.chunk(group.size(), dimension)[group.rank()].clone())
    parameter.tensor_parallel = True  # pyright: ignore[reportAttributeAccessIssue]
    return parameter


class Layer(nn.Module):
    """One matrix sliced by rows, `up`, and one by columns, `down`; `scale` is whole in every rank."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group
        self.up, self.down = slice_of((2 * WIDTH, WIDTH), 0, group), slice_of((WIDTH, 2 * WIDTH), 1, group)
        self.scale = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))

    def forward(self, value: Tensor) -> Tensor:
        spread = cast(Tensor, _Spread.apply(value, self.group))
        inner = torch.tanh(functional.linear(spread, self.up))
        found = cast(Tensor, _Collect.apply(functional.linear(inner, self.down), self.group))
        return torch.tanh(value + found) * self.scale


def layers(group: Any = None) -> list[tuple[str, nn.Module]]:
    return [(f"blocks.{number}", Layer(group)) for number in range(LAYERS)]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(output, target)


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        points = torch.randn(3, WIDTH, dtype=torch.float64, generator=generator)
        yield points, points.sin()


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=3e-3)
