"""The canonical form of a job file: `recyclec fmt`.

A block goes on one line where it fits and has no comments inside; in a longer block, settings stay grouped
in lines as they were. Order, spelling of numbers, units, comments and single blank lines are kept.
"""

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from recycle_compiler.diagnostics import Span
from recycle_compiler.frontend.load import parse_for_format
from recycle_compiler.frontend.syntax import (
    Block,
    Braces,
    Entry,
    Job,
    Listing,
    Name,
    Quantity,
    Quoted,
    Repeat,
    SyntaxSetting,
    Value,
    end_of,
    end_of_value,
    entry_start,
)

_TEXT_OR_COMMENT = re.compile(r'"[^"\n]*"|#[^\n]*')
_Item = TypeVar("_Item")
WIDTH = 100
_COMMENT_COLUMN = 60
"""Code that is longer than this does not push the comments of other lines further right."""
_INDENT = "  "
_END_OF_FILE = Span(1 << 62, 1, 2)


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
        """True if any comment, taken or not, stands between two places."""
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


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of output: code, and the comment behind it."""

    code: str
    comment: str | None = None


def one_line(piece: Entry | Value | Repeat | Braces) -> str:
    """Any piece of syntax on a single line, without its comments."""
    if isinstance(piece, SyntaxSetting):
        return f"{piece.key.text} = {one_line(piece.value)}"
    if isinstance(piece, Name):
        return piece.text
    if isinstance(piece, Quantity):
        return str(piece)
    if isinstance(piece, Quoted):
        return f'"{piece.text}"'
    if isinstance(piece, Repeat):
        return f"{piece.times} * {one_line(piece.item)}"
    if isinstance(piece, Listing):
        return f"[{', '.join(map(one_line, piece.items))}]"
    if isinstance(piece, Block):
        return f"{head_of(piece)} {one_line(piece.braces)}" if piece.braces else head_of(piece)
    inside = "  ".join(map(one_line, piece.entries))
    return f"{{ {inside} }}" if inside else "{ }"


def head_of(block: Block) -> str:
    """Text before the braces of a block."""
    if block.file:
        return f'{block.head.text} from "{block.file.text}"'
    return f"{block.head.text} {block.variant.text}" if block.variant else block.head.text


def rows_of(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Entries that stood on one line together; a block is always by itself."""
    rows: list[list[Entry]] = []
    for entry in entries:
        joins = (
            bool(rows)
            and not isinstance(entry, Block)
            and not isinstance(rows[-1][-1], Block)
            and end_of(rows[-1][-1]).line == entry_start(entry).line
        )
        if joins:
            rows[-1].append(entry)
        else:
            rows.append([entry])
    return rows


def with_next(items: Sequence[_Item]) -> Iterator[tuple[_Item, _Item | None]]:
    """Each item and the one after it; None after the last."""
    return zip(items, (*items[1:], None), strict=False)


def fill(items: Iterable[Value | Repeat], indent: str) -> Iterator[str]:
    """The items of a long list, as many on a line as fit."""
    line = indent
    words = [one_line(item) for item in items]
    for word in [*(f"{word}," for word in words[:-1]), *words[-1:]]:
        if line != indent and len(line) + 1 + len(word) > WIDTH:
            yield line
            line = indent
        line += word if line == indent else f" {word}"
    yield line


def align_comments(lines: Sequence[SourceLine]) -> Iterator[str]:
    """Lines of text, the comments behind code in one column."""
    widths = [len(line.code) for line in lines if line.comment]
    column = max((width for width in widths if width <= _COMMENT_COLUMN), default=0)
    for line in lines:
        yield f"{line.code.ljust(column)}  {line.comment}" if line.comment else line.code


def format_job(source: str, file_name: str) -> str:
    """The text in canonical form; raises CompileError when it is not a job."""
    job = parse_for_format(source, file_name)
    return _Formatter(source, job).text()


