"""The small GPT on a memory-mapped file of tokens, two bytes each, as large models are trained.

    python examples/tokens.py tokens.bin 1000000
    TOKENS=tokens.bin recycle-run local PLAN --program examples/tokens.py --steps 100

The file may be larger than memory: a worker touches the pages of its own micro-batches alone.
"""

import os
import sys
from array import array
from itertools import islice

import torch
from programs.gpt import CLIP_NORM, LETTERS, MICROBATCH, SEQUENCE, layers, loss, optimizer, text

import recycle_runtime as recycle

__all__ = ["CLIP_NORM", "data", "layers", "loss", "optimizer"]


class Tokens:
    """Pieces of the file as samples: what a model reads, and the same one token later."""

    def __init__(self, path: str, length: int) -> None:
        self._length = length
        self._tokens = torch.from_file(path, size=os.path.getsize(path) // 2, dtype=torch.int16)

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._length

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        piece = self._tokens[place * self._length : (place + 1) * self._length + 1].long()
        return piece[:-1], piece[1:]


def data(seed: int) -> recycle.Batches:
    return recycle.Batches(Tokens(os.environ["TOKENS"], SEQUENCE), MICROBATCH, seed=seed)


if __name__ == "__main__":
    number = {letter: index for index, letter in enumerate(LETTERS)}
    with open(sys.argv[1], "wb") as file:
        array("h", (number[letter] for letter in islice(text(0), int(sys.argv[2])))).tofile(file)
