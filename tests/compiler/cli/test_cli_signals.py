"""A command that is told to end leaves nothing behind: no process, no half of a file, no held pipe."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LONG_ENOUGH = 120
"""Seconds after which a test has hung."""


def stop_with(number: signal.Signals, target: Path, worker: int | None = None) -> tuple[int, str, list[int]]:
    """Exit code, words and workers of a command that got this signal, or one of its busy workers did."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.support.endless_command", str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert child.stdout is not None
    workers = [int(child.stdout.readline()) for _ in range(2)]
    os.kill(child.pid if worker is None else workers[worker], number)
    # This returns when nobody holds stdout and stderr any more: the workers are gone too.
    try:
        _, words = child.communicate(timeout=LONG_ENOUGH)
    finally:
        child.kill()
    return child.returncode, words, workers


@pytest.mark.parametrize(
    ("number", "code", "how"),
    [
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGHUP, 129, "terminated"),
        (signal.SIGINT, 130, "interrupted"),
    ],
)
def test_signals_end_a_command_and_its_workers(
    number: signal.Signals, code: int, how: str, tmp_path: Path
) -> None:
    found, words, workers = stop_with(number, tmp_path / "out")
    assert (found, words) == (code, f"recyclec: error: {how}, nothing was written\n")
    assert list(tmp_path.iterdir()) == []
    assert not any(Path(f"/proc/{worker}/exe").exists() for worker in workers)


def test_workers_end_when_the_command_is_killed(tmp_path: Path) -> None:
    code, _, workers = stop_with(signal.SIGKILL, tmp_path / "out")
    assert code == -signal.SIGKILL
    assert not any(Path(f"/proc/{worker}/exe").exists() for worker in workers)


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_is_killed_ends_the_command(
    number: signal.Signals, worker: int, tmp_path: Path
) -> None:
    code, words, workers = stop_with(number, tmp_path / "out", worker)
    assert (code, words) == (
        70,
        f"recyclec: error: a planning process was ended by {number.name}, nothing was written\n\n"
        "hint: if memory ran out, use a machine that has more\n",
    )
    assert list(tmp_path.iterdir()) == []
    assert not any(Path(f"/proc/{worker}/exe").exists() for worker in workers)
