"""A model that is one nn.Sequential, given in whole stages, which are cut by what its layers cost.

It trains with plans that say nothing about layers, and is never cut anew.

recycle-run profile --program examples/programs/sequential.py --stages 4 -o sequential.json
"""

from collections.abc import Iterator

import torch
from torch import nn

from recycle_runtime.program.cutting import cut

CLASSES = 10
SIDE = 12
"""Pixels of a picture, each way."""
MICROBATCH = 16

CLIP_NORM = 5.0


def model() -> nn.Sequential:
    """Tells the direction of stripes in a noisy picture."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(64 * 3 * 3, 96),
        nn.LayerNorm(96),
        nn.GELU(),
        nn.Linear(96, CLASSES),
    )


COSTS = [21, 9, 42, 5, 82, 5, 41, 2, 1, 11, 2, 1, 1]
"""Millions of operations or so of each layer in `model`; numbers, so that every worker cuts alike."""


def build_stage(stage: int, stages: int) -> nn.Module:
    torch.manual_seed(0)
    return cut(model(), stages, COSTS)[stage]


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target)


def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Stripes at one of ten angles, with noise."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.linspace(-1, 1, SIDE)
    down, right = torch.meshgrid(row, row, indexing="ij")
    while True:
        label = torch.randint(CLASSES, (MICROBATCH,), generator=generator)
        angle = (label * torch.pi / CLASSES).view(-1, 1, 1)
        shift = 6.0 * torch.rand(MICROBATCH, 1, 1, generator=generator)
        stripes = torch.sin(7 * (angle.cos() * right + angle.sin() * down) + shift)
        noise = torch.randn(MICROBATCH, SIDE, SIDE, generator=generator)
        yield (stripes + 0.3 * noise).unsqueeze(1), label


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=2e-3)
