"""Output of a benchmark: sections of prose and one table each, as text for a terminal or Markdown."""

import os
import platform
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JOBS = ROOT / "bench" / "jobs"
_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Section:
    """One table, what it shows, and the command that made it."""

    title: str
    command: str
    words: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    origin: str = ""
    """In words, how it was made if not all at once."""

    def text(self) -> str:
        """For a terminal."""
        table = [self.columns, *self.rows]
        return "\n".join([self.title, *(f"  {line}" for line in _aligned(table)), ""])

    def markdown(self) -> str:
        """For the docs, with the day and the machine it was made on."""
        rule = ("---", *("---:" for _ in self.columns[1:]))
        table = [f"| {' | '.join(row)} |" for row in (self.columns, rule, *self.rows)]
        made = f"`{self.command}`, {self.origin or time.strftime('%Y-%m-%d')}, {machine()}"
        words, said = (textwrap.wrap(each, _WIDTH) for each in (self.words, f"Made by {made}."))
        return "\n".join([f"## {self.title}", "", *words, "", *table, "", *said, ""])


def job_path(name: str) -> Path:
    """The file of a benchmark job."""
    return JOBS / f"{name}.job"


def machine() -> str:
    """This machine, in words."""
    cores = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    counted = {1: "one core", 2: "two cores"}.get(cores, f"{cores} cores")
    return f"{counted}, {memory:.0f} GiB, Python {platform.python_version()}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Words to the left, everything else to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
