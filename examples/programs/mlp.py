"""A few layers in float64: small enough to run anywhere, exact enough to compare two runs digit by digit.

recycle-run local PLAN --program examples/programs/mlp.py --steps 20
"""

from collections import OrderedDict
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


def build_stage(stage: int, stages: int) -> nn.Module:
    """The layers of this stage; each has its own name and seed, so the cut does not change the model."""
    layers: dict[str, nn.Module] = {}
    if stage == 0:
        torch.manual_seed(1000)
        layers["first"] = nn.Linear(FEATURES, WIDTH, dtype=torch.float64)
    for index in range(LAYERS):
        if index * stages // LAYERS == stage:
            torch.manual_seed(index)
            layers[f"layer{index}"] = Layer()
    if stage == stages - 1:
        torch.manual_seed(2000)
        layers["last"] = nn.Linear(WIDTH, 1, dtype=torch.float64)
    return nn.Sequential(OrderedDict(layers))


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
