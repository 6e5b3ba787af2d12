"""Pieces of the canonical form: how one value, setting or block reads on a line."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from recycle_compiler.frontend.syntax import (
    Block,
    Braces,
    Entry,
    Listing,
    Name,
    Quantity,
    Quoted,
    Setting,
    Value,
    end_of,
    start_of,
)

_Item = TypeVar("_Item")

WIDTH = 100
_COMMENT_COLUMN = 60
"""Code that is longer than this does not push the comments of other lines further right."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of output: code, and the comment behind it."""

    code: str
    comment: str | None = None


def one_line(piece: Entry | Value | Braces) -> str:
    """Any piece of syntax on a single line, without its comments."""
    if isinstance(piece, Setting):
        return f"{piece.key.text} = {one_line(piece.value)}"
    if isinstance(piece, Name):
        return piece.text
    if isinstance(piece, Quantity):
        return str(piece)
    if isinstance(piece, Quoted):
        return f'"{piece.text}"'
    if isinstance(piece, Listing):
        return f"[{', '.join(map(one_line, piece.items))}]"
    if isinstance(piece, Block):
        return f"{head_of(piece)} {one_line(piece.braces)}" if piece.braces else head_of(piece)
    inside = "  ".join(map(one_line, piece.entries))
    return f"{{ {inside} }}" if inside else "{ }"


def head_of(block: Block) -> str:
    """What stands before the braces of a block."""
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
            and end_of(rows[-1][-1]).line == start_of(entry).line
        )
        if joins:
            rows[-1].append(entry)
        else:
            rows.append([entry])
    return rows


def with_next(items: Sequence[_Item]) -> Iterator[tuple[_Item, _Item | None]]:
    """Each item and the one after it; None after the last."""
    return zip(items, (*items[1:], None), strict=False)


def fill(items: Iterable[Value], indent: str) -> Iterator[str]:
    """The items of a long list, as many on a line as fit."""
    line = indent
    words = [one_line(item) for item in items]
    for word in [*(f"{word}," for word in words[:-1]), *words[-1:]]:
        if line != indent and len(line) + 1 + len(word) > WIDTH:
            yield line
            line = indent
        line += word if line == indent else f" {word}"
    yield line


def align_comments(lines: Sequence[Line]) -> Iterator[str]:
    """Lines of text, the comments behind code in one column."""
    widths = [len(line.code) for line in lines if line.comment]
    column = max((width for width in widths if width <= _COMMENT_COLUMN), default=0)
    for line in lines:
        yield f"{line.code.ljust(column)}  {line.comment}" if line.comment else line.code
