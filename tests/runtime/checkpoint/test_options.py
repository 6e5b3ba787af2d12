"""Errors in options for checkpoints, before anything runs."""

from pathlib import Path

import pytest

from recycle_runtime.checkpoint.manifest import CheckpointShape, Manifest
from recycle_runtime.cli.main import main
from tests.runtime.checkpoint.runs import JOB, plans
from tests.runtime.training.compare import MLP


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder with a checkpoint of step 5, made with seed 3."""
    shape = CheckpointShape(JOB.stages, JOB.pipelines, 1, JOB.microbatches)
    folder = tmp_path / "kept" / "step-00000005"
    for name in shape.shards:
        (folder / name).mkdir(parents=True)
        (folder / name / "part.json").touch()
    Manifest(5, 20, 3, shape, dict.fromkeys(shape.shards, 1)).write(folder)
    return tmp_path / "kept"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--resume", 2, "--resume needs --checkpoint DIR"),
        ("--checkpoint-every 5", 2, "--checkpoint-every needs --checkpoint DIR"),
        ("--checkpoint KEPT --checkpoint-every 0", 2, "--checkpoint-every must be at least 1, got 0"),
        ("--checkpoint KEPT", 1, "there is a checkpoint of step 5 already: resume from it with --resume"),
        (
            "--checkpoint KEPT --resume",
            1,
            "made with --seed 3, and this run has --seed 0: --accept-",
        ),
        ("--checkpoint PLAN/kept", 1, "not a directory"),
    ],
)
def test_local_refuses(
    kept: Path, tmp_path: Path, words: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plans(tmp_path / "job.plan", JOB)
    more = words.replace("KEPT", str(kept)).replace("PLAN", plan).split()
    assert main(["local", plan, "--program", MLP, "--steps", "9", *more]) == code
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_the_coordinator_refuses_too(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECYCLE_TOKEN", "x" * 32)
    plan = plans(tmp_path / "job.plan", JOB)
    command = [
        "coordinator",
        plan,
        "--steps",
        "5",
        "--listen",
        "127.0.0.1:0",
        "--state",
        str(tmp_path / "state"),
    ]
    assert main([*command, "--checkpoint", str(kept), "--resume"]) == 1
    assert "has 5 steps already, and --steps asks for 5" in capsys.readouterr().err
