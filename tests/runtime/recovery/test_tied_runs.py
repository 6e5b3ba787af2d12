"""Runs of a model whose head is its embedding equal plain training: killed, joined, cut anew, resumed."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.recovery.recut_plans import write_bundle
from tests.runtime.recovery.watched import Outcome, check_close, check_rows, run, saved_models
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
    said = check_rows(folder, outcome, alone.losses, first)
    saved = saved_models(folder / "saved")
    assert saved, said
    for state in saved.values():
        check_close(state, alone.states[0])


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


MUON = """
class Muon(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.02})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    continue
                state = self.state[each]
                momentum = state.setdefault("momentum", torch.zeros_like(each))
                momentum.mul_(0.9).add_(each.grad)
                each.sub_(group["lr"] * (orthogonal(momentum) if each.dim() == 2 else momentum))


def orthogonal(matrix):
    value = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        square = value @ value.T
        value = 3.4445 * value + (-4.775 * square + 2.0315 * square @ square) @ value
    return value


optimizer = Muon
CLIP_NORM = 0.5
"""
"""Steps a matrix as a whole: of its rows alone it would make something else."""


def test_an_optimizer_of_whole_parameters_with_shards(tmp_path: Path) -> None:
    """The embedding is with its owners on one stage, and its copy with others on another: one of each
    dies."""
    program, steps = changed(tmp_path, TIED, MUON), 30
    faults, returns = ["kill=1:0@5", "kill=0:1@12"], ["1:0@6"]
    outcome = run(tmp_path, plans(tmp_path, owners=2), program, steps, faults, returns)
    assert len(outcome.faults) == 2
    check(tmp_path, outcome, program, steps)
    said = (tmp_path / "stderr").read_text(errors="replace")
    assert "whole optimizer state" not in said


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
