"""A profile counts the memory that a checkpointed layer really holds, in the precision of its program."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from recycle_runtime.profiler.measure import Options, profile
from recycle_runtime.profiler.report import StageCosts
from recycle_runtime.program.loading import Program

WIDTH, ROWS, DEPTH = 32, 64, 4
ONE = 4 * WIDTH * ROWS
"""Bytes of an activation."""


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *(part for _ in range(DEPTH) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh()))
        )

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.inner(value)


class Checkpointed(Deep):
    reentrant = False

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return cast(Any, checkpoint)(self.inner, value, use_reentrant=self.reentrant)


class Reentrant(Checkpointed):
    reentrant = True


def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield (
            torch.randn(ROWS, WIDTH, generator=generator),
            torch.randn(ROWS, WIDTH, generator=generator),
        )


def second_layer(kind: Callable[[], nn.Module], **more: Any) -> StageCosts:
    names = {
        "layers": lambda: [(name, kind()) for name in ("a", "b", "c")],
        "loss": nn.functional.mse_loss,
        "batches": batches,
        "optimizer": torch.optim.AdamW,
        **more,
    }
    return profile(Program(Path("none.py"), names), Options(stages=None, repeat=1)).stages[1]


@pytest.mark.parametrize("kind", [Checkpointed, Reentrant])
def test_a_checkpointed_layer_holds_its_input_alone(kind: type[Checkpointed]) -> None:
    plain, saving = second_layer(Deep), second_layer(kind)
    assert plain.saved_bytes == DEPTH * ONE
    assert saving.saved_bytes == ONE
    assert saving.kept_bytes == 0 < plain.kept_bytes


def test_precision_is_what_a_run_has() -> None:
    plain, low = second_layer(Deep), second_layer(Deep, PRECISION="bf16-weights")
    assert low.boundary_bytes == plain.boundary_bytes // 2
    # They add up in float32, where torch lets a gradient have another type than its weight.
    has_own_type = hasattr(torch.Tensor, "grad_dtype")
    assert low.gradient_bytes == plain.gradient_bytes // (1 if has_own_type else 2)
    weights = sum(parameter.numel() for parameter in Deep().parameters())
    # Two bytes a weight more than float32: the weights themselves, beside their copies.
    assert low.parameter_bytes == plain.parameter_bytes + 2 * weights
    assert second_layer(Deep, PRECISION="bf16").boundary_bytes == plain.boundary_bytes // 2
