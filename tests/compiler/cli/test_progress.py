"""Progress bars: what they say, that they leave nothing behind, and that they never stop the work."""

import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from recycle_compiler.cli.progress import Plans, can_rewrite, is_shown, plan_progress, simulation_progress
from recycle_runtime.cli.output import Output

ROOT = Path(__file__).resolve().parents[3]
OUTPUT = Output("recyclec", color=False)
SOME = Plans(7).after(0.014, 4.0).after(0.028, 8.0).after(0.0, 12.0)
ERASE_LINE = "\x1b[2K"


def test_words() -> None:
    assert SOME.words() == "3/7 plans  gap 0.0 %, worst 2.8 %"
    assert Plans(1).words() == "0/1 plan"


def test_before_the_first_plan_nothing_is_estimated() -> None:
    assert Plans(1).seconds_left(75.0) is None


def test_an_estimate_that_was_too_low_ends_at_zero() -> None:
    assert SOME.seconds_left(14.0) == 14.0
    assert Plans(2).after(0.0, 10.0).seconds_left(15.0) == 5.0
    assert Plans(2).after(0.0, 10.0).seconds_left(99.0) == 0.0


def test_a_hidden_bar_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with plan_progress("planning", 2, OUTPUT, shown=False) as progress:
        progress(0.5)
    with simulation_progress("simulating", 2, OUTPUT, shown=False) as meter:
        meter.begin("ours")
        meter.advance()
    assert capsys.readouterr() == ("", "")


def test_rich_is_loaded_only_for_a_bar() -> None:
    script = (
        "import sys, recycle_compiler.cli.commands.compile, recycle_compiler.cli.commands.simulate\n"
        "from recycle_compiler.cli.progress import *\n"
        "with plan_progress('', 1, Output('x'), shown=False): pass\n"
        "assert 'rich.progress' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_bar_is_drawn_and_taken_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with plan_progress("planning gpt3", 2, OUTPUT, shown=True) as progress:
        progress(0.5)
    out, drawn = capsys.readouterr()
    assert out == ""
    assert "planning gpt3 " in drawn
    assert "1/2 plans  gap 50.0 %, worst 50.0 %" in drawn
    assert "about 0:00:00 left" in drawn
    assert drawn.rindex(ERASE_LINE) > drawn.rindex("plans")
    assert not drawn[drawn.rindex(ERASE_LINE) + len(ERASE_LINE) :].strip()


def test_a_simulation_names_its_policy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with simulation_progress("simulating gpt3", 4, OUTPUT, shown=True) as meter:
        meter.begin("ours")
        meter.advance()
        meter.begin("oobleck")
    drawn = capsys.readouterr().err
    assert drawn.index("ours") < drawn.index("oobleck") < drawn.rindex(ERASE_LINE)


@pytest.mark.parametrize("columns", [1, 5, 20, 40, 60, 90])
def test_a_bar_takes_one_line(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    with plan_progress("planning gpt3", 2, OUTPUT, shown=True) as progress:
        progress(0.5)
        # A cursor that has to go up would show that a bar took more than one line.
        lines = capsys.readouterr().err
    assert "\x1b[1A" not in lines


class Broken(io.StringIO):
    """A terminal that has gone away."""

    def write(self, s: str, /) -> int:
        raise OSError(5, "Input/output error")


def test_a_terminal_that_is_gone_does_not_stop_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Broken())
    with plan_progress("planning", 2, OUTPUT, shown=True) as progress:
        progress(0.5)
        progress(0.5)


def test_a_system_without_threads_does_not_stop_anything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with plan_progress("planning", 2, OUTPUT, shown=True) as progress:
        progress(0.5)
    assert "1/2 plans" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("term", "rewritten"),
    [("xterm", True), ("linux", True), ("dumb", False), ("unknown", False), ("", False)],
)
def test_only_terminals_that_can_rewrite_a_line_get_one(
    term: str, rewritten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    ours, theirs = os.openpty()
    with os.fdopen(ours), os.fdopen(theirs, "w") as terminal:
        assert can_rewrite(terminal) == rewritten
        monkeypatch.setattr(sys, "stderr", terminal)
        assert is_shown(OUTPUT) == rewritten
        assert not is_shown(Output("recyclec", quiet=True))
    assert not can_rewrite(terminal)
    assert not can_rewrite(io.StringIO())
