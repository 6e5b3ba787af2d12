"""Modules that keep slices of matrices of their own and talk to each other in forward, in I and in W.

Their backward goes through the general path of the split: its walks must meet the same sums in the same order
in all processes of a worker.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 8
LAYERS = 4

CLIP_NORM = 0.45
"""Once over in five steps, in the third."""


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


class _Whole(torch.autograd.Function):
    """All slices of a matrix; every process has the gradient of all of it, and their mean is taken."""

    @staticmethod
    def forward(ctx: Any, piece: Tensor, group: Any) -> Tensor:
        ctx.group = group
        if group is None:
            return piece.clone()
        pieces = [torch.empty_like(piece) for _ in range(group.size())]
        dist.all_gather(pieces, piece.detach().contiguous(), group=group)
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.group is None:
            return gradients[0], None
        size, rank = ctx.group.size(), ctx.group.rank()
        return (total(gradients[0], ctx.group) / size).chunk(size)[rank], None


def spread(value: Tensor, group: Any) -> Tensor:
    return cast(Tensor, _Spread.apply(value, group))


def collect(value: Tensor, group: Any) -> Tensor:
    return cast(Tensor, _Collect.apply(value, group))


def whole(piece: Tensor, group: Any) -> Tensor:
    return cast(Tensor, _Whole.apply(piece, group))


def slice_of(shape: tuple[int, int], dimension: int, group: Any) -> nn.Parameter:
    matrix = torch.randn(shape, dtype=torch.float64) / shape[1] ** 0.5
    if group is None:
        return nn.Parameter(matrix)
    parameter = nn.Parameter(matrix.chunk(group.size(), dimension)[group.rank()].clone())
    parameter.tensor_parallel = True  # pyright: ignore[reportAttributeAccessIssue]
    return parameter


class Wide(nn.Module):
    """Two matrices, one sliced by rows and one by columns: sums on the way in, in both directions."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group
        self.up, self.down = slice_of((2 * WIDTH, WIDTH), 0, group), slice_of((WIDTH, 2 * WIDTH), 1, group)

    def forward(self, value: Tensor) -> Tensor:
        inner = torch.tanh(functional.linear(spread(value, self.group), self.up))
        return value + collect(functional.linear(inner, self.down), self.group)


class Recurrent(nn.Module):
    """The same matrices three times in a row: W walks the whole graph once more, sums included."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group
        self.up, self.down = slice_of((2 * WIDTH, WIDTH), 0, group), slice_of((WIDTH, 2 * WIDTH), 1, group)

    def forward(self, value: Tensor) -> Tensor:
        for _ in range(3):
            inner = torch.tanh(functional.linear(spread(value, self.group), self.up))
            value = value + collect(functional.linear(inner, self.down), self.group)
        return value


class Gathered(nn.Module):
    """Whole matrices put together from slices, for several results: sums on the way to the parameters."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group
        self.pieces = nn.ParameterList(slice_of((WIDTH, WIDTH), 0, group) for _ in range(6))

    def forward(self, value: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.tanh(functional.linear(value, whole(piece, self.group))) for piece in self.pieces)


class Layer(nn.Module):
    def __init__(self, group: Any) -> None:
        super().__init__()
        self.wide, self.recurrent, self.gathered = Wide(group), Recurrent(group), Gathered(group)

    def forward(self, value: Tensor) -> Tensor:
        return value + 0.1 * sum(self.gathered(self.recurrent(self.wide(value))))


def build_stage(stage: int, stages: int, group: Any = None) -> nn.Module:
    layers: dict[str, nn.Module] = {}
    for index in range(LAYERS):
        if index * stages // LAYERS == stage:
            torch.manual_seed(index)
            layers[f"layer{index}"] = Layer(group)
    return nn.Sequential(OrderedDict(layers))


def loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(output, target)


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        points = torch.randn(4, WIDTH, dtype=torch.float64, generator=generator)
        yield points, points.sin()


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=3e-3)
