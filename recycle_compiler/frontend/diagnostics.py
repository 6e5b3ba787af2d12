"""Mistakes found while a job is read, reported all at once, and words that messages share."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from recycle_compiler.diagnostics import CompileError, Diagnostic, Span, printable_line
from recycle_compiler.frontend.syntax import Listing, Name, Quantity, Quoted, Repeat, Value

_MOST = 50
"""No reader takes in more mistakes at once, and a hostile file could have a million."""
_LONGEST = 40


@dataclass(slots=True)
class Mistakes:
    """The mistakes found in one file so far."""

    source: str
    file_name: str
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])

    def error(
        self, code: str, message: str, span: Span | None, hint: str | None = None, no_plan: bool = False
    ) -> None:
        """Note one mistake; raises when there are too many to go on."""
        self.diagnostics.append(Diagnostic(code, message, span, hint, no_plan))
        if len(self.diagnostics) >= _MOST:
            self.raise_if_any()

    def raise_if_any(self) -> None:
        """Raise everything that was noted, in the order of the file; do nothing when it is fine."""
        if not self.diagnostics:
            return
        in_order = sorted(self.diagnostics, key=lambda one: one.span or Span(0, 0, 0))
        if len(in_order) >= _MOST:
            message = f"stopped after {len(in_order)} errors"
            in_order.append(Diagnostic("too-many-errors", message, None, "mend the ones above first"))
        raise CompileError(in_order, self.source, self.file_name)


def shorten(text: str) -> str:
    """The text, or its beginning when it would flood the message."""
    text = printable_line(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def quote(text: str) -> str:
    """The user's own text inside a message."""
    return f"`{shorten(text)}`"


def spell(value: Value) -> str:
    """A value as the user wrote it."""
    if isinstance(value, Listing):
        items = ", ".join(_spell_item(item) for item in value.items[:_LONGEST])
        return shorten(f"[{items}]")
    if isinstance(value, Quoted):
        return shorten(f'"{value.text}"')
    return _spell_item(value)


def _spell_item(value: Quantity | Name | Repeat) -> str:
    if isinstance(value, Repeat):
        return f"{_spell_item(value.times)} * {_spell_item(value.item)}"
    return shorten(str(value) if isinstance(value, Quantity) else value.text)


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that the word was probably meant to be."""
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    found = difflib.get_close_matches(word[:_LONGEST].casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def did_you_mean(word: str, candidates: Iterable[str], otherwise: str) -> str:
    """A hint with the closest candidate, or the words given when none is close."""
    found = closest(word, candidates)
    return f"did you mean `{found}`?" if found else otherwise


def any_of(words: Iterable[str]) -> str:
    """`a`, `b` or `c`, in the order given."""
    *most, last = (f"`{word}`" for word in words)
    return f"{', '.join(most)} or {last}" if most else last


def quantity(number: int, noun: str) -> str:
    """`1 stage`, `4 stages`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
