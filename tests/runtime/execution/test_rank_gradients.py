"""Gradients of whole parameters are compared between the ranks of a worker."""

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from recycle_runtime.execution.rank_gradients import refuse_partial
from recycle_runtime.program.errors import ProgramError

RANKS = 2


class OneLayer:
    """As a chunk holds it."""

    title = "blocks.0"

    def __init__(self, module: nn.Module) -> None:
        self.computing = module


def said(modules: list[nn.Module]) -> list[str]:
    """By each rank that has one of these modules."""
    store, found = dist.HashStore(), [""] * RANKS

    def compare(rank: int) -> None:
        group = dist.ProcessGroupGloo(store, rank, RANKS, timedelta(seconds=60))
        layers: Any = [OneLayer(modules[rank])]
        try:
            refuse_partial(Path("program.py"), layers, group)
        except ProgramError as error:
            found[rank] = f"{error}; {error.hint}"

    threads = [threading.Thread(target=compare, args=(rank,), daemon=True) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
        assert not thread.is_alive()
    return found


def blocks(gradient: torch.Tensor, scale: float) -> list[nn.Module]:
    """Of each rank; the weight of the last one's norm has this gradient `scale` times."""
    made: list[nn.Module] = []
    for rank in range(RANKS):
        module = nn.Sequential(nn.LayerNorm(gradient.numel()), nn.Linear(3, 2))
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        weight = module.get_parameter("0.weight")
        weight.grad = gradient * (scale if rank == RANKS - 1 else 1.0)
        made.append(module)
    return made


@pytest.mark.parametrize("count", [5, 4096, 10_000])
def test_a_part_of_a_gradient_on_each_rank_is_refused(count: int) -> None:
    gradient = torch.randn(count, generator=torch.Generator().manual_seed(0))
    assert said(blocks(gradient, 1.001)) == ["", ""], "kernels may round otherwise"
    for words in said(blocks(gradient, 0.5)):
        assert words.startswith(
            "program.py: 0.weight of blocks.0 has another gradient on each tensor-parallel"
        )
        assert "plan of parallelize" in words


@pytest.mark.parametrize("mark", ["tensor_parallel", "rounding"])
def test_slices_and_rounding_are_left_alone(mark: str) -> None:
    gradient = torch.randn(7, generator=torch.Generator().manual_seed(0))
    modules = blocks(1e-9 * gradient if mark == "rounding" else gradient, -1.0)
    for module in modules:
        marked: Any = module.get_parameter("0.weight")
        marked.tensor_parallel = mark == "tensor_parallel"
    assert said(modules) == ["", ""]
