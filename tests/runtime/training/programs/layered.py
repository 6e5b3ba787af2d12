"""Oddities of layers: dropout, running statistics, tied weights, tuples, and nothing to train."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH = 6

CLIP_NORM = 0.5


class Tied(nn.Module):
    """One matrix, used twice under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.there = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64)
        self.back = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.back.weight = self.there.weight

    def forward(self, value: Tensor) -> Tensor:
        return value + self.back(torch.tanh(self.there(value)))


class Fork(nn.Module):
    """Gives two values, one of which says nothing about gradients."""

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(value), (value > 0).long()


class Join(nn.Module):
    """Takes two, and leaves a parameter out of most steps."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH, dtype=torch.float64))
        self.idle = nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.fixed = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64), requires_grad=False)

    def forward(self, value: Tensor, signs: Tensor) -> Tensor:
        return value * self.scale + self.fixed * signs


class Again(nn.Module):
    """Computed a second time in its backward, with the same dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH, dtype=torch.float64), nn.Tanh(), nn.Dropout(0.2))

    def forward(self, value: Tensor) -> Tensor:
        again: Tensor = checkpoint(self.inner, value, use_reentrant=False)  # pyright: ignore
        return value + again


class Drop(nn.Module):
    """Dropout that is nobody's part, beside a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, value: Tensor) -> Tensor:
        return value + nn.functional.dropout(torch.tanh(self.linear(value)), 0.3, self.training)


def layers() -> list[tuple[str, nn.Module]]:
    return [
        # No bias: its gradient would be nothing but rounding, which the optimizer would make a step of.
        ("first", nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64)),
        ("norm", nn.BatchNorm1d(WIDTH, dtype=torch.float64)),
        ("body.0", Drop()),
        ("body.1", Tied()),
        ("body.2", nn.Dropout(0.1, inplace=True)),
        ("fork", Fork()),
        ("join", Join()),
        ("again", Again()),
        ("last", nn.Linear(WIDTH, 1, dtype=torch.float64)),
    ]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, target)


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        points = torch.randn(5, WIDTH, dtype=torch.float64, generator=generator)
        yield points, points.sin().sum(dim=1, keepdim=True)


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Matrices decay, vectors do not."""
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    vectors = [parameter for parameter in parameters if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0, "lr": 2e-2}]
    return torch.optim.AdamW(groups, lr=1e-2)
