"""Llama of torchtitan (0.2), whole; its tensor parallelism as a plan of a few lines.

recycle-run local PLAN --program bench/programs/titan_llama.py --steps 8 --kill 1:1@3 --rejoin 1:1@5

The job may have `tensor = 2`. Without a GPU attention is torch's own (`sdpa`), in float64.
"""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torchtitan.models.llama3.model.args import TransformerModelArgs
from torchtitan.models.llama3.model.model import Transformer

WORDS = 64
ROWS, LENGTH = 2, 16
CLIP_NORM = 1.0

PLAN: dict[str, ParallelStyle] = {
    **{f"layers.*.attention.w{name}": ColwiseParallel() for name in "qkv"},
    **{f"layers.*.feed_forward.w{name}": ColwiseParallel() for name in "13"},
    **{f"layers.*.{name}": RowwiseParallel() for name in ("attention.wo", "feed_forward.w2")},
    "output": ColwiseParallel(output_layouts=Replicate()),
}


def model() -> nn.Module:
    args: Any = TransformerModelArgs(
        dim=16, n_layers=4, n_heads=2, n_kv_heads=2, vocab_size=WORDS, multiple_of=8, max_seq_len=LENGTH
    )
    built: Any = Transformer(args).double()
    with torch.no_grad():
        built.init_weights()
    return built


def parallelize(module: nn.Module, mesh: Any) -> None:
    parallelize_module(module, mesh, PLAN)


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def microbatch(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(index)
    rows = torch.randint(WORDS, (ROWS, LENGTH + 1), generator=generator)
    return rows[:, :-1], rows[:, 1:]


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, eps=1e-4)
