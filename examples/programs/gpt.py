"""A small GPT that learns to write, letter by letter, the sentences of a little grammar.

    recycle-run local PLAN --program examples/programs/gpt.py --steps 100

The text is made here, from the seed, and never ends. Sizes are below; the head is not tied to the embedding,
because tied weights would make the first and the last stage wait for each other.
"""

import random
from collections import OrderedDict
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


def build_stage(stage: int, stages: int) -> nn.Module:
    """The parts of this stage; each has its own name and seed, so the cut does not change the model."""
    parts: dict[str, nn.Module] = {}
    if stage == 0:
        torch.manual_seed(1000)
        parts["embedding"] = Embedding()
    for index in range(BLOCKS):
        if index * stages // BLOCKS == stage:
            torch.manual_seed(index)
            parts[f"block{index}"] = Block()
    if stage == stages - 1:
        torch.manual_seed(2000)
        parts["norm"] = nn.LayerNorm(WIDTH)
        parts["head"] = nn.Linear(WIDTH, len(LETTERS), bias=False)
    return nn.Sequential(OrderedDict(parts))


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
