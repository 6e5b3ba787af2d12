"""What the kernel knows about a process: whether it is stopped, runs, or just waits. Standard library only.

A worker that holds the interpreter lock in one long call sends no heartbeat, and neither does one that a
loaded machine does not let run; both are busy, and the kernel can tell. One that uses no processor, and of
which no thread is ready to run or waits for a disk, is blocked.
"""

import os
from pathlib import Path
from typing import NamedTuple

_STOPPED = ("T", "t")
_BUSY = ("R", "D")
"""Running or ready to run; waiting for a disk."""
_TICKS = os.sysconf("SC_CLK_TCK")


class Signs(NamedTuple):
    """Of one process, at one moment."""

    is_stopped: bool
    """By a signal, or by a debugger."""
    is_busy: bool
    """Whether a thread of it runs, could run, or waits for a disk."""
    processor: float
    """Seconds of processor time that all its threads have used."""


def signs_of(pid: int) -> Signs | None:
    """None when the process is gone."""
    try:
        state, fields = _stat(Path(f"/proc/{pid}/stat"))
        threads = [_stat(path / "stat")[0] for path in Path(f"/proc/{pid}/task").iterdir()]
    except (OSError, ValueError, IndexError):
        return None
    used = (int(fields[11]) + int(fields[12])) / _TICKS
    return Signs(state in _STOPPED, any(each in _BUSY for each in threads), used)


def _stat(path: Path) -> tuple[str, list[str]]:
    """State, and all fields from there on; the name before them may hold anything."""
    fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return fields[0], fields
