"""The journal of a job: one JSON object a line, written before it is acted on.

A line that was cut short by the end of the process is left out; everything before it counts. Whoever goes on
with a journal takes such an end off first, or the next line would be lost with it. While the disk is full,
lines wait in memory, and the job goes on. Participants declare the fields of lines: see `participants`.
"""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from recycle_runtime.files import reason, write_whole
from recycle_runtime.protocol.codec import ProtocolError, decode, encode
from recycle_runtime.protocol.messages.observers import JobEvent

FILE = "journal.jsonl"
_AT_RISK = "training continues, and would end if the coordinator did now"
_LOGGER = logging.getLogger(__name__)


class Field(NamedTuple):
    """A field of lines."""

    kind: Any
    """Its type, as `codec.decode` takes it; `Any`: whoever asks for the value decodes it. A mapping whose
    keys are no texts is written as pairs, since lines are JSON."""
    needs: tuple[str, ...] = ()
    """Fields without which it means nothing."""
    one_for_each: str | None = None
    """A field of the same line that has as many values."""


class JournalLine(NamedTuple):
    """A line that was read."""

    number: int
    fields: Mapping[str, Any]
    """By name; those that nobody declares, from later versions perhaps, are as they were written."""


class Lines(NamedTuple):
    """Everything that stands in a journal."""

    path: str | Path
    all: tuple[JournalLine, ...] = ()

    def values(self, name: str) -> list[Any]:
        """Values of this field, in the order of lines."""
        return [line.fields[name] for line in self.all if name in line.fields]

    def of_last_run(self) -> "Lines":
        """Those since the job began last: a run that resumes makes steps again that stand here already."""
        first = max((at for at, line in enumerate(self.all) if "begins" in line.fields), default=0)
        return Lines(self.path, self.all[first:])


class JournalError(ValueError):
    """A journal that a job cannot go on from, in one sentence."""


class Journal:
    """Appends; `read_lines` is what it comes to."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        _take_off_cut_line(self._path)
        self._file = self._path.open("ab", buffering=0)
        self._unwritten = bytearray()
        """Whole lines, or the rest of one, for which there was no room on the disk."""
        self._trouble: str | None = None
        self._told: str | None = None

    def write(self, **fields: Any) -> None:
        self._unwritten += (json.dumps(encode(fields)) + "\n").encode()
        try:
            while self._unwritten:
                written: int | None = self._file.write(self._unwritten)
                del self._unwritten[: written or 0]
            self._trouble = None
        except OSError as error:
            self._trouble = reason(error)

    def news(self) -> list[JobEvent]:
        """Once: that it cannot be written any more, or again."""
        if self._trouble == self._told:
            return []
        self._told = self._trouble
        if self._trouble is None:
            return [JobEvent(f"{self._path} can be written again")]
        return [JobEvent(f"cannot write {self._path}: {self._trouble}; {_AT_RISK}")]

    def close(self) -> None:
        self._file.close()


class Damaged:
    """Lines that are left out: reported once, however many they are."""

    def __init__(self, path: str | Path) -> None:
        self._path, self._first, self._count = path, 0, 0

    def note(self, line: int) -> None:
        self._first = self._first or line
        self._count += 1

    def say(self) -> None:
        if self._count == 1:
            _LOGGER.warning("%s:%d: damaged, and left out", self._path, self._first)
        elif self._count:
            _LOGGER.warning(
                "%s:%d: damaged, and left out, as are %d lines after it",
                self._path, self._first, self._count - 1,
            )  # fmt: skip


def read_lines(path: str | Path, declared: Mapping[str, Field]) -> Lines:
    """All that are whole; JournalError if one says what such a line cannot say."""
    try:
        text = Path(path).read_bytes()
    except FileNotFoundError:
        return Lines(path)
    lines = text.split(b"\n")
    damaged = Damaged(path)
    found: list[JournalLine] = []
    for number, line in enumerate(lines, 1):
        try:
            row: object = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            try:
                found.append(JournalLine(number, _checked(cast(dict[str, Any], row), declared)))
            except ProtocolError as error:
                raise JournalError(f"{path}:{number}: damaged: {error}") from None
        elif line and number < len(lines):
            damaged.note(number)
    damaged.say()
    return Lines(path, tuple(found))


def _checked(fields: dict[str, Any], declared: Mapping[str, Field]) -> dict[str, Any]:
    known = {name: declared[name] for name in fields if name in declared}
    for name, field in known.items():
        if missing := [other for other in field.needs if other not in fields]:
            raise ProtocolError(f"{name} without {missing[0]}")
    read = {
        name: decode(known[name].kind, value, name)
        if name in known and known[name].kind is not Any
        else value
        for name, value in fields.items()
    }
    for name, field in known.items():
        if field.one_for_each is not None:
            count, wanted = len(read[name]), len(read.get(field.one_for_each, ()))
            if count != wanted:
                raise ProtocolError(f"{name} has {count} values, not {wanted}")
    return read


def _take_off_cut_line(path: Path) -> None:
    """Remove an unfinished last line; nothing has been done because of it."""
    if not path.is_file():
        return
    text = path.read_bytes()
    # A new file: a coordinator before this one that still lives, paused, does not write to it any more.
    whole = text.rfind(b"\n") + 1
    try:
        write_whole(path, text[:whole])
    except OSError:
        # No room for that on the disk.
        os.truncate(path, whole)
