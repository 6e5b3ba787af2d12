"""Micro-batches of several shapes: shorter rows, fewer of them, and a last one that is both.

An epoch has seven micro-batches, so their shapes meet every pipeline and step in turn.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import product
from typing import cast

import torch
from torch import Tensor, nn

WIDTH = 8
LAYERS = 8
SHAPES = [*product((4, 3), (5, 2, 7)), (1, 1)]


class Layer(nn.Module):
    """Mixes a row with what came before it; gives its value and how long it is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, value: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        before = value.cumsum(1) / torch.arange(1, value.shape[1] + 1, dtype=value.dtype).view(-1, 1)
        return value + torch.tanh(self.linear(before)), length


class Stage(nn.Module):
    """Layers one after another; the first stage makes the pair that they pass on."""

    def __init__(self, layers: dict[str, nn.Module], is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(OrderedDict(layers))
        self.is_first, self.is_last = is_first, is_last

    def forward(self, value: Tensor, length: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        if length is None:
            length = torch.full((value.shape[0],), value.shape[1])
        for layer in self.layers:
            value, length = cast(tuple[Tensor, Tensor], layer(value, length))
        assert torch.equal(length, torch.full_like(length, value.shape[1]))
        return value if self.is_last else (value, length)


def build_stage(stage: int, stages: int) -> nn.Module:
    layers: dict[str, nn.Module] = {}
    for index in range(LAYERS):
        if index * stages // LAYERS == stage:
            torch.manual_seed(index)
            layers[f"layer{index}"] = Layer()
    return Stage(layers, stage == 0, stage == stages - 1)


def loss(output: Tensor, target: Tensor) -> Tensor:
    """The mean over the rows and places that this micro-batch has."""
    return nn.functional.mse_loss(output, target)


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for rows, length in SHAPES:
        points = torch.randn(rows, length, WIDTH, dtype=torch.float64, generator=generator)
        yield points, points.sin().cumsum(1)


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=3e-3)
