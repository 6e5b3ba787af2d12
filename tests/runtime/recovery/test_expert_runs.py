"""Experts that peers share, on processes that are killed: owners, ranks, and scripts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recycle_compiler.ir.job import JobSpec
from tests.compiler.test_sharded import sharded
from tests.runtime.checkpoint.runs import plans
from tests.runtime.recovery.watched import disturbed
from tests.runtime.trainer.test_scripts import run
from tests.runtime.training.test_whole_models import PROGRAMS, experts
from tests.runtime.training.whole import initial_state, train_whole
from tests.support.jobs import unit_job
from tests.support.layers import layer_costs, layered_job

SHARED_EXPERTS = str(PROGRAMS / "shared_experts.py")
SLOTS = 4


def shared(job: JobSpec, owners: int = 2) -> JobSpec:
    exchange = tuple(ticks // 2 for ticks in job.forward)
    return replace(sharded(job, owners), slots=SLOTS, placed_every=1, exchange=exchange)


@pytest.mark.slow
def test_two_of_three_owners_are_killed_at_once(tmp_path: Path) -> None:
    """In the middle of a round, and the last one has all experts; both come back, and get theirs."""
    job = shared(unit_job(2, 3, 1), owners=3)
    bundle = plans(tmp_path / "job.plan", job, [(0, 1)], [(1, 1)], [(0, 1), (1, 1)])
    faults, returns = ["kill=0:1@6.4", "kill=1:1@6.4"], ["0:1@9", "1:1@9"]
    outcome = disturbed(tmp_path, bundle, 60, faults, returns, SHARED_EXPERTS)
    assert len(outcome.faults) == 2
    assert outcome.rows[-1].live == 6


@pytest.mark.slow
def test_too_few_slots_until_a_worker_is_started_again(tmp_path: Path) -> None:
    """One of two workers has half of the experts only: it waits for the other."""
    job = replace(shared(unit_job(1, 2, 2)), slots=2)
    bundle = plans(tmp_path / "job.plan", job, [(1, 0)])
    outcome = disturbed(tmp_path, bundle, 12, ["kill=1:0@5.3"], program=SHARED_EXPERTS, restarts_workers=True)
    lack = "on stage 0, 4 experts need as many slots, and 1 worker with 2 slots has 2"
    assert f"waits up to 660 s for a worker to come back: {lack}" in outcome.events
    assert [row.live for row in outcome.rows] == [2] * 12


@pytest.mark.slow
def test_ranks(tmp_path: Path) -> None:
    """Each has the slots of its worker, and exchanges tokens with the same rank of its peers."""
    job = replace(shared(unit_job(1, 2, 2)), tensor=2)
    bundle = plans(tmp_path / "job.plan", job, [(1, 0)])
    outcome = disturbed(tmp_path, bundle, 12, ["kill=1:0@5.3"], None, SHARED_EXPERTS)
    assert outcome.rows[-1].live == 1


SCRIPT = """
import json
import sys
from itertools import islice
from pathlib import Path

import torch

import recycle_runtime as recycle

sys.path.insert(0, sys.argv[1])
import program

folder, steps, per_step = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
model = program.model()
model.load_state_dict(torch.load(folder / "initial.pt"))
trainer = recycle.Trainer(model, loss=getattr(program, "loss", None), optimizer=program.optimizer)
items = list(islice(program.batches(0), steps * per_step))
losses = [trainer.step(items.__getitem__).loss for _ in trainer.steps(steps)]
whole = trainer.state_dict()
if whole:
    torch.save(whole, folder / "whole.pt")
(folder / f"losses-{'-'.join(map(str, trainer.worker))}.json").write_text(json.dumps(losses))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own", "mixtral", "checkpointed"])
def test_a_script(tmp_path: Path, kind: str) -> None:
    """With a model of its own, and with one of `transformers` whose experts are taken apart; with its blocks
    computed again in the backward, too."""
    steps, per_step = 12, 4
    if kind == "own":
        text = (PROGRAMS / "mixture.py").read_text().replace("Block(capacity=1.0)", "Block()")
    else:
        text = Path(experts(tmp_path, "mixtral", "shared")).read_text()
    if kind == "checkpointed":
        made = "    made = untouched()\n"
        assert made in text
        text = text.replace(made, f"{made}    made.gradient_checkpointing_enable()\n")
    program, script = tmp_path / "program.py", tmp_path / "train.py"
    program.write_text(text)
    script.write_text(SCRIPT)
    torch.save(initial_state(str(program), 0), tmp_path / "initial.pt")
    job = shared(layered_job(layer_costs((1000,) * 4), (2, 2), 2, per_step // 2))
    bundle = plans(tmp_path / "job.plan", job, [(1, 1)])
    result = run(bundle, str(script), str(tmp_path), str(steps), str(per_step), faults=("kill=1:1@4.5",))
    assert [cause for recovery in result.recoveries for cause in recovery.causes]
    expected = train_whole(str(program), per_step, steps)
    seen = [json.loads(path.read_text()) for path in tmp_path.glob("losses-*.json")]
    assert len(seen) == 3
    for losses in seen:
        assert losses == pytest.approx(expected.losses, rel=1e-9)
    whole = torch.load(tmp_path / "whole.pt")
    torch.testing.assert_close(whole, dict(expected.state), rtol=1e-9, atol=1e-9)
