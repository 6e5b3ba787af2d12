"""Micro-batches of several shapes within a step, wherever they run."""

import dataclasses
from pathlib import Path

import pytest
import torch

from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.program.loading import load_program
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import Failed, changed, check_in_threads, check_on_processes
from tests.support.jobs import figure3, unit_job

UNEVEN = str(Path(__file__).resolve().parent / "programs" / "uneven_batches.py")


@pytest.mark.parametrize(("failed", "clip"), [([(1, 2)], 0.5), ([(1, 2), (0, 0), (2, 2)], None)])
def test_running_example(tmp_path: Path, failed: Failed, clip: float | None) -> None:
    program = changed(tmp_path, UNEVEN, f"CLIP_NORM = {clip}")
    check_in_threads(tmp_path, figure3((4, 3, 2, 1)), failed, program)


@pytest.mark.slow
@pytest.mark.parametrize("failed", [[], [(1, 0)]])
def test_on_processes(tmp_path: Path, failed: Failed) -> None:
    check_on_processes(tmp_path, unit_job(2, 2, 5, (2, 1)), failed, UNEVEN)


def test_a_step_takes_the_mean_over_micro_batches() -> None:
    """Each counts the same, however much is in it."""
    program = load_program(UNEVEN)
    data = MicroBatches(program, 0, 4)
    torch.manual_seed(0)
    model = program.build_stage(0, 1)
    items = [data.item(0, index) for index in range(4)]
    losses = [program.loss(model(value), target).item() for value, target in items]
    assert len({data.signature(0, index) for index in range(4)}) == 4
    assert train_alone(UNEVEN, 1, 4, 1).losses == pytest.approx([sum(losses) / 4])


def test_parts_take_uneven_batches(tmp_path: Path) -> None:
    """With workers of two processes, over their own channels."""
    job = dataclasses.replace(unit_job(2, 2, 4, (2, 1)), tensor=2)
    check_on_processes(tmp_path, job, [(0, 1)], UNEVEN)
