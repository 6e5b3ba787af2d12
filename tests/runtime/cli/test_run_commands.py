"""Messages of the commands that train before they load torch, and when something is not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.cli.main import main
from tests.support.jobs import unit_job

PROGRAM = str(Path(__file__).resolve().parents[3] / "examples" / "programs" / "mlp.py")


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "one.plan"
    write_bundle(path, source="", plans=[plan_failed(unit_job(2, 1, 2), ())])
    return str(path)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--steps", "0"], 2, "--steps must be from 1 to"),
        (["--steps", "1", "--seed", "-1"], 2, "--seed must be from 0 to"),
        (["--steps", "1", "--seed", str(1 << 64)], 2, "--seed must be from 0 to"),
        (["--steps", "1", "--failed", ""], 2, "--failed: a worker must be like 0:2"),
        (["--steps", "1", "--failed", "9:9"], 2, "--failed: there is no worker 9:9"),
        (["--steps", "1", "--failed", "0:1"], 2, "--failed: no worker of stage 1 is left: at least one"),
        (["--steps", "9", "--rejoin", "0:1@3x0"], 2, "must be like 1:2@8x2"),
        (["--steps", "9", "--rejoin", "0:1@3x5"], 2, "a worker cannot come back with 5 ranks: it has 1"),
        (["--steps", "1", "--metrics", "/tmp"], 2, "--metrics must be a file, and /tmp is a folder"),
        (["--steps", "1", "--trace", "/no/such/folder/t.json"], 1, "/no/such/folder/t.json: no such file"),
        (["--steps", "1", "--metrics", "/no/such/folder/m"], 1, "/no/such/folder/m: no such file"),
    ],
)
def test_local_refuses(
    plan: str, words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["local", plan, "--program", PROGRAM, *words]) == code
    assert said in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["local", plan, "--program", PROGRAM, "--steps", "1", "--device", "cuda"]) == 2
    assert "--device cuda: no GPU is known here" in capsys.readouterr().err


@pytest.mark.parametrize("store", ["nohost:99999999", "29500", "host:", "host:0"])
def test_worker_refuses_a_store(plan: str, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["worker", plan, "--program", PROGRAM, "--steps", "1", "--worker", "0:0", "--store", store]
    assert main(words) == 2
    assert "--store must be like" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["nan", "-1", "0"])
def test_a_coordinator_refuses_a_time_limit_of_nothing(
    plan: str, tmp_path: Path, seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "coordinator",
        plan,
        "--listen",
        "127.0.0.1:0",
        "--steps",
        "1",
        "--state",
        str(tmp_path / "state"),
    ]
    assert main([*words, "--takeover-timeout", seconds]) == 2
    assert "--takeover-timeout must be at least" in capsys.readouterr().err


def test_an_empty_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.plan"
    empty.touch()
    assert main(["local", str(empty), "--program", PROGRAM, "--steps", "1"]) == 1
    assert "it is empty" in capsys.readouterr().err


def test_torch_that_is_not_installed(tmp_path: Path) -> None:
    """A sentence that names what brings it; commands that need none work."""
    Path(tmp_path, "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    words = [sys.executable, "-m", "recycle_runtime.cli"]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*words, *more], capture_output=True, text=True, check=False, env=environment)

    missing = run("export", str(tmp_path), "-o", str(tmp_path / "out"))
    assert missing.returncode == 1
    said = "this command needs torch, which is not installed: pip install 'recyclec[runtime]'"
    assert missing.stderr == f"recycle-run: error: {said}\n"
    assert run("coordinator", "--help").returncode == 0
