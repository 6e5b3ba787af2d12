"""A small language model with mixtures of experts, on the bytes of this project's pages."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import recycle_runtime as recycle

WIDTH, INNER, HEADS, LENGTH, ROWS, EXPERTS = 64, 128, 4, 64, 8, 8
TEXT = b"\n".join(path.read_bytes() for path in sorted(Path(__file__).parents[2].glob("docs/*.md")))


class Enter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.letters(tokens) + self.places.weight


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.enter, self.leave = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mixture = recycle.MixtureOfExperts(
            WIDTH, expert, experts=EXPERTS, active=1, normalize=False, capacity=1.0, auxiliary=1e-4
        )

    def forward(self, value: Tensor) -> Tensor:
        parts = self.enter(self.first(value)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        made = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        value = value + self.leave(made.transpose(1, 2).flatten(2))
        return value + self.mixture(self.second(value))


def expert() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH))


def layers() -> list[tuple[str, nn.Module]]:
    return [
        ("enter", Enter()),
        ("first", Block()),
        ("second", Block()),
        ("leave", nn.Linear(WIDTH, 256)),
    ]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    data = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(data) - LENGTH - 1, (ROWS, 1), generator=generator)
        rows = data[starts + torch.arange(LENGTH + 1)]
        yield rows[:, :-1], rows[:, 1:]


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=2e-3)
