"""Four layers in float64 whose matrices are sliced over the tensor-parallel ranks of a worker."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.runtime.recovery.programs import tiny
from tests.runtime.training.programs.own_collectives import collect, slice_of, spread

WIDTH = tiny.WIDTH
LAYERS = 4
loss, batches, optimizer = tiny.loss, tiny.batches, tiny.optimizer


class Layer(nn.Module):
    """One matrix sliced by rows, `up`, and one by columns, `down`; `scale` is whole in every rank."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group
        self.up, self.down = slice_of((2 * WIDTH, WIDTH), 0, group), slice_of((WIDTH, 2 * WIDTH), 1, group)
        self.scale = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))

    def forward(self, value: Tensor) -> Tensor:
        inner = torch.tanh(functional.linear(spread(value, self.group), self.up))
        found = collect(functional.linear(inner, self.down), self.group)
        return torch.tanh(value + found) * self.scale


def layers(group: Any = None) -> list[tuple[str, nn.Module]]:
    return [(f"blocks.{number}", Layer(group)) for number in range(LAYERS)]
