"""Runs that go on from a checkpoint and are disturbed again."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recycle_runtime.launcher.supervisor import supervised
from recycle_runtime.options.run import RunOptions
from recycle_runtime.protocol.messages.observers import JobEnded, JobEvent
from recycle_runtime.protocol.messages.steps import StepRow
from tests.runtime.checkpoint.conftest import Stopped
from tests.runtime.checkpoint.runs import FAILED, JOB, losses, plans, run, saved, train_in_turns
from tests.runtime.training.compare import EXAMPLES
from tests.support.jobs import unit_job

MORE = unit_job(2, 2, 3)
STEPS = 200
"""Enough for a worker that starts again to be there before the end."""

pytestmark = pytest.mark.slow


def test_a_worker_joins_a_run_with_steps_of_another_size(stopped: Stopped, tmp_path: Path) -> None:
    """It gets parameters from a peer, and must count items as the others do."""
    shutil.copytree(stopped.kept, tmp_path / "kept")
    bundle = plans(tmp_path / "more.plan", MORE, FAILED)
    result, _ = run(
        bundle,
        stopped.program,
        STEPS,
        checkpoint=str(tmp_path / "kept"),
        checkpoint_every=30,
        resume=True,
        accepts_changes=True,
        faults=("kill=0:1@7",),
        returns=("0:1@9",),
    )
    expected, _ = train_in_turns(stopped.program, JOB.stages, [(5, 4), (STEPS - 5, 6)])
    assert losses(result) == pytest.approx({step: expected[step] for step in range(5, STEPS)}, rel=1e-10)
    assert {step.live for step in result.steps} == {3, 4}
    assert result.steps[-1].live == 4


def test_the_coordinator_dies_in_a_run_that_went_on(stopped: Stopped, tmp_path: Path) -> None:
    shutil.copytree(stopped.kept, tmp_path / "kept")
    job = RunOptions(
        bundle=stopped.bundle,
        program=stopped.program,
        steps=40,
        workers_per_node=4,
        state=tmp_path / "state",
        checkpoint=str(tmp_path / "kept"),
        checkpoint_every=4,
        resume=True,
        accepts_changes=True,
    )
    found: dict[int, float] = {}
    killed = False
    with supervised(job) as supervisor:
        for message in supervisor.news():
            if isinstance(message, StepRow):
                found[message.step] = message.loss_or_nan
            elif isinstance(message, JobEnded):
                assert message.error is None
            elif isinstance(message, JobEvent) and message.text.startswith("checkpoint") and not killed:
                killed = True
                supervisor.coordinator.process.kill()
    assert killed
    expected, _ = train_in_turns(stopped.program, JOB.stages, [(40, 4)])
    assert found == pytest.approx({step: expected[step] for step in range(5, 40)}, rel=1e-12)
    assert (tmp_path / "kept" / "step-00000040" / "manifest.json").exists()


def test_tensor_parallel_ranks(tmp_path: Path) -> None:
    program = str(EXAMPLES / "tensor_parallel.py")
    bundle = plans(tmp_path / "job.plan", replace(unit_job(2, 2, 2), tensor=2))
    folders = [tmp_path / name for name in ("whole", "resumed")]
    for folder in folders:
        folder.mkdir()
    whole, _ = run(bundle, program, 6, save=str(folders[0]))
    run(bundle, program, 3, checkpoint=str(tmp_path / "kept"))
    shards = {path.name for path in (tmp_path / "kept" / "step-00000003").iterdir() if path.is_dir()}
    assert shards == {f"stage-{stage}-part-{rank}" for stage in range(2) for rank in range(2)}
    resumed, _ = run(bundle, program, 6, save=str(folders[1]), checkpoint=str(tmp_path / "kept"), resume=True)
    expected = losses(whole)
    assert losses(resumed) == pytest.approx({step: expected[step] for step in (3, 4, 5)}, rel=1e-12)
    states = [saved(folder) for folder in folders]
    assert states[0].keys() == states[1].keys() and len(states[0]) == 8
    for name, state in states[0].items():
        for key, tensor in state.items():
            torch.testing.assert_close(states[1][name][key], tensor, rtol=1e-12, atol=1e-12)
