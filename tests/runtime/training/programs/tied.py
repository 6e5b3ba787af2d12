"""A language model in float64 whose head is its token embedding, as GPT-2 has it."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH = 11, 6


class Block(nn.Module):
    """Norm, and a step forward from where the value was."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, dtype=torch.float64)
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, value: Tensor) -> Tensor:
        return value + torch.tanh(self.linear(self.norm(value)))


class Head(nn.Module):
    """Final norm and logits; without bias, as the embedding has none."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, dtype=torch.float64)
        self.out = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=torch.float64)

    def forward(self, value: Tensor) -> Tensor:
        return self.out(self.norm(value))


def layers() -> list[tuple[str, nn.Module]]:
    embedding, head = nn.Embedding(VOCABULARY, WIDTH, dtype=torch.float64), Head()
    head.out.weight = embedding.weight
    return [("wte", embedding), *((f"blocks.{number}", Block()) for number in range(4)), ("head", head)]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        # Few of the tokens, so that some rows of the embedding have a gradient from the head alone.
        tokens = torch.randint(0, VOCABULARY - 4, (2, 4), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:]


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)
