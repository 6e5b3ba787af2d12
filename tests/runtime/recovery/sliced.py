"""Runs whose workers are two tensor-parallel processes each, and what they must equal."""

from pathlib import Path

import torch

from tests.runtime.recovery.watched import PROGRAMS, Outcome, check_rows, saved_models
from tests.runtime.training.alone import train_alone

SLICED = str(PROGRAMS / "sliced_layers.py")
RANKS = 2
SLICED_ALONG = {"up": 0, "down": 1}


def check_slices(folder: Path, outcome: Outcome, steps: int, per_step: int) -> None:
    """Every step once, with its loss; every rank has its slices of what one process trains."""
    alone = train_alone(SLICED, 1, per_step, steps, cut=(4,))
    check_rows(folder, outcome, alone.losses)
    check_saved(folder / "saved", outcome.rows[-1].live, alone.states[0])


def check_saved(folder: Path, workers: int, expected: dict[str, torch.Tensor]) -> None:
    """Every rank of so many workers has saved its slices."""
    saved = saved_models(folder)
    assert len(saved) == RANKS * workers
    for path, state in saved.items():
        rank = int(path.stem.rpartition("-")[2])
        for name, tensor in state.items():
            whole = expected[name]
            if (along := SLICED_ALONG.get(name.rpartition(".")[2])) is not None:
                whole = whole.chunk(RANKS, along)[rank]
            torch.testing.assert_close(tensor, whole, rtol=1e-9, atol=1e-9)
