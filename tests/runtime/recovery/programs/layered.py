"""Six layers in float64, some with buffers and dropout; a plan may cut them anywhere."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

WIDTH = 4


class Layer(nn.Module):
    """Linear with a scale that is no parameter and in no checkpoint."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.dropout = nn.Dropout(0.1 if number == 3 else 0.0)
        self.register_buffer("scale", torch.tensor(1.0 + 0.1 * number, dtype=torch.float64), persistent=False)

    def forward(self, value: Tensor) -> Tensor:
        return self.dropout(torch.tanh(self.linear(value) * self.scale))


def layers() -> list[tuple[str, nn.Module]]:
    return [(f"blocks.{number}", Layer(number)) for number in range(6)]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, target)


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        points = torch.randn(3, WIDTH, dtype=torch.float64, generator=generator)
        yield points, points.sin()


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=3e-3)
