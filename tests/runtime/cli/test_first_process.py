"""As the first process of a container, whose signals the kernel drops unless they are handled."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from recycle_runtime.protocol.framing import TOKEN

UNSHARE = ("unshare", "--pid", "--fork", "--kill-child")


def _is_allowed(command: Sequence[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run([*command, "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not _is_allowed(UNSHARE), reason="a PID namespace takes unshare and the right to use it")
def test_an_agent_that_waits_for_its_coordinator_ends_when_told(tmp_path: Path) -> None:
    bundle, program = tmp_path / "x.plan", tmp_path / "x.py"
    bundle.touch()
    program.touch()
    command = [*UNSHARE, sys.executable, "-m", "recycle_runtime.cli", "--log-level", "debug", "agent"]
    command += [str(bundle), "--program", str(program), "--coordinator", str(tmp_path / "address")]
    command += ["--workers-per-node", "1", "--state", str(tmp_path / "node")]
    path = str(Path(__file__).parents[3] / "runtime")
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={TOKEN: "t" * 32, "PYTHONPATH": path}
    ) as outer:
        try:
            assert outer.stderr is not None
            # It is process 1 of its own world, and has another number in ours.
            assert "process 1: starts as agent" in outer.stderr.readline()
            (inner,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
            subprocess.run(["kill", "-TERM", inner], check=True)
            assert outer.wait(300) == 128 + 15
            assert outer.stderr.read() == "recycle-run: error: terminated\n"
        finally:
            outer.kill()
