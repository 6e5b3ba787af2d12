"""Schedules, averages and groups by name on processes: a kill, a re-join, a resume; and peers that differ."""

from pathlib import Path

import pytest
import torch

from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode
from tests.runtime.recovery.watched import Outcome, check_rows, run
from tests.runtime.training.compare import changed
from tests.runtime.training.plain_loop import Plain, train_plainly
from tests.runtime.training.test_moving import HOOKED, SCRIPTED

PER_STEP = 4


def check(folder: Path, outcome: Outcome, plain: Plain, first: int = 0) -> None:
    """Every step once, and what every worker has saved is what a plain loop has."""
    check_rows(folder, outcome, plain.losses, first)
    saved = sorted((folder / "saved").glob("worker-*.pt"))
    assert len(saved) >= outcome.rows[-1].live
    for path in saved:
        state = torch.load(path, weights_only=True)
        for name, tensor in state["model"].items():
            torch.testing.assert_close(tensor, plain.model[name], rtol=1e-9, atol=1e-10)
        for layer, moving in state["moving"].items():
            for name, tensor in moving.get("moves_with_steps/0", {}).items():
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


GROUPS = """
del moves_with_steps

class Decaying(torch.optim.lr_scheduler.SequentialLR):
    \"\"\"One of the user's: decay of the first group and momentum of the second follow the steps too.\"\"\"

    def step(self):
        super().step()
        self.optimizer.param_groups[0]["weight_decay"] = 0.1 + 0.01 * self.last_epoch
        self.optimizer.param_groups[1]["betas"] = (0.9 - 0.002 * self.last_epoch, 0.99)


def optimizer(named_parameters):
    def kind(name):
        return 2 if name.startswith("head") else 0 if name.endswith("weight") and "norm" not in name else 1

    groups = []
    for which, rate, decay in zip(range(3), (3e-2, 1e-2, 5e-2), (0.1, 0.0, 0.01)):
        chosen = [value for name, value in named_parameters if kind(name) == which]
        groups.append({"params": chosen, "lr": rate, "weight_decay": decay})
    return torch.optim.AdamW(groups)


def schedule(optimizer):
    lr = torch.optim.lr_scheduler
    parts = [lr.LinearLR(optimizer, 0.2, 1.0, 4), lr.CosineAnnealingWarmRestarts(optimizer, 7)]
    return Decaying(optimizer, parts, [4])
"""
"""Groups by name with rates and decays of their own, and schedules that move both."""


@pytest.mark.slow
@pytest.mark.parametrize("stagger", [True, False], ids=["staggered", "barrier"])
def test_groups_and_schedules_with_shards(
    tmp_path: Path, request: pytest.FixtureRequest, stagger: bool
) -> None:
    """Owners fail before a step, after it, and after the weights have gone out; then a resume."""
    bundle = str(request.getfixturevalue("sharded" if stagger else "sharded_with_barrier"))
    program, per_step, kept = changed(tmp_path, SCRIPTED, GROUPS), 6, tmp_path / "kept"
    stream = Bundle.read(bundle).stream(0, (1, 1))
    at = next(number for number, each in enumerate(stream) if each.opcode is Opcode.OPTIMIZER)
    faults = [f"kill=1:1@5.{at}", f"kill=0:0@30.{at + 1}", f"kill=2:1@55.{at + 2}"]
    outcome = run(
        tmp_path / "run",
        bundle,
        program,
        70,
        faults,
        ["1:1@6", "0:0@31"],
        checkpoint=kept,
        checkpoint_every=9,
    )
    assert len(outcome.faults) == 3
    check(tmp_path / "run", outcome, train_plainly(program, per_step, 70))
    later = run(tmp_path / "later", bundle, program, 75, ["kill=1:0@73"], checkpoint=kept, resume=True)
    check(tmp_path / "later", later, train_plainly(program, per_step, 75), first=70)


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
