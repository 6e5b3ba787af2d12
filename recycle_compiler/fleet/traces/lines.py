"""Lines of a trace with their places, and what all formats check alike."""

from collections.abc import Iterator
from math import isfinite
from typing import NamedTuple

from recycle_compiler.diagnostics import Span
from recycle_compiler.fleet.traces.trace import LONGEST, MOST_NODES
from recycle_compiler.frontend.diagnostics import Mistakes, quote
from recycle_compiler.ir.units import plural


class LineField(NamedTuple):
    """A piece of a line, without blanks around it."""

    text: str
    span: Span


def meaningful(source: str) -> Iterator[tuple[int, str]]:
    """Lines that say something, with their numbers; `#` begins a comment."""
    for number, line in enumerate(source.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line


def whole_line(number: int, line: str) -> Span:
    """From the first character that is no blank to the last."""
    begin = len(line) - len(line.lstrip())
    return Span(number, begin + 1, max(len(line.rstrip()), begin + 1) + 1)


def fields(number: int, line: str) -> list[LineField]:
    """Fields of a line, separated by commas."""
    found: list[LineField] = []
    column = 0
    for piece in line.split(","):
        begin = column + len(piece) - len(piece.lstrip())
        text = piece.strip()
        found.append(LineField(text, Span(number, begin + 1, begin + 1 + max(1, len(text)))))
        column += len(piece) + 1
    return found


class Times:
    """Checks the times of lines, and counts those that come before a line above them."""

    def __init__(self, report: Mistakes) -> None:
        self._report = report
        self._lines = self._early = 0
        self.latest = 0.0

    def check(self, at: float, span: Span) -> bool:
        """True if an event may happen then."""
        if at > LONGEST:
            found = f"{at:.4g} s" if isfinite(at) else "a time without end"
            message = f"a trace lasts at most {LONGEST / 86400 / 366:.0f} years, got {found}"
            self._report.error("range", message, span, "check the unit of the times")
            return False
        self._lines += 1
        self._early += at < self.latest
        self.latest = max(self.latest, at)
        return True

    @property
    def note(self) -> str:
        """Note about lines out of order; empty if there are none."""
        if not self._early:
            return ""
        are = "is" if self._early == 1 else "are"
        return f"{self._early:,} of {plural(self._lines, 'line')} {are} out of order and sorted by time"


class Presence:
    """Checks that no node is added twice or removed while it is not there."""

    hint = "a machine is added before it is removed; those of the beginning are added at time 0"
    """For a removal of what is not there."""

    def __init__(self, report: Mistakes) -> None:
        self._report = report
        self.there: dict[str, int] = {}
        """Machines that are there, and the line of their coming."""
        self._left: dict[str, int] = {}

    def add(self, node: str, span: Span) -> bool:
        """True if it can come."""
        if node in self.there:
            line = self.there[node]
            since = f"since line {line}" if line else "from the beginning"
            message = f"{quote(node)} cannot be added: it is there {since}"
            self._report.error("duplicate", message, span, "remove one of the lines, or give it another name")
            return False
        if len(self.there) >= MOST_NODES:
            self._report.error("too-large", f"a trace has at most {MOST_NODES:,} machines at a time", span)
            return False
        self.there[node] = span.line
        return True

    def remove(self, node: str, span: Span) -> bool:
        """True if it can go."""
        if node not in self.there:
            line = self._left.get(node)
            why = f"it was removed on line {line} already" if line else "no line before has added it"
            self._report.error("impossible", f"{quote(node)} cannot be removed: {why}", span, self.hint)
            return False
        del self.there[node]
        self._left[node] = span.line
        return True
