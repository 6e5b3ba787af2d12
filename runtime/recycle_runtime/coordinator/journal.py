"""What a coordinator that starts again has to know: one JSON object a line, written before it is acted on.

A line that was cut short by the end of the process is left out; everything before it counts.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple, cast

from recycle_runtime.assembly import Worker


class Remembered(NamedTuple):
    """The state at the end of a journal."""

    generation: int
    step: int
    """Where that generation began."""
    places: tuple[Worker, ...]
    """Who trains in it."""
    next_row: int
    """The first step that has not been recorded."""
    bundles: tuple[str, ...]
    """Files with plans made on demand."""


class Journal:
    """Appends; `read` is what it comes to."""

    def __init__(self, path: str | Path) -> None:
        self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115

    def write(self, **fields: Any) -> None:
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(path: str | Path) -> Remembered | None:
    """None when there is nothing to go on from."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    found: Remembered | None = None
    next_row = 0
    bundles: list[str] = []
    for line in text.split(os.linesep):
        try:
            row: object = json.loads(line)
        except ValueError:
            continue
        if not isinstance(row, dict):
            continue
        fields = cast(dict[str, Any], row)
        if "generation" in fields:
            places = tuple(_worker(place) for place in fields["places"])
            found = Remembered(int(fields["generation"]), int(fields["step"]), places, 0, ())
        elif "row" in fields:
            next_row = int(fields["row"]) + 1
        elif "bundle" in fields:
            bundles.append(str(fields["bundle"]))
    return None if found is None else found._replace(next_row=next_row, bundles=tuple(bundles))


def _worker(value: Any) -> Worker:
    pipeline, stage = value
    return int(pipeline), int(stage)
