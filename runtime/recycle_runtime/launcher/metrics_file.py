"""The file of `--metrics`: one JSON object per line and step, with what happened before it.

Every line is strict JSON: a loss that is not finite is null, and `not_finite` says what it was. What became
of a step is known one step later, so a row is written then, or when the run ends.
"""

import json
import math
import os
from pathlib import Path
from typing import Any, TextIO

from recycle_runtime.files import WriteError, reason
from recycle_runtime.launcher.live_view import event_of
from recycle_runtime.protocol.messages import JobEnded, StepRow, StepSettled, ToObserver


class MetricsFile:
    """Takes the news of a run; use it in a `with` block."""

    def __init__(self, path: str | None, *, goes_on: bool = False) -> None:
        """`goes_on`: behind the rows that are there, but for one that was cut short."""
        self._path = path
        self._file: TextIO | None = None
        self._events: list[str] = []
        self._row: dict[str, Any] | None = None
        """The last one, until it is known what became of its step."""
        self._settled: StepSettled | None = None
        self.error: str | None = None
        """Why rows are missing."""
        if path is not None:
            if goes_on:
                _mend(Path(path))
            self._file = open(path, "a" if goes_on else "w", encoding="utf-8")  # noqa: SIM115

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._write()
        if self._file is not None:
            self._file.close()

    def take(self, message: ToObserver) -> None:
        if self._file is None:
            return
        match message:
            case StepRow():
                self._write()
                self._row = _row(message, "; ".join(self._events) or None)
                self._events.clear()
                self._complete()
            case StepSettled():
                # It may come before the row: other workers say when they have made the step.
                self._settled = message
                self._complete()
            case JobEnded():
                self._write()
            case _:
                if (words := event_of(message)) is not None:
                    self._events.append(words)

    def _complete(self) -> None:
        row, settled = self._row, self._settled
        if row is None or settled is None or row["step"] != settled.step:
            return
        row |= {"gradient_norm": _finite(settled.norm), "skipped": settled.is_skipped}
        self._write()

    def _write(self) -> None:
        row, self._row = self._row, None
        if row is None or self._file is None:
            return
        try:
            self._file.write(json.dumps(row, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            # Training goes on; the exit code says that something is missing.
            self.error = str(WriteError(str(self._path), reason(error)))
            self._file = None


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
    return row


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


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
