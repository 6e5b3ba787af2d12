"""Layers with running statistics, which every forward changes."""

from collections import OrderedDict
from collections.abc import Iterator

import torch
from torch import Tensor, nn

WIDTH = 8
LAYERS = 4


def norm() -> nn.Module:
    return nn.BatchNorm1d(WIDTH, dtype=torch.float64)


def build_stage(stage: int, stages: int) -> nn.Module:
    layers: dict[str, nn.Module] = {}
    for index in range(LAYERS):
        if index * stages // LAYERS == stage:
            torch.manual_seed(index)
            layers[f"linear{index}"] = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
            layers[f"norm{index}"] = norm()
            layers[f"tanh{index}"] = nn.Tanh()
    return nn.Sequential(OrderedDict(layers))


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, target)


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        points = torch.randn(6, WIDTH, dtype=torch.float64, generator=generator)
        yield points, points.sin()


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=3e-3)
