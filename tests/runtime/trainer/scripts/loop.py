"""A training script as a user would write one: it records what it sees, and does what a test asks for.

loop.py FOLDER STEPS [--evaluate-every N] [--sleep SECONDS] [--die P:S@STEP@MOMENT] [--stop-below LOSS]
    [--save-every N] [--switch STEP] [--loader PROCESSES]
    [--leave STEPS]

A GPU draws other numbers than a CPU: DROPOUT=0 in the environment does without.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import recycle_runtime as recycle

WIDTH = 4
HELD_OUT = 7
"""Micro-batches of an evaluation: no multiple of those of a step."""


class Layer(nn.Module):
    """Linear with dropout, which an evaluation leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.dropout = nn.Dropout(float(os.environ.get("DROPOUT", "0.1")))

    def forward(self, value: Tensor) -> Tensor:
        return self.dropout(torch.tanh(self.linear(value)))


def layers() -> list[tuple[str, nn.Module]]:
    return [(f"blocks.{number}", Layer()) for number in range(4)]


def loss(output: Tensor, target: Tensor) -> Tensor:
    # Only the worker that is asked to fails, and the mathematics is the same everywhere.
    die_if_asked("evaluate" if not torch.is_grad_enabled() else "train")
    return nn.functional.mse_loss(output, target)


def microbatch(index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(index)
    points = torch.randn(3, WIDTH, dtype=torch.float64, generator=generator)
    return points, points.sin()


def later(index: int) -> tuple[Tensor, Tensor]:
    points, target = microbatch(2_000_000 + index)
    return points, -target


class Points(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Samples, for a DataLoader."""

    def __len__(self) -> int:
        return 90

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        point = torch.randn(WIDTH, dtype=torch.float64, generator=generator)
        return point, point.sin()


def loader(workers: int) -> "torch.utils.data.DataLoader[tuple[Tensor, Tensor]]":
    """Shuffled by a generator of its own, as in a plain script."""
    generator = torch.Generator().manual_seed(7)
    return torch.utils.data.DataLoader(
        Points(), batch_size=3, shuffle=True, num_workers=workers, generator=generator
    )


def held_out(index: int) -> tuple[Tensor, Tensor]:
    return microbatch(1_000_000 + index)


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=3e-2)


def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.01 * step))


class Best:
    """Of the losses seen so far; state of the script's own, which changes in the body of its loop."""

    def __init__(self) -> None:
        self.loss, self.passes = 1e9, 0

    def update(self, loss: float) -> None:
        self.loss, self.passes = min(self.loss, loss), self.passes + 1

    def state_dict(self) -> dict[str, Any]:
        return {"loss": self.loss, "passes": self.passes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss, self.passes = state["loss"], state["passes"]


def die_if_asked(moment: str) -> None:
    """Once in all: a worker that comes back goes on."""
    for number, words in enumerate(arguments.die):
        worker, step, when = words.split("@")
        if (worker, when, int(step)) != ("{}:{}".format(*trainer.worker), moment, now):
            continue
        mark = folder / f"died-{number}"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def record(**fields: Any) -> None:
    with (folder / f"seen-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({"worker": trainer.worker, **fields}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--evaluate-every", type=int, default=0)
    parser.add_argument("--sleep", type=float, default=0.0)
    parser.add_argument("--die", action="append", default=[])
    parser.add_argument("--stop-below", type=float, default=0.0)
    parser.add_argument("--switch", type=int, default=1_000_000)
    parser.add_argument("--leave", type=int, default=0)
    parser.add_argument("--loader", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=0)
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    now = -1

    trainer = recycle.Trainer(layers, loss=loss, optimizer=optimizer, schedule=schedule, clip_norm=0.5)
    loaded = loader(arguments.loader) if arguments.loader else None
    best = Best()
    trainer.keep("best", best)
    for loop in range(2 if arguments.leave else 1):
        for step in trainer.steps(arguments.steps):
            now = step
            report = trainer.step(loaded or (microbatch if step < arguments.switch else later))
            # Before anything else settles the step; of every other step one worker alone asks.
            settled = None
            if step % 2 == 0 or trainer.is_main:
                settled = [report.learning_rate, report.gradient_norm, report.skipped]
            evaluated = None
            die_if_asked("body")
            time.sleep(arguments.sleep)
            if arguments.evaluate_every and (step + 1) % arguments.evaluate_every == 0:
                evaluated = trainer.evaluate(held_out, microbatches=HELD_OUT)
            if arguments.save_every and (step + 1) % arguments.save_every == 0:
                trainer.save(folder / "kept")
            best.update(report.loss)
            kept = [best.loss, best.passes]
            seen = {
                "loss": report.loss,
                "settled": settled,
                "evaluated": evaluated,
                "kept": kept,
                "loop": loop,
            }
            record(step=step, main=trainer.is_main, **seen)
            if report.loss < arguments.stop_below or (loop == 0 and step + 1 == arguments.leave):
                trainer.stop()
    if arguments.save_every and (state := trainer.state_dict()):
        torch.save(state, folder / "whole.pt")
    record(step=None, loss=None, evaluated=trainer.evaluate(held_out, microbatches=HELD_OUT), main=None)
