"""The file of `--metrics`: one JSON object per line and step, with what happened before it.

Every line is strict JSON: a loss that is not finite is null, and `not_finite` says what it was. What became
of a step is known one step later, so a row is written then, or when the run ends. Workers are
not equally far, so it may also be known before the row is there, of several steps.
"""

import json
import math
import os
import stat
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, cast

from recycle_runtime.files import WriteError, reason
from recycle_runtime.launcher.live_view import event_of
from recycle_runtime.protocol.messages.observers import Hello, JobEnded, ToObserver
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled

_ROWS_HELD = 2
"""Rows held back for their outcomes, which arrive before the second step after them counts, if at all."""
_KEPT = 4096
"""Steps of which it is known what became of them, and whose rows may still come: as many as workers say again
to a coordinator that was started again, where the one that says it may be the first."""
_TAIL_BYTES = 1 << 16
"""Of the file, for the last rows that are there: many more than are held."""


class MetricsFile:
    """Takes the news of a run; use it in a `with` block."""

    def __init__(self, path: str | None) -> None:
        """Behind the rows that are there, but for one that was cut short."""
        self._path = path
        self._file: TextIO | None = None
        self._events: list[str] = []
        self._rows: deque[dict[str, Any]] = deque()
        """The last ones, until it is known what became of their steps."""
        self._settled: dict[int, StepSettled] = {}
        """By step; of those whose rows are not written."""
        self._next = 0
        """The step of the next row, if the job does not go back."""
        self.error: str | None = None
        """Reason why rows are missing."""
        if path is not None:
            _mend(Path(path))
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._write_all()
        if self._file is not None:
            self._file.close()

    def catch_up(self, told: Sequence[StepRow | StepSettled]) -> None:
        """Write the rows that a process before this one has received and not written.

        Of all rows, these are the ones behind the last that is there, so that a row of a step which
        is made again counts as another.
        """
        self._write_all()
        if self._file is None or self._path is None or not os.path.isfile(self._path):
            return
        there = set(map(_key, _last_rows(Path(self._path))))
        first = len(told)
        for place, message in reversed(list(enumerate(told))):
            if isinstance(message, StepRow):
                if _key(_row(message, None)) in there:
                    break
                first = place
        for message in told[first:]:
            self.take(message)

    def take(self, message: ToObserver) -> None:
        if self._file is None:
            return
        match message:
            case StepRow():
                self._rows.append(_row(message, "; ".join(self._events) or None))
                self._events.clear()
                self._next = message.step + 1
                self._write_known()
            case StepSettled():
                self._settled[message.step] = message
                self._settled.pop(message.step - _KEPT, None)
                self._write_known()
            case Hello() if message.next < self._next:
                # The job has gone back to a copy of its state: later steps are made anew.
                self._write_all()
                self._settled.clear()
                self._next = message.next
            case JobEnded():
                self._write_all()
            case _:
                if (words := event_of(message)) is not None:
                    self._events.append(words)

    def _write_known(self) -> None:
        """Rows in their order, but for those of which more will be known."""
        while self._rows and (self._rows[0]["step"] in self._settled or len(self._rows) > _ROWS_HELD):
            self._write(self._rows.popleft())

    def _write_all(self) -> None:
        while self._rows:
            self._write(self._rows.popleft())

    def _write(self, row: dict[str, Any]) -> None:
        settled = self._settled.pop(row["step"], None)
        if settled is not None:
            row |= {"gradient_norm": _finite(settled.norm), "skipped": settled.is_skipped}
        if self._file is None:
            return
        try:
            self._file = self._still_there(self._file)
            self._file.write(json.dumps(row, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            # Training goes on; the exit code says that something is missing.
            self.error = str(WriteError(str(self._path), reason(error)))
            self._file = None

    def _still_there(self, file: TextIO) -> TextIO:
        """The same, or another under its name if somebody has removed it: rows would go to where none can
        read them."""
        status = os.fstat(file.fileno())
        if status.st_nlink or not stat.S_ISREG(status.st_mode):
            return file
        self.error = f"{self._path}: somebody has removed this file during the run, with the rows in it"
        file.close()
        return open(str(self._path), "a", encoding="utf-8")


def _row(message: StepRow, event: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {"step": message.step, "loss": _finite(message.loss)}
    if message.loss is not None and not math.isfinite(message.loss):
        row["not_finite"] = str(message.loss)
    row |= {"learning_rate": message.learning_rate, "gradient_norm": None, "skipped": None}
    row |= {
        "seconds": round(message.seconds, 6),
        "data_wait": round(message.data_wait, 6),
        "live": message.live,
        "plan": message.plan,
        "event": event,
    }
    for name, count in (("samples", message.samples), ("tokens", message.tokens)):
        if count and message.seconds > 0:
            row[f"{name}_per_second"] = round(count / message.seconds, 3)
    if message.choices:
        row["dropped"] = round(message.dropped / message.choices, 6)
    return row


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _key(row: Mapping[str, Any]) -> str:
    """Key that tells a row from others, also from that of the same step before it was made again."""
    return json.dumps([row.get(name) for name in ("step", "loss", "seconds", "data_wait", "live", "plan")])


def _last_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = file.read().splitlines()
    for line in lines:
        # The first may lack its beginning, and somebody else may have written others.
        with suppress(ValueError):
            row: object = json.loads(line)
            if isinstance(row, dict):
                yield cast(dict[str, Any], row)


def _mend(path: Path) -> None:
    """Cut off a last line that was not written to its end."""
    if not path.is_file():
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            file.seek(end - 1)
            if file.read(1) == b"\n":
                break
            end -= 1
        file.truncate(end)
