"""Which processes of a node have ended, and which hang. Standard library only.

The end of a process is seen through its pidfd, so a restarted agent can watch processes that are not
its children. A process hangs when its heartbeat stops, or when it has been in the same instruction for very
long without waiting for another worker; then it is killed, and its end is reported like any other.
"""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from recycle_runtime.protocol.heartbeat_board import Board


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds after which a process counts as hung."""

    heartbeat: float = 1.5
    """Without a heartbeat, once it trains."""
    first_heartbeat: float = 120.0
    """Without a heartbeat, before that."""
    instruction: float = 60.0
    """In one instruction, without waiting for another worker."""


class Process(NamedTuple):
    """One that is watched."""

    pid: int
    descriptor: int
    line: int


class Ended(NamedTuple):
    """A process that is gone."""

    line: int
    pid: int
    how: str
    fault_at: int
    """When it injected a fault into itself, in nanoseconds; or 0."""


class Watch:
    """The processes of a node, by their line on the board."""

    def __init__(self, board: Board, limits: Limits) -> None:
        self._board, self._limits = board, limits
        self.processes: dict[int, Process] = {}
        self._why: dict[int, str] = {}
        self._moved: dict[int, tuple[tuple[int, int, int], float]] = {}

    def add(self, line: int, pid: int) -> None:
        """Watch a process; one that has ended already is seen at the next look."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            descriptor = -1
        self.processes[line] = Process(pid, descriptor, line)
        self._why.pop(line, None)
        self._moved.pop(line, None)

    def kill(self, line: int, why: str) -> None:
        """So that it cannot come back half alive."""
        process = self.processes.get(line)
        if process is None:
            return
        self._why.setdefault(line, why)
        if process.descriptor >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process.descriptor, signal.SIGKILL)

    def ended(self, ready: set[int]) -> list[Ended]:
        """Of the processes whose descriptors can be read, or never could."""
        found: list[Ended] = []
        for line, process in list(self.processes.items()):
            if process.descriptor >= 0 and process.descriptor not in ready:
                continue
            del self.processes[line]
            how = self._why.pop(line, "") or _how(process.pid)
            if process.descriptor >= 0:
                _reap(process.pid)
                os.close(process.descriptor)
            found.append(Ended(line, process.pid, how, self._board.read(line).fault_at))
        return found

    def look(self) -> None:
        """Kill what hangs."""
        now = time.monotonic()
        for line in list(self.processes):
            shown = self._board.read(line)
            since_heartbeat = now - shown.heartbeat / 1e9
            limit = self._limits.heartbeat if shown.is_up else self._limits.first_heartbeat
            if shown.heartbeat and since_heartbeat > limit:
                self.kill(line, f"had no heartbeat for {since_heartbeat:.1f} s and was killed")
                continue
            at = (shown.generation, shown.step, shown.position)
            seen, since = self._moved.get(line, (at, now))
            if seen != at or shown.is_waiting or not shown.is_up:
                since = now
            self._moved[line] = (at, since)
            if now - since > self._limits.instruction:
                self.kill(line, f"was stuck at instruction {shown.position} and was killed")


def _how(pid: int) -> str:
    try:
        _, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return "ended"
    if os.WIFSIGNALED(status):
        return f"was killed by signal {os.WTERMSIG(status)}"
    return f"ended with status {os.WEXITSTATUS(status)}"


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
