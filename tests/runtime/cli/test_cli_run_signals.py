"""`recycle-run local` that is told to end takes all its processes along, and says so by its exit code."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.training.compare import MLP

LONG_ENOUGH = 60
"""Seconds after which a test has hung."""


@pytest.mark.parametrize(
    ("number", "code", "how"),
    [
        (signal.SIGTERM, 143, "terminated"),
        pytest.param(signal.SIGINT, 130, "interrupted", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_the_whole_job(
    number: signal.Signals, code: int, how: str, small_bundle: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "recycle_runtime.cli", "local", small_bundle, "--program", MLP]
    child = subprocess.Popen(
        [*command, "--steps", "1000000", "--plan-ahead", "off", "--log-file", str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stderr is not None
    try:
        while not child.stderr.readline().startswith("step "):
            pass
        child.send_signal(number)
        # This returns when nobody holds stdout and stderr any more: coordinator, agent and workers are gone.
        _, words = child.communicate(timeout=LONG_ENOUGH)
    finally:
        child.kill()
    assert child.returncode == code
    assert words.splitlines()[-1] == f"recycle-run: error: {how}"
