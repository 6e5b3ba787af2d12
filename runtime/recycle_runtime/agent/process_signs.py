"""Signs of a process in the kernel: stopped, running, or just waiting. Needs no torch.

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
_FLAGS, _EXIT_CODE = 6, 49
"""Fields of /proc/PID/stat, counted from its state."""
_EXITING = 0x4
"""PF_EXITING: the kernel takes the process apart, and its first thread runs none of its code any more."""


class Signs(NamedTuple):
    """Of one process, at one moment."""

    is_stopped: bool
    """By a signal, or by a debugger."""
    is_busy: bool
    """True if a thread of it runs, could run, or waits for a disk."""
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


def exit_of(pid: int) -> str | None:
    """End of a process that the kernel is taking apart, in words; None if it is not. With a GPU it takes a
    third of a second from there to its end."""
    try:
        _, fields = _stat(Path(f"/proc/{pid}/stat"))
        return ending(int(fields[_EXIT_CODE])) if int(fields[_FLAGS]) & _EXITING else None
    except (OSError, ValueError, IndexError):
        return None


def ending(status: int) -> str:
    """In words, from a status as `waitpid` gives it."""
    if os.WIFSIGNALED(status):
        return f"was killed by signal {os.WTERMSIG(status)}"
    return f"ended with status {os.WEXITSTATUS(status)}"


def _stat(path: Path) -> tuple[str, list[str]]:
    """State, and all fields from there on; the name before them may hold anything."""
    fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return fields[0], fields
