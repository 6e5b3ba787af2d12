"""A few layers in float64: small enough to run anywhere, exact enough to compare two runs digit by digit.

recycle-run local PLAN --program examples/programs/mlp.py --steps 20
"""

from collections.abc import Iterator

import torch
from torch import nn

FEATURES = 6
WIDTH = 16
LAYERS = 8
MICROBATCH = 4


class Layer(nn.Module):
    """A step forward from where the value was, so that deep stacks train too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + torch.tanh(self.linear(value))


def layers() -> list[tuple[str, nn.Module]]:
    """In their order; a plan may cut the model between any two of them."""
    first = nn.Linear(FEATURES, WIDTH, dtype=torch.float64)
    last = nn.Linear(WIDTH, 1, dtype=torch.float64)
    return [("first", first), *((f"layer{index}", Layer()) for index in range(LAYERS)), ("last", last)]


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(output, target)


def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Points and a smooth function of them, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        points = torch.randn(MICROBATCH, FEATURES, dtype=torch.float64, generator=generator)
        yield points, points.sin().sum(dim=1, keepdim=True)


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=3e-3)
