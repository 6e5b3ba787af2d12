"""What may watch the passes: files of numbered IR, and IR printed when it changes."""

import sys
from collections.abc import Sequence
from pathlib import Path

from recycle_compiler.ir.levels import Level, print_level
from recycle_compiler.passes.pipeline import Observer


def observers_for(dump_dir: str | None, print_after_change: bool) -> Sequence[Observer]:
    """The observers that the command line asks for."""
    observers: list[Observer] = []
    if dump_dir is not None:
        observers.append(Dump(Path(dump_dir)))
    if print_after_change:
        observers.append(PrintChanges())
    return observers


class Dump:
    """Writes DIR/<failures>-failed/<number>-<pass>.txt."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, number: int, name: str, value: Level) -> None:
        folder = self._folder / f"{len(value.failed)}-failed"
        folder.mkdir(exist_ok=True)
        (folder / f"{number:02}-{name}.txt").write_text(print_level(value), encoding="utf-8")


class PrintChanges:
    """Prints to stderr what each pass made, unless it left the text as it was."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, number: int, name: str, value: Level) -> None:
        text = print_level(value)
        if text != self._last:
            sys.stderr.write(f"after {number:02} {name}:\n{text}\n")
        self._last = text
