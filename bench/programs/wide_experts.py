"""The small language model with experts, wide enough for a slice of a large GPU, all of it in bf16."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_PATH = Path(__file__).with_name("experts.py")
_SMALL: dict[str, Any] = {"__name__": "wide_experts", "__file__": str(_PATH)}
exec(compile(_PATH.read_bytes(), str(_PATH), "exec"), _SMALL)
_SMALL.update(WIDTH=1024, INNER=4096, HEADS=16, LENGTH=512, ROWS=8)

BLOCKS = 4


def layers() -> list[tuple[str, nn.Module]]:
    blocks = [(f"block{number}", _SMALL["Block"]()) for number in range(BLOCKS)]
    leave = nn.Linear(_SMALL["WIDTH"], 256)
    return [
        (name, each.bfloat16()) for name, each in [("enter", _SMALL["Enter"]()), *blocks, ("leave", leave)]
    ]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return _SMALL["loss"](output.float(), target)


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    return _SMALL["batches"](seed)


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=2e-4, fused=parameters[0].is_cuda)
