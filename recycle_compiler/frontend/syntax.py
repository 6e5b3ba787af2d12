"""The job file as it was written: names, values and where each of them stands."""

from dataclasses import dataclass

from recycle_compiler.diagnostics import Span


@dataclass(frozen=True, slots=True)
class Name:
    """A bare word: a key, a switch such as `stagger`, or a value such as `unlimited`."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number, kept as it was spelled, and its unit when it has one."""

    digits: str
    unit: Name | None
    span: Span

    def __str__(self) -> str:
        if self.unit is None:
            return self.digits
        return self.digits + self.unit.text if self.unit.text == "%" else f"{self.digits} {self.unit.text}"


@dataclass(frozen=True, slots=True)
class Quoted:
    """The text between double quotes."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Repeat:
    """`96 * 6.6` in a list: the same value so many times."""

    times: Quantity
    item: Quantity | Name

    @property
    def span(self) -> Span:
        """From how often to the value, or to the end of the first line."""
        first, last = self.times.span, self.item.span
        return first if first.line != last.line else Span(first.line, first.column, last.end_column)


@dataclass(frozen=True, slots=True)
class Listing:
    """Values in brackets, one per stage or layer; the spans are those of the brackets."""

    items: tuple[Quantity | Name | Repeat, ...]
    span: Span
    close: Span


Value = Quantity | Name | Quoted | Listing


@dataclass(frozen=True, slots=True)
class SyntaxSetting:
    """`key = value`."""

    key: Name
    value: Value


@dataclass(frozen=True, slots=True)
class Braces:
    """`{ ... }`; the spans are those of the braces."""

    open: Span
    entries: "tuple[Entry, ...]"
    close: Span


@dataclass(frozen=True, slots=True)
class Block:
    """`head { ... }`, `head variant { ... }`, `head variant` or `head from "file"`."""

    head: Name
    variant: Name | None
    file: Quoted | None
    braces: Braces | None

    @property
    def entries(self) -> "tuple[Entry, ...]":
        return self.braces.entries if self.braces else ()


Entry = SyntaxSetting | Block | Name


@dataclass(frozen=True, slots=True)
class Job:
    """A whole file."""

    start: Span
    name: Name
    braces: Braces


def name_of(entry: Entry) -> Name:
    """The first word of an entry; empty when the parser put it in to get past a mistake."""
    if isinstance(entry, SyntaxSetting):
        return entry.key
    return entry.head if isinstance(entry, Block) else entry


def entry_start(entry: Entry) -> Span:
    """Span of the first token of an entry."""
    return name_of(entry).span


def end_of(entry: Entry) -> Span:
    """Span of the last token of an entry."""
    if isinstance(entry, SyntaxSetting):
        return end_of_value(entry.value)
    if isinstance(entry, Name):
        return entry.span
    if entry.braces:
        return entry.braces.close
    last = entry.file or entry.variant or entry.head
    return last.span


def end_of_value(value: Value | Repeat) -> Span:
    """Span of the last token of a value; a list or a unit may end on a later line."""
    if isinstance(value, Listing):
        return value.close
    if isinstance(value, Repeat):
        return end_of_value(value.item)
    return value.unit.span if isinstance(value, Quantity) and value.unit else value.span
