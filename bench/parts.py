"""Parts of a benchmark, kept in a folder: long tables are made job by job, in several runs.

Where BENCH_PARTS names a folder, a part that lies there is read, and one that does not is made and put there,
with the day and the revision it was made at. Without it everything is made at once.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.report import ROOT

_FOLDER = "BENCH_PARTS"


class Parts:
    """Of one benchmark."""

    def __init__(self, benchmark: str) -> None:
        self._benchmark = benchmark
        self._origins: dict[tuple[str, str], list[str]] = {}
        """Parts, by the day and the revision that they were made at."""

    def value(self, part: str, make: Callable[[], Any]) -> Any:
        """The value that a part has found, as JSON has it."""
        if not (folder := os.environ.get(_FOLDER)):
            return make()
        path = Path(folder) / self._benchmark / f"{part}.json"
        if not path.exists():
            made = {"day": time.strftime("%Y-%m-%d"), "revision": _revision(), "value": make()}
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(made, indent=1), encoding="utf-8")
        kept = json.loads(path.read_text(encoding="utf-8"))
        parts = self._origins.setdefault((kept["day"], kept["revision"]), [])
        if part not in parts:
            parts.append(part)
        return kept["value"]

    @property
    def origin(self) -> str:
        """In words, when and at which revision parts were made; nothing if there were none."""
        if not self._origins:
            return ""
        newest = max(self._origins)
        each = (
            f"{revision} of {day}" + ("" if (day, revision) == newest else f" ({', '.join(sorted(parts))})")
            for (day, revision), parts in sorted(self._origins.items(), reverse=True)
        )
        return f"job by job at revision {', '.join(each)}"


def _revision() -> str:
    """Of the code that runs, whatever has become of the pages."""
    revision = _git("rev-parse", "--short=10", "HEAD")
    changed = _git("status", "--porcelain", "--", "bench", "recycle_compiler", "runtime")
    return f"{revision} with changes" if changed else revision


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
