"""Micro-batches by index, of different lengths, and a note in DRAWN (a folder) of each that is drawn."""

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

WIDTH = 4


def build_stage(stage: int, stages: int) -> nn.Module:
    torch.manual_seed(stage)
    layers: list[nn.Module] = [nn.Linear(WIDTH, WIDTH, dtype=torch.float64)]
    return nn.Sequential(*layers, *([nn.Tanh()] if stage < stages - 1 else []))


def loss(output: Tensor, target: Tensor) -> Tensor:
    # A worker that comes back should find the others still at work.
    time.sleep(0.02)
    return nn.functional.mse_loss(output, target)


def microbatch(index: int) -> tuple[Tensor, Tensor]:
    with (Path(os.environ["DRAWN"]) / str(os.getpid())).open("a") as notes:
        notes.write(f"{index}\n")
    generator = torch.Generator().manual_seed(index)
    points = torch.randn(2 + index % 3, WIDTH, dtype=torch.float64, generator=generator)
    return points, points.sin()


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=3e-3)
