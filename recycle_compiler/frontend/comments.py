"""The comments of a job file, which the grammar skips and the formatter must keep."""

import re
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from recycle_compiler.diagnostics import Span

_TEXT_OR_COMMENT = re.compile(r'"[^"\n]*"|#[^\n]*')


@dataclass(frozen=True, slots=True)
class Comment:
    """One comment, from its `#` to the end of its line."""

    line: int
    column: int
    text: str

    @property
    def place(self) -> tuple[int, int]:
        return self.line, self.column


class Comments:
    """The comments of a file, to be taken out one after another as the text around them is printed."""

    def __init__(self, source: str) -> None:
        found = _find_comments(source)
        self._places = [comment.place for comment in found]
        self._waiting = deque(found)

    def are_between(self, start: Span, end: Span) -> bool:
        """Whether any comment, taken or not, stands between two places."""
        index = bisect_right(self._places, _place(start))
        return index < len(self._places) and self._places[index] < _place(end)

    def take_before(self, place: Span) -> list[Comment]:
        """Take the comments that stand before a place."""
        taken: list[Comment] = []
        while self._waiting and self._waiting[0].place < _place(place):
            taken.append(self._waiting.popleft())
        return taken

    def take_behind(self, end: Span, following: Span) -> str | None:
        """Take the comment on the line where something ends, unless something else follows there first."""
        if not self._waiting:
            return None
        first = self._waiting[0]
        if first.line != end.line or first.place > _place(following):
            return None
        return self._waiting.popleft().text


def _place(span: Span) -> tuple[int, int]:
    return span.line, span.column


def _find_comments(source: str) -> list[Comment]:
    found: list[Comment] = []
    for number, line in enumerate(source.split("\n"), start=1):
        for match in _TEXT_OR_COMMENT.finditer(line):
            if match[0].startswith("#"):
                found.append(Comment(number, match.start() + 1, match[0].rstrip()))
    return found
