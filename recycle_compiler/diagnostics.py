"""Diagnostics: a mistake in an input, where it is, and how to mend it.

gpt3.job:2:8: error[range]: pipeline must be at least 1, got 0
  pipeline = 0
             ^

hint: one stage means no pipelining
"""

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

EXIT_INPUT_ERROR = 1
EXIT_NO_PLAN = 3

_WIDTH = 100
"""Columns of a source line that are shown; a longer line is cut around its caret."""
_TAB_STOP = 4
_RED, _CYAN, _BOLD, _PLAIN = "\x1b[31m", "\x1b[36m", "\x1b[1m", "\x1b[0m"


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A piece of one source line; line and columns count from 1, the end is not part of it."""

    line: int
    column: int
    end_column: int


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing that is wrong."""

    code: str
    """Stable and kebab-case: people search for it."""
    message: str
    span: Span | None = None
    hint: str | None = None
    no_plan: bool = False
    """The input is well formed, but nothing could be planned for it."""


class CompileError(Exception):
    """Everything wrong with one input; the user's mistake, so it is shown without a traceback."""

    def __init__(
        self,
        diagnostics: Iterable[Diagnostic],
        source: str = "",
        file_name: str = "",
        exit_code: int | None = None,
    ) -> None:
        self.diagnostics = tuple(diagnostics)
        self.source = source
        self.file_name = file_name
        nothing_else = bool(self.diagnostics) and all(one.no_plan for one in self.diagnostics)
        self.exit_code = exit_code or (EXIT_NO_PLAN if nothing_else else EXIT_INPUT_ERROR)
        super().__init__("; ".join(one.message for one in self.diagnostics))

    def render(self, color: bool = False) -> str:
        """All diagnostics as people read them, without a newline at the end."""
        return render(self.diagnostics, self.source, self.file_name, color)


def render(diagnostics: Iterable[Diagnostic], source: str, file_name: str, color: bool = False) -> str:
    """Each diagnostic with its place, its source line, a caret and its hint; a blank line between two."""
    lines = source.split("\n")
    return "\n\n".join("\n".join(_render_one(one, lines, file_name, color)) for one in diagnostics)


def printable_line(text: str) -> str:
    """The text with everything that a terminal would not show, or would obey, spelled out."""
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def _render_one(diagnostic: Diagnostic, lines: list[str], file_name: str, color: bool) -> Iterator[str]:
    def paint(style: str, text: str) -> str:
        return f"{style}{text}{_PLAIN}" if color else text

    span = diagnostic.span
    parts = [printable_line(file_name)] if file_name else []
    if span:
        parts += [str(span.line), str(span.column)]
    place = ":".join(parts)
    label = paint(_BOLD + _RED, f"error[{diagnostic.code}]")
    yield (
        f"{place}: {label}: {printable_line(diagnostic.message)}"
        if place
        else f"{label}: {diagnostic.message}"
    )
    if span and span.line <= len(lines):
        shown, indent, width = _excerpt(lines[span.line - 1], span)
        yield shown
        yield " " * indent + paint(_RED, "^" * width)
    if diagnostic.hint:
        yield ""
        yield f"{paint(_CYAN, 'hint')}: {printable_line(diagnostic.hint)}"


def _excerpt(line: str, span: Span) -> tuple[str, int, int]:
    """The line as a terminal shows it, the cells before the caret, and the caret's own."""
    # A few windows around the caret are enough: the rest of a megabyte line need not be measured.
    first = max(0, span.column - 1 - 2 * _WIDTH)
    start, end = span.column - 1, min(span.end_column - 1, span.column - 1 + _WIDTH)
    before = _cells(line[first:start])
    marked = _cells(line[start:end], len(before)) or " "
    after = _cells(line[end : end + 2 * _WIDTH].rstrip("\r"), len(before) + len(marked))
    width = min(_columns(marked), _WIDTH)
    cut_left = first > 0 or _columns(before) + width > _WIDTH
    if cut_left:
        before = "..." + _last_columns(before, (_WIDTH - width) // 2)
    indent = _columns(before)
    shown = before + marked + after
    if _columns(shown) > _WIDTH:
        shown = _first_columns(shown, max(_WIDTH, indent + width)) + "..."
    return shown.rstrip(), indent, width


def _cells(text: str, offset: int = 0) -> str:
    """Text with tabs turned to spaces and control characters spelled out."""
    shown: list[str] = []
    column = offset
    for character in text:
        if character == "\t":
            piece = " " * (_TAB_STOP - column % _TAB_STOP)
        else:
            piece = character if character.isprintable() else _escape(character)
        shown.append(piece)
        column += _columns(piece)
    return "".join(shown)


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _columns(text: str) -> int:
    """Number of terminal cells that the text takes."""
    return len(text) if text.isascii() else sum(map(_column_count, text))


def _column_count(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _first_columns(text: str, limit: int) -> str:
    used = 0
    for index, character in enumerate(text):
        used += _column_count(character)
        if used > limit:
            return text[:index]
    return text


def _last_columns(text: str, limit: int) -> str:
    return _first_columns(text[::-1], limit)[::-1]
