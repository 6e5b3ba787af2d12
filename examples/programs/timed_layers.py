"""Eight layers that each wait for some milliseconds, as if a device of their own were busy.

    recycle-run local PLAN --program examples/programs/timed_layers.py --steps 60

Waiting takes no processor time, so the steps of many workers on a small machine take as long as their plan
says: enough to see what a plan is worth. What is trained is real, in float64.
"""

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

LAYERS = 8
WIDTH = 32
SECONDS = 0.01
"""Of a forward, and of each half of a backward."""


class _Wait(torch.autograd.Function):
    """Takes its time in both directions; a backward does the work of two halves."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        time.sleep(SECONDS)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        time.sleep(2 * SECONDS)
        return gradients[0]


class Layer(nn.Module):
    """One linear map, slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + torch.tanh(self.linear(_Wait.apply(value)))  # pyright: ignore


def layers() -> list[tuple[str, nn.Module]]:
    return [(f"layers.{number}", Layer()) for number in range(LAYERS)]


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(output, target)


def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        points = torch.randn(8, WIDTH, dtype=torch.float64, generator=generator)
        yield points, points.flip(1).sin()


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)
