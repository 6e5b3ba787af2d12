"""A tiny model in float64 with mixtures of experts, one of which loses tokens."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import recycle_runtime as recycle

WIDTH, ROWS = 6, 12


class Block(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mixture = recycle.MixtureOfExperts(WIDTH, expert, experts=4, auxiliary=0.5, **options)

    def forward(self, value: Tensor) -> Tensor:
        return value + self.mixture(self.norm(value))


def expert() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.GELU(), nn.Linear(8, WIDTH))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([Block(capacity=1.0), Block(active=1, shared=nn.Linear(WIDTH, WIDTH))])
        self.leave = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        value = self.enter(value)
        for block in self.blocks:
            value = block(value)
        return self.leave(value)


def model() -> nn.Module:
    return Model().double()


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, target)


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        value = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
        yield value, value.flip(1)


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)
