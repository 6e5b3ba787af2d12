"""The view of a run."""

import io
import os
import pty
from contextlib import suppress
from dataclasses import replace

import pytest

from recycle_runtime.launcher.live_view import event_of, view, view_summary
from recycle_runtime.protocol.messages.observers import (
    Generation,
    Hello,
    JobEnded,
    JobEvent,
    Recovered,
    ToObserver,
)
from recycle_runtime.protocol.messages.steps import StepRow

ROW = StepRow(step=3, loss=0.5, seconds=0.25, live=5, plan="0 1")
GENERATION = Generation(number=2, step=3, plan="0 1", workers=((0, 0), (1, 0), (0, 1)), standbys=1, period=7)


def recovery(*causes: str, step: int = 3) -> Recovered:
    return Recovered(
        generation=2,
        causes=causes,
        step=step,
        undone=2,
        repeated=0.4,
        plan="0 1",
        detection=0.1,
        leaving=0.2,
        regroup=0.3,
        total=0.6,
    )


def test_lines() -> None:
    out = io.StringIO()
    take = view(2, 2, quiet=False, stream=out)
    for message in (GENERATION, ROW, recovery("start"), recovery("1:1 was killed"), Hello(5, 0)):
        take(message)
    assert out.getvalue().splitlines() == [
        "step     3  loss 0.500000  0.250 s",
        "-- 1:1 was killed: continues with step 3, plan 0 1, after 0.600 s",
    ]


def test_steps_at_a_pace() -> None:
    """The first, one after ten seconds, the one behind an event, and the last."""
    lines: list[str] = []
    at = 0.0
    take = view(2, 2, quiet=False, stream=io.StringIO(), row_every=10.0, write=lines.append, now=lambda: at)
    for step in range(20):
        at = float(step)
        take(replace(ROW, step=step))
        if step == 14:
            take(JobEvent("1:1 was killed"))
    take(JobEnded(None, no_plan=False, checkpoint=None, steps=20))
    take(JobEnded(None, no_plan=False, checkpoint=None, steps=20))
    assert [line.split()[1] for line in lines] == ["0", "10", "1:1", "15", "19"]


END = JobEnded(None, no_plan=False, checkpoint=None, steps=5)
KILLED, RESTARTED = recovery("1:1 was killed"), JobEvent("1:1 is restarted")
ARRIVES, JOINS = recovery("1:1 arrives"), recovery("1:1 joins")
WITHOUT = replace(GENERATION, workers=((0, 0), (0, 1), (1, 0)))
WITH = replace(GENERATION, workers=((0, 0), (0, 1), (1, 0), (1, 1)))
NOT_JOINED = "-- 1:1 had not joined when the run ended"


@pytest.mark.parametrize(
    ("news", "is_told"),
    [
        pytest.param([WITHOUT, KILLED, RESTARTED], True, id="it starts"),
        pytest.param([WITHOUT, KILLED, JobEvent("1:1 is started again on a")], True, id="on another node"),
        pytest.param([WITH, RESTARTED, WITHOUT, KILLED], True, id="started before the others go on"),
        pytest.param([WITHOUT, RESTARTED, WITHOUT, ARRIVES], True, id="it waits for its state"),
        pytest.param([WITHOUT, RESTARTED, WITHOUT, recovery("0:0 was killed")], True, id="another failed"),
        pytest.param([WITHOUT, RESTARTED, WITHOUT, ARRIVES, WITH, JOINS], False, id="it trains"),
        pytest.param([WITHOUT, RESTARTED, WITH, ARRIVES], False, id="it was needed at once"),
        pytest.param([WITHOUT, RESTARTED, WITHOUT, ARRIVES, WITHOUT, KILLED], True, id="it failed again"),
        pytest.param([WITHOUT, RESTARTED, JobEvent("1:1 failed: no disk")], False, id="it failed at once"),
        pytest.param([WITHOUT, RESTARTED, Hello(5, 3)], False, id="the coordinator restarted"),
        pytest.param([WITHOUT, KILLED], False, id="nobody has restarted it"),
    ],
)
def test_a_worker_that_has_not_joined_when_the_run_ends(news: list[ToObserver], is_told: bool) -> None:
    out = io.StringIO()
    take = view(2, 2, quiet=False, stream=out)
    for message in (Hello(5, 0), *news, END, END):
        take(message)
    assert [line for line in out.getvalue().splitlines() if "ended" in line] == [NOT_JOINED] * is_told


def test_several_that_have_not_joined_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    drawn: list[str] = []
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as out:
        take = view(2, 2, quiet=False, stream=out, write=drawn.append)
        for message in (WITHOUT, JobEvent("10:1 is restarted"), RESTARTED, END):
            take(message)
    os.close(master)
    assert "  3 workers; 1 of them on standby; 10:1, 1:1 had not joined when the run ended" in drawn[-1]


def test_quiet() -> None:
    out = io.StringIO()
    take = view(2, 2, quiet=True, stream=out)
    take(ROW)
    assert out.getvalue() == ""


def everything(master: int) -> str:
    """All that was written to a terminal whose other end is closed; it may come in pieces."""
    drawn = b""
    with suppress(OSError):
        while piece := os.read(master, 1 << 16):
            drawn += piece
    os.close(master)
    return drawn.decode()


def test_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as out:
        take = view(2, 2, quiet=False, stream=out)
        for message in (GENERATION, ROW, recovery("1:1 was killed"), Hello(5, 0)):
            take(message)
    drawn = everything(master)
    last = drawn.split("\x1b[")[-8:]
    assert "step 3  loss 0.500000" in drawn
    assert any("pipeline   0  # #" in line for line in last)
    assert any("pipeline   1  # ." in line for line in last)
    assert any("3 workers; 1 of them on standby; 1:1 was killed" in line for line in last)


def test_who_trains_is_not_known_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a coordinator that goes on with a generation, on a terminal that is gone meanwhile."""
    monkeypatch.setenv("TERM", "xterm")
    drawn: list[str] = []
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as out:
        take = view(2, 1, quiet=False, stream=out, write=drawn.append)
        os.close(master)
        take(ROW)
    assert "pipeline   0  ? ?\n" in drawn[0]
    assert "  5 workers; starting\n" in drawn[0]


def test_events() -> None:
    assert event_of(ROW) is None
    assert event_of(recovery("start")) is None
    assert event_of(JobEvent("1:1 is restarted")) == "1:1 is restarted"


def test_nothing_to_sum_up() -> None:
    assert view_summary([], [0, 1], 2) == ""
    assert view_summary([recovery("start")], [0, 1], 2) == ""


def test_a_summary() -> None:
    text = view_summary([recovery("start"), recovery("1:1 was killed", step=12)], [0, 1, 1, 3], 5)
    head, line, last = text.splitlines()
    assert head.split() == ["step", "detection", "leaving", "regroup", "total", "repeated", "undone", "cause"]
    assert line.split()[:4] == ["12", "0.100", "s", "0.200"]
    assert line.endswith("  1:1 was killed")
    assert last == "of 5 steps, 2 are missing and 1 counted twice"
