"""Schedules, averages and groups by name on processes: a kill, a re-join, a resume; and peers that differ."""

from pathlib import Path

import pytest
import torch

from tests.runtime.recovery.watched import Outcome, run
from tests.runtime.training.compare import changed
from tests.runtime.training.plain_loop import Plain, train_plainly
from tests.runtime.training.test_moving import HOOKED, SCRIPTED

PER_STEP = 4


def check(folder: Path, outcome: Outcome, plain: Plain, first: int = 0) -> None:
    """Every step once, and what every worker has saved is what a plain loop has."""
    said = (folder / "stderr").read_text(errors="replace")[-3_000:]
    assert outcome.error is None, said
    assert [row.step for row in outcome.rows] == list(range(first, len(plain.losses)))
    assert [row.loss for row in outcome.rows] == pytest.approx(plain.losses[first:], rel=1e-9)
    saved = sorted((folder / "saved").glob("worker-*.pt"))
    assert len(saved) >= outcome.rows[-1].live
    for path in saved:
        state = torch.load(path, weights_only=True)
        for name, tensor in state["model"].items():
            torch.testing.assert_close(tensor, plain.model[name], rtol=1e-9, atol=1e-10)
        for layer, moving in state["moving"].items():
            for name, tensor in moving["moves_with_steps/0"].items():
                if name != "n_averaged":
                    expected = plain.average[f"{layer}.{name.removeprefix('module.')}"]
                    torch.testing.assert_close(tensor, expected, rtol=1e-9, atol=1e-10)


STEPS = 40


def kill_and_rejoin(folder: Path, bundle: str, program: str) -> None:
    """Undone where a step was ahead, handed to the joiner, and all peers are compared in the end."""
    kept = folder / "kept"
    outcome = run(folder / "run", bundle, program, STEPS, ["kill=1:1@5"], ["1:1@6"], checkpoint=kept)
    assert any("joins" in cause for cause in outcome.causes), outcome.causes
    check(folder / "run", outcome, train_plainly(program, PER_STEP, STEPS))


def test_a_kill_and_a_re_join(tmp_path: Path, square: str) -> None:
    kill_and_rejoin(tmp_path, square, changed(tmp_path, SCRIPTED, ""))


@pytest.mark.slow
@pytest.mark.parametrize("change", ["", HOOKED], ids=["schedule", "schedule-in-a-hook"])
def test_a_resume(tmp_path: Path, square: str, change: str) -> None:
    program = changed(tmp_path, SCRIPTED, change)
    kill_and_rejoin(tmp_path, square, program)
    more = STEPS + 5
    later = run(tmp_path / "later", square, program, more, checkpoint=tmp_path / "kept", resume=True)
    check(tmp_path / "later", later, train_plainly(program, PER_STEP, more), first=STEPS)


COUNTED = """
schedule = None
_optimizer = optimizer
STEPS = {}
def optimizer(named_parameters):
    made = _optimizer(named_parameters)
    def slower(*_):
        STEPS[id(made)] = STEPS.get(id(made), 0) + 1
        for group in made.param_groups:
            group["lr"] = 3e-2 / STEPS[id(made)]
    made.register_step_post_hook(slower)
    return made
"""
"""Nobody but a global variable knows how many steps there were."""


@pytest.mark.slow
def test_peers_that_differ_end_the_run(tmp_path: Path, square: str) -> None:
    program = changed(tmp_path, SCRIPTED, COUNTED)
    outcome = run(tmp_path / "run", square, program, 40, ["kill=1:1@5"], ["1:1@6"])
    assert outcome.error is not None
    assert "are peers and differ after" in outcome.error
    assert "0:1 and 1:1" in outcome.error or "1:1 and 0:1" in outcome.error
    assert "param_groups 0 lr (0.0" in outcome.error
