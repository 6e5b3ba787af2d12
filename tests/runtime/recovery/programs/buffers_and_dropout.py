"""Effects that a step made again must not have twice: running statistics and random numbers."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tests.runtime.recovery.programs import tiny

WIDTH = tiny.WIDTH
loss, optimizer = tiny.loss, tiny.optimizer


def build_stage(stage: int, stages: int) -> nn.Module:
    torch.manual_seed(stage)
    # No bias: its gradient would be nothing but rounding, which the optimizer would make a step of.
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64),
        nn.BatchNorm1d(WIDTH, dtype=torch.float64),
        nn.Dropout(0.3),
    )


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        points = torch.randn(5, WIDTH, dtype=torch.float64, generator=generator)
        yield points, points.sin()
