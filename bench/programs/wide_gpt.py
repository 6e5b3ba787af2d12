"""The example's GPT, wide enough for a slice of a large GPU, with bf16 products."""

from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

_PATH = Path(__file__).resolve().parents[2] / "examples" / "programs" / "gpt.py"
_GPT: dict[str, Any] = {"__name__": "wide_gpt"}
exec(compile(_PATH.read_bytes(), str(_PATH), "exec"), _GPT)
_GPT.update(BLOCKS=8, WIDTH=1024, HEADS=16, SEQUENCE=1024, MICROBATCH=4)

POOL = 36
CLIP_NORM = _GPT["CLIP_NORM"]


class Bf16(nn.Module):
    """A layer whose products are made in bf16; what it holds and passes on stays float32."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        with torch.autocast(value.device.type, torch.bfloat16):
            return self.layer(value).float()


def layers() -> list[tuple[str, nn.Module]]:
    return [(name, Bf16(layer)) for name, layer in _GPT["layers"]()]


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return _GPT["loss"](output, target)


def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same pieces of text again and again: making text would cost more than training on it."""
    texts: Iterator[tuple[torch.Tensor, torch.Tensor]] = _GPT["batches"](seed)
    for letters, following in cycle(list(islice(texts, POOL))):
        yield letters.clone(), following.clone()


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