class _Formatter:
    """Prints syntax, and between its pieces the comments that stand there in the source."""

    def __init__(self, source: str, job: Job) -> None:
        self._job = job
        self._comments = Comments(source)
        self._source_lines = source.split("\n")
        self._lines: list[SourceLine] = []
        blocks = [entry for entry in job.braces.entries if isinstance(entry, Block) and entry.braces]
        self._widest_head = max((len(head_of(block)) for block in blocks), default=0)
        self._head_widths = self._group_heads()

    def text(self) -> str:
        job = self._job
        fresh = self._print_comments(job.start, "", fresh=True)
        if not fresh:
            self._keep_blank(job.start)
        self._hoist_comments(job.braces.open, "")
        self._print_braces(f"job {job.name.text}", job.braces, "", _END_OF_FILE)
        self._print_comments(_END_OF_FILE, "", fresh=False)
        return "".join(f"{line}\n" for line in align_comments(self._lines))

    def _print_braces(self, head: str, braces: Braces, indent: str, following: Span) -> None:
        """A head and its braces over several lines."""
        first = entry_start(braces.entries[0]) if braces.entries else braces.close
        self._print(f"{indent}{head} {{", self._comments.take_behind(braces.open, first))
        inner = indent + _INDENT
        rows = rows_of(braces.entries)
        fresh = True
        for row, following_row in with_next(rows):
            start = entry_start(row[0])
            fresh = self._print_comments(start, inner, fresh)
            if not fresh:
                self._keep_blank(start)
            self._print_row(row, inner, entry_start(following_row[0]) if following_row else braces.close)
            fresh = False
        self._print_comments(braces.close, inner, fresh)
        self._print(f"{indent}}}", self._comments.take_behind(braces.close, following))

    def _print_row(self, row: Sequence[Entry], indent: str, following: Span) -> None:
        first, last = row[0], row[-1]
        if isinstance(first, Block):
            self._print_block(first, indent, following)
            return
        code = indent + "  ".join(one_line(entry) for entry in row)
        if len(code) <= WIDTH and not self._comments.are_between(entry_start(first), end_of(last)):
            self._print(code, self._comments.take_behind(end_of(last), following))
            return
        for entry, next_entry in with_next(row):
            self._print_alone(entry, indent, entry_start(next_entry) if next_entry else following)

    def _print_alone(self, entry: Entry, indent: str, following: Span) -> None:
        """One setting, its list over several lines when it is long or has comments inside."""
        end = end_of(entry)
        code = indent + one_line(entry)
        listing = entry.value if isinstance(entry, SyntaxSetting) else None
        if not isinstance(entry, SyntaxSetting) or not isinstance(listing, Listing):
            self._hoist_comments(end, indent)
            self._print(code, self._comments.take_behind(end, following))
            return
        self._hoist_comments(listing.span, indent)
        has_comments = self._comments.are_between(listing.span, listing.close)
        if len(code) <= WIDTH and not has_comments:
            self._print(code, self._comments.take_behind(end, following))
            return
        self._print(f"{indent}{entry.key.text} = [", None)
        if has_comments:
            self._print_items(listing, indent + _INDENT)
        else:
            for line in fill(listing.items, indent + _INDENT):
                self._print(line, None)
        self._print(f"{indent}]", self._comments.take_behind(end, following))

    def _print_items(self, listing: Listing, indent: str) -> None:
        """One item a line, so that each keeps its comment."""
        for item, next_item in with_next(listing.items):
            self._hoist_comments(item.span, indent)
            code = indent + one_line(item) + ("," if next_item else "")
            following = next_item.span if next_item else listing.close
            self._print(code, self._comments.take_behind(end_of_value(item), following))
        self._hoist_comments(listing.close, indent)

    def _print_block(self, block: Block, indent: str, following: Span) -> None:
        braces, head = block.braces, head_of(block)
        if braces is None:
            self._hoist_comments(end_of(block), indent)
            self._print(indent + head, self._comments.take_behind(end_of(block), following))
            return
        self._hoist_comments(braces.open, indent)
        head = head.ljust(self._head_widths[block.head.span])
        if not self._fits_one_line(braces):
            self._print_braces(head, braces, indent, following)
            return
        code = f"{indent}{head} {one_line(braces)}"
        self._print(code, self._comments.take_behind(braces.close, following))

    def _fits_one_line(self, braces: Braces) -> bool:
        # Measured with the widest head of the job: how heads are padded depends on what is on one line.
        width = len(_INDENT) + self._widest_head + 1 + len(one_line(braces))
        return width <= WIDTH and not self._comments.are_between(braces.open, braces.close)

    def _group_heads(self) -> dict[Span, int]:
        """Width that the head of each block is padded to, so that neighbours' braces are aligned."""
        groups: list[list[Block]] = []
        previous: Block | None = None
        for entry in self._job.braces.entries:
            if not isinstance(entry, Block) or entry.braces is None:
                previous = None
                continue
            if previous and self._stands_right_below(previous, entry):
                groups[-1].append(entry)
            else:
                groups.append([entry])
            previous = entry
        widths: dict[Span, int] = {}
        for group in groups:
            width = max(len(head_of(block)) for block in group)
            widths |= {block.head.span: width for block in group}
        return widths

    def _stands_right_below(self, upper: Block, lower: Block) -> bool:
        if upper.braces is None or lower.braces is None or not self._fits_one_line(upper.braces):
            return False
        # A comment on the line of the upper one's brace stays there, any other comes in between.
        end, start = upper.braces.close, lower.head.span
        between = start if start.line == end.line else Span(end.line + 1, 0, 0)
        return not self._has_blank_above(start) and not self._comments.are_between(between, lower.braces.open)

    def _print(self, code: str, comment: str | None) -> None:
        self._lines.append(SourceLine(code, comment))

    def _keep_blank(self, start: Span) -> None:
        if self._has_blank_above(start):
            self._print("", None)

    def _has_blank_above(self, start: Span) -> bool:
        """True if something is the first on its line and the line above is blank."""
        above, before = (
            self._source_lines[start.line - 2],
            self._source_lines[start.line - 1][: start.column - 1],
        )
        return start.line > 1 and not above.strip() and not before.strip()

    def _print_comments(self, place: Span, indent: str, fresh: bool) -> bool:
        """Comments before a place, on lines of their own; `fresh` until something is printed in a block."""
        for comment in self._comments.take_before(place):
            if not fresh:
                self._keep_blank(Span(comment.line, comment.column, comment.column + 1))
            self._print(indent + comment.text, None)
            fresh = False
        return fresh

    def _hoist_comments(self, place: Span, indent: str) -> None:
        """Comments in the middle of something that goes on one line are put above it."""
        for comment in self._comments.take_before(place):
            self._print(indent + comment.text, None)
