"""Layers shared by the processes of a worker, in the manner of Megatron; the job has `tensor = 2`, or more.

recycle-run local PLAN --program examples/programs/tensor_parallel.py --steps 20

Every process builds the whole model from the same seeds and keeps its slice, so the model is the same for any
number of processes. What goes from stage to stage is whole, and the same on all of them.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

FEATURES = 6
WIDTH = 8
INNER = 24
BLOCKS = 4
MICROBATCH = 4

CLIP_NORM = 1.0


class Spread(torch.autograd.Function):
    """The same value to all processes; their gradients add up."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return total(gradient, ctx.group), None


class Collect(torch.autograd.Function):
    """The sum of what all processes have; each gets its whole gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        return total(value, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def total(value: torch.Tensor, group: Any) -> torch.Tensor:
    """Over the group; the value itself belongs to the caller and stays as it is."""
    copy = value.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(copy, group=group)
    return copy


class ColumnParallel(nn.Module):
    """A linear layer of which this process computes some of the outputs."""

    def __init__(self, inputs: int, outputs: int, group: Any) -> None:
        super().__init__()
        self.group = group
        self.linear = sliced(nn.Linear(inputs, outputs, dtype=torch.float64), 0, group)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.linear(value if self.group is None else Spread.apply(value, self.group))


class RowParallel(nn.Module):
    """A linear layer of which this process has some of the inputs; the bias is added once, after the sum."""

    def __init__(self, inputs: int, outputs: int, group: Any) -> None:
        super().__init__()
        self.group = group
        whole = nn.Linear(inputs, outputs, dtype=torch.float64)
        self.bias = nn.Parameter(whole.bias.detach())
        whole.bias = None
        self.linear = sliced(whole, 1, group)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        part = self.linear(value)
        return (part if self.group is None else Collect.apply(part, self.group)) + self.bias


def sliced(linear: nn.Linear, dimension: int, group: Any) -> nn.Linear:
    """The layer with this process's slice of its outputs (0) or inputs (1)."""
    if group is None:
        return linear
    size, rank = group.size(), group.rank()
    if linear.weight.shape[dimension] % size:
        raise ValueError(f"a width of {linear.weight.shape[dimension]} does not divide by {size} processes")
    for name, parameter in list(linear.named_parameters()):
        piece = nn.Parameter(parameter.detach().chunk(size, dimension)[rank].clone())
        # The gradient norm adds up slices over processes, and counts everything else once.
        piece.tensor_parallel = True
        setattr(linear, name, piece)
    linear.out_features, linear.in_features = linear.weight.shape
    return linear


class Block(nn.Module):
    """A norm and a wide layer, added to what came in."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, dtype=torch.float64)
        self.up = ColumnParallel(WIDTH, INNER, group)
        self.down = RowParallel(INNER, WIDTH, group)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.down(torch.tanh(self.up(self.norm(value))))


def build_stage(stage: int, stages: int, group: Any = None) -> nn.Module:
    """The blocks of this stage; `group` is None where a worker is one process."""
    parts: dict[str, nn.Module] = {}
    if stage == 0:
        torch.manual_seed(1000)
        parts["first"] = nn.Linear(FEATURES, WIDTH, dtype=torch.float64)
    for index in range(BLOCKS):
        if index * stages // BLOCKS == stage:
            torch.manual_seed(index)
            parts[f"block{index}"] = Block(group)
    if stage == stages - 1:
        torch.manual_seed(2000)
        parts["last"] = nn.Linear(WIDTH, 1, dtype=torch.float64)
    return nn.Sequential(OrderedDict(parts))


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(output, target)


def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Points and a smooth function of them, without end; every process draws the same."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        points = torch.randn(MICROBATCH, FEATURES, dtype=torch.float64, generator=generator)
        yield points, points.sin().sum(dim=1, keepdim=True)


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=3e-3)
