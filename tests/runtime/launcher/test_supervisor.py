"""What a supervisor does about processes that die while a job starts."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from recycle_runtime.launcher.kept_process import KeptProcess, SupervisorError
from recycle_runtime.launcher.supervisor import Job, Supervisor


def starting(monkeypatch: pytest.MonkeyPatch, *lives: str) -> list[str]:
    """Processes are these shell commands, one after the other; the names of those that were started."""
    left, names = iter(lives), list[str]()

    def start(kept: KeptProcess) -> Any:
        names.append(kept.name)
        return subprocess.Popen(["sh", "-c", next(left)])

    monkeypatch.setattr(KeptProcess, "_start", start)
    return names


def job(tmp_path: Path) -> Job:
    return Job("a.plan", "", 3, 4, tmp_path / "state")


def test_a_coordinator_that_is_killed_before_it_listens_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = tmp_path / "state" / "address"
    says = f"echo 127.0.0.1:1 > {address}.new; mv {address}.new {address}"
    names = starting(monkeypatch, "kill -9 $$", says, "exit 0")
    Supervisor(job(tmp_path)).end()
    assert names == ["coordinator", "coordinator", "agent"]


def test_one_that_ends_by_itself_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = starting(monkeypatch, "exit 3")
    with pytest.raises(SupervisorError, match=r"^the coordinator did not start: it ended with status 3$"):
        Supervisor(job(tmp_path))
    assert names == ["coordinator"]
