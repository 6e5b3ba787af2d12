"""Heartbeats: a few numbers of every process of a node, in memory that they share. Needs no torch.

Each process writes its own line, the agent reads them all. A line is small and there are no locks: a
process that is stopped, or never lets its other threads run, shows it by a heartbeat that stops.
"""

import mmap
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_LINE = struct.Struct("<8q")
_SIZE = 64
_MOST_DUMPED = 1 << 20


class BoardLine(NamedTuple):
    """Row of a process on the board; times in nanoseconds of the machine's monotonic clock."""

    heartbeat: int
    """Time of its last sign of life."""
    generation: int
    step: int
    position: int
    """The instruction that it runs."""
    is_waiting: int
    """1 while it waits for other workers."""
    is_up: int
    """1 from its first generation on; before that its heartbeat may stop for long."""
    fault_at: int
    """Time at which it injected a fault into itself, if it had to; else 0."""
    is_first: int = 0
    """1 until it has made a step with the layers that it has: the first time takes longer."""


class Board:
    """The lines of a node, by number."""

    def __init__(self, path: str | Path, lines: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < lines * _SIZE:
                # Memory of a file for which the disk has no room kills whoever touches it.
                os.posix_fallocate(descriptor, 0, lines * _SIZE)
            self._memory = mmap.mmap(descriptor, lines * _SIZE)
        finally:
            os.close(descriptor)
        self.path = str(path)
        self.lines = lines

    def read(self, number: int) -> BoardLine:
        return BoardLine(*_LINE.unpack_from(self._memory, number * _SIZE))

    def write(self, number: int, line: BoardLine) -> None:
        _LINE.pack_into(self._memory, number * _SIZE, *line)

    def clear(self, number: int) -> None:
        self.write(number, BoardLine(0, 0, 0, 0, 0, 0, 0))

    def dump_path(self, number: int) -> str:
        """The file in which a process says where it is, when it is asked by a signal."""
        return f"{self.path}.{number}.stack"

    def dump(self, number: int) -> str:
        """Stack that the process has written to its dump file."""
        try:
            with open(self.dump_path(number), encoding="utf-8", errors="replace") as file:
                return file.read(_MOST_DUMPED)
        except OSError:
            return ""

    def clear_dump(self, number: int) -> None:
        with suppress(OSError):
            os.truncate(self.dump_path(number), 0)

    def close(self) -> None:
        self._memory.close()
