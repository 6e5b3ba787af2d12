"""Messages of an agent about devices before it starts workers, and the devices that it gives them."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from recycle_runtime.cli.main import main
from recycle_runtime.devices import Device, lock_devices
from recycle_runtime.protocol.messages.agents import StartProcess
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.worker.options import ProcessOptions
from tests.runtime.nvidia_smi import FOUR, H200, MIG, fake_nvidia_smi

FIRST, SECOND = "MIG-3a49c8a9-0f9f-5f7d-b321-d50e2e18cc15", "MIG-7571955c-06af-503e-af5c-ecaaec272973"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the PATH for nvidia-smi, temporary files apart, no variables of CUDA's."""
    folder = tmp_path / "machine"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MODULE_LOADING"):
        # Set and taken away, so that the variable is as it was after the test.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return folder


@pytest.fixture
def words(square: str, tmp_path: Path) -> list[str]:
    (tmp_path / "x.py").touch()
    (tmp_path / "token").write_text("t" * 32)
    (tmp_path / "token").chmod(0o600)
    common = ["--program", str(tmp_path / "x.py"), "--token-file", str(tmp_path / "token")]
    common += ["--coordinator", "127.0.0.1:9", "--state", str(tmp_path / "state"), "--device", "cuda"]
    return ["agent", square, *common, "--workers-per-node"]


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Devices of workers as they are told them, in a torch that is built for CUDA, without processes."""
    told: list[str] = []

    class Forking:
        def __init__(self, options: Any, life: Any) -> None:
            self._lines, self._life = options.workers_per_node, life

        def run(self) -> int:
            for line in range(self._lines):
                self._life(StartProcess(Member((0, 0), 0), ()), line, None)
            return 0

    def preload(*, checkpoints: bool) -> None: ...

    def work(options: ProcessOptions, *others: Any) -> int:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        told.append(f"{options.device} {visible} {os.environ.get('CUDA_MODULE_LOADING')}")
        return 0

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr("recycle_runtime.agent.agent.Agent", Forking)
    monkeypatch.setattr("recycle_runtime.agent.preload.preload", preload)
    monkeypatch.setattr("recycle_runtime.trainer.program_file.work_with_program", work)
    return told


def test_every_worker_gets_a_device(words: list[str], lives: list[str], machine: Path) -> None:
    fake_nvidia_smi(machine, MIG)
    assert main([*words, "2"]) == 0
    assert lives == [f"cuda {FIRST} EAGER", f"cuda {SECOND} EAGER"]
    assert not torch.cuda.is_initialized()


def test_workers_share_the_only_device(words: list[str], lives: list[str], machine: Path) -> None:
    fake_nvidia_smi(machine, H200)
    assert main([*words, "2"]) == 0
    assert lives == ["shared cuda None None"] * 2


def test_a_device_of_another_jobs_agent(
    words: list[str], lives: list[str], machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_nvidia_smi(machine, FOUR)
    taken = Device("1", "GPU-aa111111-0000-0000-0000-000000000001")
    (held,) = lock_devices([taken], tmp_path / "other")
    assert main([*words, "2"]) == 1
    said = f"--device cuda: GPU 1 is in use by the agent with process number {os.getpid()} and --state "
    assert said in capsys.readouterr().err
    assert lives == []
    os.close(held)


@pytest.mark.parametrize(
    ("listing", "setting", "said"),
    [
        (None, None, "--device cuda: no GPU is known here: nvidia-smi is not on the PATH\nhint: "),
        ("", None, "--device cuda: no GPU is known here: nvidia-smi lists none\nhint: "),
        (FOUR, "0,1", "--device cuda: 2 devices for 4 workers of this node: GPU 0, GPU 1\nhint: "),
        (H200, FIRST, f"CUDA_VISIBLE_DEVICES names {FIRST}: it is not there; nvidia-smi lists GPU 0\n"),
    ],
)
@pytest.mark.parametrize("command", ["agent", "local"])
def test_devices_that_are_not_there(
    command: str,
    listing: str | None,
    setting: str | None,
    said: str,
    words: list[str],
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if listing is not None:
        fake_nvidia_smi(machine, listing)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    locally = ["local", *words[1:4], "--device", "cuda", "--steps", "1"]
    assert main([*words, "4"] if command == "agent" else locally) == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this torch is built for CUDA")
def test_a_torch_for_cpu(words: list[str], machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake_nvidia_smi(machine, FOUR)
    assert main([*words, "4"]) == 2
    assert "is built for CPU\nhint: install" in capsys.readouterr().err
