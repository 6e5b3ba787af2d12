"""Runs of a model whose head is its embedding equal plain training: killed, joined, cut anew, resumed."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.runtime.recovery.recut_plans import write_bundle
from tests.runtime.recovery.watched import Outcome, run
from tests.runtime.training.compare import changed
from tests.runtime.training.test_tied import TIED
from tests.runtime.training.tied_alone import train_tied_alone
from tests.support.layers import layer_costs, layered_job

LAYERS, PER_STEP = 6, 8
TOGETHER = "6x3"
"""All layers on each of three workers."""


def plans(folder: Path, *, stagger: bool = True, recut: bool = False, owners: int = 0) -> str:
    """Two pipelines of two stages with three layers each, and one failure anywhere; four pipelines where
    optimizer state is in shards."""
    shape = (4, 2) if owners else (2, 4)
    job = layered_job(layer_costs((1000,) * LAYERS), (3, 3), *shape, owners=owners)
    job = replace(job, tied=(0, LAYERS - 1))
    job = replace(job, techniques=replace(job.techniques, stagger=stagger))
    return write_bundle(
        folder / "tied.plan", job, {TOGETHER: [(1,)]} if recut else {}, [(0, 0), (0, 1), (1, 0)]
    )


def check(folder: Path, outcome: Outcome, program: str, steps: int, first: int = 0) -> None:
    alone = train_tied_alone(program, 2, PER_STEP, steps)
    said = (folder / "stderr").read_text(errors="replace")[-4_000:]
    assert outcome.error is None, said
    assert [row.step for row in outcome.rows] == list(range(first, steps)), said
    assert [row.loss for row in outcome.rows] == pytest.approx(alone.losses[first:], rel=1e-9)
    saved = sorted((folder / "saved").glob("worker-*.pt"))
    assert saved, said
    for path in saved:
        state: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["model"]
        for name, tensor in state.items():
            torch.testing.assert_close(tensor, alone.states[0][name], rtol=1e-9, atol=1e-9)


def kill_and_rejoin(folder: Path, program: str, *, stagger: bool, owners: int = 0) -> str:
    """On either side, with a checkpoint of step 80 at the end. The plans."""
    bundle, kept = plans(folder, stagger=stagger, owners=owners), folder / "kept"
    faults, returns = ["kill=1:0@5", "kill=0:1@45"], ["1:0@6", "0:1@46"]
    outcome = run(folder / "one", bundle, program, 80, faults, returns, checkpoint=kept)
    assert len(outcome.faults) == 2
    check(folder / "one", outcome, program, 80)
    return bundle


def test_kill_and_rejoin_on_either_side(tmp_path: Path) -> None:
    kill_and_rejoin(tmp_path, changed(tmp_path, TIED, "CLIP_NORM = 0.5"), stagger=True)


@pytest.mark.slow
@pytest.mark.parametrize(("stagger", "owners"), [(True, 0), (False, 0), (True, 2)])
def test_a_resume(tmp_path: Path, stagger: bool, owners: int) -> None:
    program, kept = changed(tmp_path, TIED, "CLIP_NORM = 0.5"), tmp_path / "kept"
    bundle = kill_and_rejoin(tmp_path, program, stagger=stagger, owners=owners)
    second = run(tmp_path / "two", bundle, program, 86, ["kill=1:1@82"], checkpoint=kept, resume=True)
    assert len(second.faults) == 1
    check(tmp_path / "two", second, program, 86, first=80)


@pytest.mark.slow
def test_both_layers_land_on_one_worker(tmp_path: Path) -> None:
    bundle, steps = plans(tmp_path, recut=True), 60
    for attempt in range(4):
        folder = tmp_path / f"run-{attempt}"
        outcome = run(folder, bundle, TIED, steps, ["kill=1:1@5"], recut="always")
        check(folder, outcome, TIED, steps)
        if any(event.startswith(f"re-cut to {TOGETHER}: ") for event in outcome.events):
            return
        steps *= 3
    pytest.fail("it has not come to a re-cut")
