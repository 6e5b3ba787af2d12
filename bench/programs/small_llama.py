"""The Llama-like program with 27 million parameters, for a slice of a GPU with 16 multiprocessors and 16 GiB.

Tokens follow a random table: each is followed by one of eight others. So the loss falls from ln 4,096 = 8.3
towards ln 8 = 2.1. With SMALL_LLAMA=tiny in the environment the model is small enough for a CPU, and trains
in float32.
"""

import os
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import nn

_PATH = Path(__file__).resolve().parent / "llama.py"
_LLAMA: dict[str, Any] = {"__name__": "small_llama"}
exec(compile(_PATH.read_bytes(), str(_PATH), "exec"), _LLAMA)

IS_TINY = os.environ.get("SMALL_LLAMA") == "tiny"
if IS_TINY:
    _LLAMA.update(BLOCKS=4, WIDTH=32, HEADS=4, GROUPS=2, WIDE=96, SEQUENCE=32)
else:
    _LLAMA.update(BLOCKS=8, WIDTH=512, HEADS=8, GROUPS=2, WIDE=1408, SEQUENCE=512)
TOKENS = _LLAMA["TOKENS"] = 64 if IS_TINY else 4096
MICROBATCH = 4
POOL = 720
"""Micro-batches that are drawn once; a step of 18 sees the same ones again after 40 steps."""
FOLLOWERS = 8
LEARNING_RATE = 1e-3 if IS_TINY else 3e-4

CLIP_NORM = _LLAMA["CLIP_NORM"]
PRECISION = None if IS_TINY else _LLAMA["PRECISION"]


def layers() -> list[tuple[str, nn.Module]]:
    return _LLAMA["layers"]()


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return _LLAMA["loss"](output, target)


def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """All texts grow together, token by token: a worker that returns must not wait long for them."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(TOKENS, (TOKENS, FOLLOWERS), generator=generator)
    texts = torch.randint(TOKENS, (POOL * MICROBATCH, _LLAMA["SEQUENCE"] + 1), generator=generator)
    for place in range(1, texts.shape[1]):
        texts[:, place] = table[texts[:, place - 1], texts[:, place] % FOLLOWERS]
    for text in cycle(texts.view(POOL, MICROBATCH, -1).unbind()):
        yield text[:, :-1].contiguous(), text[:, 1:].contiguous()


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
