"""A decoder as Llama has it: RMSNorm, rotary embeddings, SwiGLU, grouped-query attention; bf16 products.

530 million parameters with the sizes below; tokens are drawn at random, again and again from a small pool.
"""

from collections.abc import Iterator
from itertools import cycle

import torch
from torch import nn
from torch.nn import functional

BLOCKS = 8
WIDTH = 2048
HEADS = 16
GROUPS = 4
"""Heads of keys and values."""
WIDE = 5632
TOKENS = 32_000
SEQUENCE = 2048
MICROBATCH = 2
POOL = 16

CLIP_NORM = 1.0
PRECISION = "bf16"


class Attention(nn.Module):
    """Causal; several heads of queries share one of keys and values."""

    cosine: torch.Tensor
    sine: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, GROUPS * size, bias=False)
        self.content = nn.Linear(WIDTH, GROUPS * size, bias=False)
        self.combine = nn.Linear(WIDTH, WIDTH, bias=False)
        turns = 1.0 / 10_000 ** (torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(SEQUENCE), turns)
        self.register_buffer("cosine", torch.cat([angles.cos()] * 2, -1), persistent=False)
        self.register_buffer("sine", torch.cat([angles.sin()] * 2, -1), persistent=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        count, length, _ = value.shape
        query = self._turned(self.query(value).view(count, length, HEADS, -1).transpose(1, 2))
        key = self._turned(self.key(value).view(count, length, GROUPS, -1).transpose(1, 2))
        content = self.content(value).view(count, length, GROUPS, -1).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(query, key, content, is_causal=True, enable_gqa=True)
        return self.combine(mixed.transpose(1, 2).reshape(count, length, WIDTH))

    def _turned(self, value: torch.Tensor) -> torch.Tensor:
        """By the angle of each place."""
        length, half = value.shape[-2], value.shape[-1] // 2
        cosine, sine = (table[:length].to(value.dtype) for table in (self.cosine, self.sine))
        other = torch.cat([-value[..., half:], value[..., :half]], -1)
        return value * cosine + other * sine


class Wide(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, WIDE, bias=False)
        self.up = nn.Linear(WIDTH, WIDE, bias=False)
        self.down = nn.Linear(WIDE, WIDTH, bias=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(value)) * self.up(value))


class Block(nn.Module):
    """Attention, then the wide layer, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.wide_norm = nn.RMSNorm(WIDTH)
        self.wide = Wide()

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = value + self.attention(self.attention_norm(value))
        return value + self.wide(self.wide_norm(value))


class Head(nn.Module):
    """Logits of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.tokens = nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.tokens(self.norm(value))


def layers() -> list[tuple[str, nn.Module]]:
    blocks = [(f"blocks.{number}", Block()) for number in range(BLOCKS)]
    return [("embedding", nn.Embedding(TOKENS, WIDTH)), *blocks, ("head", Head())]


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1).float(), target.flatten())


def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(TOKENS, (MICROBATCH, SEQUENCE + 1), generator=generator) for _ in range(POOL)]
    for row in cycle(rows):
        yield row[:, :-1].contiguous(), row[:, 1:].contiguous()


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
