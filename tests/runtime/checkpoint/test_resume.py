"""A run that is stopped and goes on is the run that was never stopped."""

import shutil
from pathlib import Path

import pytest
import torch

from recycle_runtime.launcher.local import RunError
from tests.runtime.checkpoint.conftest import Stopped
from tests.runtime.checkpoint.runs import FEWER, JOB, losses, plans, run, saved, train_in_turns


@pytest.mark.slow
def test_the_same_pipelines(stopped: Stopped, tmp_path: Path) -> None:
    kept, bundle, program = stopped
    shutil.copytree(kept, tmp_path / "kept")
    resumed, events = run(
        bundle, program, 9, save=str(tmp_path), checkpoint=str(tmp_path / "kept"), resume=True
    )
    assert events[0] == f"resuming with step 5 from {tmp_path / 'kept' / 'step-00000005'}"
    assert resumed.begins == [5]
    expected, states = train_in_turns(program, JOB.stages, [(9, 4)])
    assert losses(resumed) == pytest.approx({step: expected[step] for step in range(5, 9)}, rel=1e-12)
    assert len(saved(tmp_path)) == JOB.stages * JOB.pipelines
    for name, state in saved(tmp_path).items():
        for key, tensor in states[int(name.split("-")[2])].items():
            torch.testing.assert_close(state[key], tensor, rtol=1e-12, atol=1e-12)
    names = sorted(path.name for path in (tmp_path / "kept").glob("step-*"))
    assert names == ["step-00000005", "step-00000009"]


@pytest.mark.slow
def test_other_pipelines_and_micro_batches(stopped: Stopped, tmp_path: Path) -> None:
    """Data goes on with the first item that was not used, in steps of another size."""
    kept, _, program = stopped
    shutil.copytree(kept, tmp_path / "kept")
    bundle = plans(tmp_path / "fewer.plan", FEWER)
    resumed, _ = run(
        bundle,
        program,
        7,
        save=str(tmp_path),
        checkpoint=str(tmp_path / "kept"),
        checkpoint_every=1,
        resume=True,
        accepts_changes=True,
    )
    expected, states = train_in_turns(program, JOB.stages, [(5, 4), (2, 3)])
    assert losses(resumed) == pytest.approx({5: expected[5], 6: expected[6]}, rel=1e-12)
    for stage in range(JOB.stages):
        state = saved(tmp_path)[f"worker-0-{stage}-0.pt"]
        for key, tensor in states[stage].items():
            torch.testing.assert_close(state[key], tensor, rtol=1e-12, atol=1e-12)


def test_every_peer_of_a_stage_has_failed(stopped: Stopped, tmp_path: Path) -> None:
    """The run ends in a sentence that says how to go on; one pipeline is enough for that."""
    shutil.copytree(stopped.kept, tmp_path / "kept")
    kept, bundle, program = str(tmp_path / "kept"), stopped.bundle, stopped.program
    with pytest.raises(RunError) as caught:
        run(
            bundle,
            program,
            40,
            checkpoint=kept,
            checkpoint_every=2,
            resume=True,
            faults=("kill=0:1@12", "kill=1:1@12"),
        )
    said = str(caught.value)
    assert said.startswith("every worker of stage 1 has failed: ")
    names = sorted(
        path.name for path in (tmp_path / "kept").glob("step-*") if (path / "manifest.json").exists()
    )
    assert len(names) == 2
    newest = tmp_path / "kept" / names[-1]
    step = int(names[-1].removeprefix("step-").partition(".")[0])
    assert 5 <= step <= 12
    assert said.endswith(f"; {newest} has the first {step} steps: resume from it with resume=True")
    fewer = plans(tmp_path / "fewer.plan", FEWER)
    resumed, _ = run(fewer, program, step + 1, checkpoint=kept, resume=True, accepts_changes=True)
    expected, _ = train_in_turns(program, JOB.stages, [(step, 4), (1, 3)])
    assert losses(resumed) == pytest.approx({step: expected[step]}, rel=1e-12)
