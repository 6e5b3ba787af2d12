"""Layers with experts that peers share, and layers without, in float64: what a re-cut moves."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

import recycle_runtime as recycle

WIDTH, EXPERTS, TOKENS = 6, 4, 5
CAPACITY: float | None = None


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mixture = recycle.MixtureOfExperts(
            WIDTH,
            lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH)),
            experts=EXPERTS,
            active=2,
            capacity=CAPACITY,
        )

    def forward(self, value: Tensor) -> Tensor:
        return value + self.mixture(self.norm(value))


def layers() -> list[tuple[str, nn.Module]]:
    return [
        ("first", nn.Linear(WIDTH, WIDTH).double()),
        *((f"blocks.{number}", Block().double()) for number in range(4)),
        ("last", nn.Linear(WIDTH, WIDTH).double()),
    ]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, target)


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Some experts are asked for more often than others."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        value = torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64).abs()
        yield value, value.roll(1, 1)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)
