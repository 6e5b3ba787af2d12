"""The view of a run from within the process that leads it."""

import os
import pty
import sys
import termios

import pytest

from recycle_runtime.cli.options.watching import steady_view
from recycle_runtime.cli.output import Output
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.protocol.messages.steps import StepRow


def row(step: int) -> StepRow:
    return StepRow(step, loss=0.5, seconds=0.25, live=2, plan="0")


def test_it_does_not_wait_for_a_terminal_that_is_paused(pair: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        show = steady_view(Bundle.read(pair), Output("recycle-run"))
        termios.tcflow(slave, termios.TCOOFF)
        show(row(1))
        termios.tcflow(slave, termios.TCOON)
        show(row(2))
        assert b"step 2  loss 0.5" in (drawn := os.read(master, 1 << 16))
        assert b"step 1" not in drawn
    os.close(master)


def test_it_does_not_end_with_a_disk_that_is_full(pair: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        show = steady_view(Bundle.read(pair), Output("recycle-run"))
        show(row(1))
        show(row(2))


@pytest.mark.parametrize("quiet", [False, True])
def test_it_is_quiet_if_asked_for(pair: str, capsys: pytest.CaptureFixture[str], quiet: bool) -> None:
    steady_view(Bundle.read(pair), Output("recycle-run", quiet=quiet))(row(1))
    assert capsys.readouterr().err == ("" if quiet else "step     1  loss 0.500000  0.250 s\n")
