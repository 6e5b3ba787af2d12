"""Blocks for torch's own tensor parallelism: by columns and rows, along the sequence, and in the loss.

`layers` gives plain modules, `parallelize` distributes them over the ranks of a worker.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.nn import functional

WIDTH, WORDS, LENGTH, BLOCKS = 8, 10, 4, 3

CLIP_NORM = 2.0


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH, dtype=torch.float64)
        self.down = nn.Linear(2 * WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, value: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(value)))


class Block(nn.Module):
    """Between blocks a rank has a part of the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, dtype=torch.float64)
        self.inner = Inner()

    def forward(self, value: Tensor) -> Tensor:
        return value + self.inner(self.norm(value))


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, dtype=torch.float64)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.words(tokens)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, dtype=torch.float64)
        self.out = nn.Linear(WIDTH, WORDS, bias=False, dtype=torch.float64)

    def forward(self, value: Tensor) -> Tensor:
        return self.out(self.norm(value))


def layers() -> list[tuple[str, nn.Module]]:
    blocks = [(f"blocks.{number}", Block()) for number in range(BLOCKS)]
    return [("embedding", Embedding()), *blocks, ("head", Head())]


WHOLE = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
BLOCK: dict[str, ParallelStyle] = {
    "inner": WHOLE,
    "inner.up": ColwiseParallel(),
    "inner.down": RowwiseParallel(output_layouts=Shard(1)),
    "norm": SequenceParallel(),
}
EMBEDDING: dict[str, ParallelStyle] = {
    "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
}
HEAD: dict[str, ParallelStyle] = {
    "norm": SequenceParallel(),
    "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
}


def parallelize(module: nn.Module, mesh: Any) -> None:
    plans: dict[type[nn.Module], dict[str, ParallelStyle]] = {Embedding: EMBEDDING, Block: BLOCK, Head: HEAD}
    parallelize_module(module, mesh, plans[type(module)])


def loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(WORDS, (3, LENGTH + 1), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:]


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3)
