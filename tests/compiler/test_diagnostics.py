"""Rendering of mistakes: place, line, caret, hint."""

from unicodedata import east_asian_width

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.diagnostics import CompileError, Diagnostic, Span, printable_line, render

STAGES = Diagnostic(
    "range", "stages must be at least 1, got 0", Span(2, 8, 9), "one stage means no pipelining"
)


def caret_and_line(line: str, span: Span) -> tuple[str, str]:
    _, shown, caret = render([Diagnostic("x", "y", span)], line, "a.job").split("\n")
    return shown, caret


def test_place_line_caret_hint() -> None:
    error = CompileError([STAGES], "job {\nstages 0\n", "gpt3.job")
    assert error.render() == (
        "gpt3.job:2:8: error[range]: stages must be at least 1, got 0\n"
        "stages 0\n"
        "       ^\n"
        "\n"
        "hint: one stage means no pipelining"
    )


def test_two_diagnostics_have_a_blank_line_between_them() -> None:
    diagnostics = [Diagnostic("a", "first"), Diagnostic("b", "second", hint="try again")]
    assert render(diagnostics, "", "f") == "f: error[a]: first\n\nf: error[b]: second\n\nhint: try again"


def test_without_a_file_the_code_comes_first() -> None:
    assert render([Diagnostic("a", "first")], "", "") == "error[a]: first"


def test_colour_adds_nothing_but_colour() -> None:
    error = CompileError([STAGES], "job {\nstages 0\n", "gpt3.job")
    colored = error.render(color=True)
    assert colored != error.render()
    for code in ("\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[36m"):
        colored = colored.replace(code, "")
    assert colored == error.render()


@pytest.mark.parametrize(
    ("no_plan", "exit_code"), [((False,), 1), ((True,), 3), ((True, True), 3), ((True, False), 1)]
)
def test_exit_code_is_no_plan_only_when_nothing_else_is_wrong(
    no_plan: tuple[bool, ...], exit_code: int
) -> None:
    assert CompileError([Diagnostic("a", "b", no_plan=one) for one in no_plan]).exit_code == exit_code


def test_exit_code_can_be_given() -> None:
    assert CompileError([Diagnostic("a", "b")], exit_code=3).exit_code == 3


def test_the_message_is_readable_without_rendering() -> None:
    assert str(CompileError([Diagnostic("a", "first"), Diagnostic("b", "second")])) == "first; second"


@pytest.mark.parametrize(
    ("line", "span", "shown", "caret"),
    [
        ("\tx = 0", Span(1, 6, 7), "    x = 0", "        ^"),
        ("a\tx", Span(1, 3, 4), "a   x", "    ^"),
        ("\u65e5\u672c = 0", Span(1, 6, 7), "\u65e5\u672c = 0", "       ^"),
        ("\u65e5\u672c = 0", Span(1, 1, 3), "\u65e5\u672c = 0", "^^^^"),
        ("e\u0301 = 0", Span(1, 6, 7), "e\u0301 = 0", "    ^"),
        ("\x1b[31m 0", Span(1, 7, 8), "\\x1b[31m 0", "         ^"),
        ("a \u202e b", Span(1, 3, 4), "a \\u202e b", "  ^^^^^^"),
        ("", Span(1, 1, 2), "", "^"),
        ("ab", Span(1, 3, 4), "ab", "  ^"),
        ("a\r", Span(1, 1, 2), "a", "^"),
    ],
)
def test_the_caret_stands_below_its_text(line: str, span: Span, shown: str, caret: str) -> None:
    assert caret_and_line(line, span) == (shown, caret)


@pytest.mark.parametrize("column", [1, 50, 99, 100, 101, 5_000, 99_990])
def test_a_long_line_is_cut_around_the_caret(column: int) -> None:
    line = "." * (column - 1) + "HERE" + "." * (100_000 - column)
    shown, caret = caret_and_line(line, Span(1, column, column + 4))
    assert len(shown) <= 106
    assert shown[caret.index("^") : len(caret)] == "HERE"
    assert set(shown) <= set(".HERE")


def test_a_long_span_is_cut_too() -> None:
    shown, caret = caret_and_line("9" * 100_000, Span(1, 1, 100_001))
    assert len(shown) <= 106
    assert 90 <= len(caret) <= 106


def test_nothing_reaches_the_terminal_raw() -> None:
    text = render([Diagnostic("a", "got \x1b[2J", hint="\x07")], "", "b\x00.job\udc80")
    assert text == "b\\x00.job\\udc80: error[a]: got \\x1b[2J\n\nhint: \\x07"


@given(st.text(), st.integers(1, 30), st.integers(1, 30))
def test_any_line_can_be_shown(line: str, column: int, width: int) -> None:
    line = line.replace("\n", "")
    text = render([Diagnostic("x", "y", Span(1, column, column + width))], line, "a.job")
    assert all(part.isprintable() for part in text.split("\n"))
    assert text.encode("utf-8")


@given(st.text())
def test_printable_is_printable(text: str) -> None:
    assert printable_line(text).isprintable()
    assert all(east_asian_width(character) for character in printable_line(text))
