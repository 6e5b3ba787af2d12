"""A small GPT with a loop of its own: schedule, evaluation, logging, the best loss, early stop.

    recyclec compile examples/figure3.job -o figure3.plan
    recycle-run local figure3.plan --kill 1:2@20 --rejoin 1:2@30 examples/train_gpt.py --steps 200

Every worker runs this script. What it prints is what one process alone would print.
"""

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import recycle_runtime as recycle

WIDTH, SEQUENCE, BLOCKS = 32, 32, 6
TEXT = " ".join(f"{a} times {b} is {a * b}." for a in range(2, 100) for b in range(2, 100))
LETTERS = sorted(set(TEXT))
TOKENS = torch.tensor([LETTERS.index(letter) for letter in TEXT])


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), WIDTH)
        self.places = nn.Embedding(SEQUENCE, WIDTH)

    def forward(self, letters: Tensor) -> Tensor:
        return self.letters(letters) + self.places.weight[: letters.shape[1]]


class Block(nn.TransformerEncoderLayer):
    def __init__(self) -> None:
        super().__init__(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)  # pyright: ignore

    def forward(self, value: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        mask = nn.Transformer.generate_square_subsequent_mask(value.shape[1], device=value.device)
        return super().forward(value, src_mask=mask, is_causal=True)


def layers() -> list[tuple[str, nn.Module]]:
    blocks = [(f"blocks.{number}", Block()) for number in range(BLOCKS)]
    head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LETTERS)))
    return [("embedding", Embedding()), *blocks, ("head", head)]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def rows(index: int, first: int, last: int) -> tuple[Tensor, Tensor]:
    """Micro-batch `index`: four rows of the text between two places, and the letters that follow each."""
    generator = torch.Generator().manual_seed(index)
    starts = torch.randint(first, last - SEQUENCE - 1, (4,), generator=generator)
    picked = TOKENS[starts[:, None] + torch.arange(SEQUENCE + 1)]
    return picked[:, :-1], picked[:, 1:]


def training(index: int) -> tuple[Tensor, Tensor]:
    return rows(index, 0, 9 * len(TOKENS) // 10)


def held_out(index: int) -> tuple[Tensor, Tensor]:
    return rows(index, 9 * len(TOKENS) // 10, len(TOKENS))


class Patience:
    """How often in a row an evaluation was no better than the best one; workers that join take it over."""

    def __init__(self) -> None:
        self.best, self.waited = float("inf"), 0

    def hear(self, value: float) -> int:
        self.best, self.waited = min(self.best, value), 0 if value < self.best else self.waited + 1
        return self.waited

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.waited = state["best"], state["waited"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=1e-2)
    arguments = parser.parse_args()

    trainer = recycle.Trainer(
        layers,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=arguments.rate),
        schedule=lambda optimizer: LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20)),
        clip_norm=1.0,
    )
    patience = Patience()
    trainer.keep("patience", patience)
    for step in trainer.steps(arguments.steps):
        report = trainer.step(training)
        if (step + 1) % 20 == 0:
            value = trainer.evaluate(held_out, microbatches=8)
            trainer.print(f"after {step + 1} steps: loss {report.loss:.4f}, held out {value:.4f}")
            if patience.hear(value) >= 3:
                trainer.stop()
    trainer.print(f"best: {patience.best:.4f}")
