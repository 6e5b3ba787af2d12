"""The line that says how far planning is: what it says, where it fits, and that it never fails."""

import io
import os
import sys
import threading

import pytest

from recycle_compiler.cli.progress import PlanProgress, State, can_rewrite, progress_line, time_words

SOME = State(7).after(0.014, 4.0).after(0.028, 8.0).after(0.0, 12.0)


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (
            120,
            "planning gpt3  ━━━━━━━━━━──────────────  3/7 plans  gap 0.0 %, worst 2.8 %  "
            "14 s, about 14 s left",
        ),
        (90, "planning gpt3  3/7 plans  gap 0.0 %, worst 2.8 %  14 s, about 14 s left"),
        (60, "3/7 plans  gap 0.0 %, worst 2.8 %  14 s, about 14 s left"),
        (40, "3/7 plans  14 s, about 14 s left"),
        (20, "3/7 plans"),
        (5, "3/7 "),
        (1, ""),
        (0, ""),
    ],
)
def test_a_line_is_never_wider_than_the_terminal(columns: int, line: str) -> None:
    assert progress_line("planning gpt3", SOME, 14.0, columns) == line


def test_before_the_first_plan_nothing_is_estimated() -> None:
    line = progress_line("planning gpt3", State(1), 75.0, 120, fancy=False)
    assert line == f"planning gpt3  {'-' * 24}  0/1 plan  1 min 15 s"


def test_an_estimate_that_was_too_low_ends_at_zero() -> None:
    assert State(2).after(0.0, 10.0).seconds_left(15.0) == 5.0
    assert State(2).after(0.0, 10.0).seconds_left(99.0) == 0.0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.9, "0 s"), (59.9, "59 s"), (185.0, "3 min 05 s"), (7_830.0, "2 h 10 min")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert time_words(seconds) == words


def test_a_hidden_line_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with PlanProgress("planning", 2, shown=False) as progress:
        progress.update(0.5)
    assert capsys.readouterr() == ("", "")


def test_the_line_is_rewritten_and_taken_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with PlanProgress("planning", 2, shown=True, clock=lambda: 0.0) as progress:
        progress.update(0.5)
    first = f"planning  {'─' * 24}  0/2 plans  0 s"
    second = f"planning  {'━' * 12}{'─' * 12}  1/2 plans  gap 50.0 %, worst 50.0 %  0 s, about 0 s left"
    assert capsys.readouterr() == ("", f"\r{first}\x1b[K\r{second}\x1b[K\r\x1b[K")


class Broken(io.StringIO):
    """A terminal that has gone away."""

    def write(self, s: str, /) -> int:
        raise OSError(5, "Input/output error")


def test_a_terminal_that_is_gone_does_not_stop_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Broken())
    with PlanProgress("planning", 2, shown=True) as progress:
        progress.update(0.5)
        progress.update(0.5)


def test_a_system_without_threads_does_not_stop_anything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with PlanProgress("planning", 2, shown=True) as progress:
        progress.update(0.5)
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
    assert not can_rewrite(terminal)
    assert not can_rewrite(io.StringIO())
