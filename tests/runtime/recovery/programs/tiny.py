"""A layer or two for each stage, in float64: steps of a few milliseconds."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

WIDTH = 4


def build_stage(stage: int, stages: int) -> nn.Module:
    torch.manual_seed(stage)
    layers: list[nn.Module] = [nn.Linear(WIDTH, WIDTH, dtype=torch.float64)]
    return nn.Sequential(*layers, *([nn.Tanh()] if stage < stages - 1 else []))


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, target)


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        points = torch.randn(3, WIDTH, dtype=torch.float64, generator=generator)
        yield points, points.sin()


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=3e-3)
