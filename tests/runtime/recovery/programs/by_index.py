"""Micro-batches by index, of different lengths, and a note in DRAWN (a folder) of each that is drawn."""

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.runtime.recovery.programs import tiny

WIDTH = tiny.WIDTH
build_stage, optimizer = tiny.build_stage, tiny.optimizer


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
