"""A small GPT that learns to write, letter by letter, the sentences of a little grammar.

    recycle-run local PLAN --program examples/programs/gpt.py --steps 100

The text is made here, from the seed, and never ends. Sizes are below; the head is not tied to the embedding,
because layers may not share parameters: a plan may put them on different workers.
"""

import random
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

BLOCKS = 8
WIDTH = 64
HEADS = 4
SEQUENCE = 64
MICROBATCH = 4
DROPOUT = 0.0

CLIP_NORM = 1.0

GRAMMAR = {
    "sentence": ["{noun phrase} {verb phrase}. "],
    "noun phrase": ["the {noun}", "a {adjective} {noun}", "the {noun} of {noun phrase}"],
    "verb phrase": ["{verb} {noun phrase}", "{verb} {noun phrase} and {verb phrase}", "sleeps"],
    "noun": ["worker", "pipeline", "stage", "fox", "river", "lighthouse", "clock"],
    "adjective": ["small", "patient", "green", "sudden"],
    "verb": ["follows", "repairs", "finds", "forgets", "carries"],
}
LETTERS = "\n ." + "abcdefghijklmnopqrstuvwxyz"


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.combine = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        size, length, _ = value.shape
        parts = self.project(value).view(size, length, 3, HEADS, WIDTH // HEADS)
        query, key, content = parts.permute(2, 0, 3, 1, 4)
        dropout = DROPOUT if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            query, key, content, is_causal=True, dropout_p=dropout
        )
        return self.combine(mixed.transpose(1, 2).reshape(size, length, WIDTH))


class Block(nn.Module):
    """Attention, then a layer four times as wide, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.wide_norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = value + self.dropout(self.attention(self.attention_norm(value)))
        return value + self.dropout(self.wide(self.wide_norm(value)))


class Embedding(nn.Module):
    """Letters and their places become vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), WIDTH)
        self.places = nn.Embedding(SEQUENCE, WIDTH)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        places = torch.arange(letters.shape[1], device=letters.device)
        return self.letters(letters) + self.places(places)


class Head(nn.Module):
    """How likely each letter is to come next."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.letters = nn.Linear(WIDTH, len(LETTERS), bias=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.letters(self.norm(value))


def layers() -> list[tuple[str, nn.Module]]:
    """As a job with `model gpt` counts them: the embedding, the blocks, the head."""
    blocks = [(f"blocks.{index}", Block()) for index in range(BLOCKS)]
    return [("embedding", Embedding()), *blocks, ("head", Head())]


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """How surprising the next letters are, on average."""
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pieces of text, and the same pieces one letter later."""
    letters = text(seed)
    number = {letter: index for index, letter in enumerate(LETTERS)}
    while True:
        rows = [[number[next(letters)] for _ in range(SEQUENCE + 1)] for _ in range(MICROBATCH)]
        block = torch.tensor(rows)
        yield block[:, :-1].contiguous(), block[:, 1:].contiguous()


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.01)


def text(seed: int) -> Iterator[str]:
    """Sentences of the grammar without end, letter by letter; the same for the same seed."""
    chance = random.Random(seed)
    while True:
        yield from _expand("sentence", chance)


def _expand(symbol: str, chance: random.Random) -> str:
    words = chance.choice(GRAMMAR[symbol])
    while "{" in words:
        before, _, rest = words.partition("{")
        inner, _, after = rest.partition("}")
        words = before + _expand(inner, chance) + after
    return words
