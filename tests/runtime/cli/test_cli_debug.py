"""`--debug P:S`: a debugger in one worker, on the terminal that the job was started from."""

import os
import pty
import signal
import sys
from pathlib import Path

import pytest

from tests.runtime.recovery.watched import TINY
from tests.runtime.training.compare import changed

STOPS_ONCE = """
_loss, _stops = loss, [True]


def loss(output, target):
    if _stops.pop() if _stops else False:
        answer = 6 * 7
        breakpoint()
    return _loss(output, target)
"""
RAISES = """
def loss(output, target):
    answer = 6 * 7
    raise ValueError("out of luck")
"""


def read_until(terminal: int, word: str) -> str:
    said = ""
    while word not in said:
        said += os.read(terminal, 4096).decode()
    return said


def on_terminal(program: str, bundle: str, steps: str) -> tuple[int, int]:
    """The process of a job, and the other end of its terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        command = [sys.executable, "-m", "recycle_runtime.cli", "local", bundle, "--program", program]
        os.execv(sys.executable, [*command, "--steps", steps, "--debug", "1:1", "--heartbeat-timeout", "0.5"])
    return pid, terminal


def finish(pid: int, terminal: int) -> tuple[int, str]:
    said = ""
    try:
        while more := os.read(terminal, 4096):
            said += more.decode()
    except OSError:
        # The last process that had it open has ended.
        pass
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said


def test_a_breakpoint(tmp_path: Path, square: str) -> None:
    """Of one worker: the others pass theirs by, and nobody is killed meanwhile."""
    pid, terminal = on_terminal(changed(tmp_path, TINY, STOPS_ONCE), square, "3")
    read_until(terminal, "(Pdb) ")
    os.write(terminal, b"p answer + 1000\n")
    assert "1042" in read_until(terminal, "(Pdb) ")
    os.write(terminal, b"c\n")
    status, said = finish(pid, terminal)
    assert status == 0, said
    assert "3 steps, 4 workers" in said
    assert "(Pdb)" not in said


@pytest.mark.slow
def test_an_error(tmp_path: Path, square: str) -> None:
    pid, terminal = on_terminal(changed(tmp_path, TINY, RAISES), square, "3")
    read_until(terminal, "(Pdb) ")
    os.write(terminal, b"p answer + 1000\n")
    assert "1042" in read_until(terminal, "(Pdb) ")
    os.write(terminal, b"q\n")
    status, said = finish(pid, terminal)
    assert status == 1
    assert "ValueError: out of luck" in said


@pytest.mark.slow
def test_an_interrupt_opens_the_debugger(tmp_path: Path, square: str) -> None:
    """And ends nothing."""
    pid, terminal = on_terminal(TINY, square, "1000000")
    read_until(terminal, "step ")
    os.write(terminal, b"\x03")
    read_until(terminal, "(Pdb) ")
    os.write(terminal, b"p 6 * 7 + 1000\n")
    assert "1042" in read_until(terminal, "(Pdb) ")
    # At the prompt it drops the line.
    os.write(terminal, b"oops\x03")
    read_until(terminal, "(Pdb) ")
    os.write(terminal, b"c\n")
    read_until(terminal, "step ")
    os.kill(pid, signal.SIGTERM)
    status, said = finish(pid, terminal)
    assert status == 143, said
