"""Parts of a training script: decay by name, warm-up and decay of the rate, an average of the weights."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

WIDTH = 6
CLIP_NORM: float | None = 0.5
"""Some steps exceed it."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + torch.tanh(self.linear(self.norm(value)))


def layers() -> list[tuple[str, nn.Module]]:
    blocks = [(f"blocks.{number}", Block()) for number in range(4)]
    return [(name, layer.double()) for name, layer in (*blocks, ("head", nn.Linear(WIDTH, 1)))]


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(output, target)


def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        points = torch.randn(4, WIDTH, dtype=torch.float64, generator=generator)
        yield points, 3.0 * points.sin().sum(dim=1, keepdim=True)


def optimizer(named_parameters: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    is_decayed = [name.endswith("weight") and "norm" not in name for name, _ in named_parameters]
    pairs = list(zip(named_parameters, is_decayed, strict=True))
    groups = [
        {"params": [value for (_, value), decayed in pairs if decayed], "weight_decay": 0.1},
        {"params": [value for (_, value), decayed in pairs if not decayed], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=3e-2)


def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 4) * (0.5 + 0.5 * math.cos(0.1 * step))
    )


def moves_with_steps(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    return [AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.8))]
