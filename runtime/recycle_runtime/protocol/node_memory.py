"""Memory of a node that outlives its worker processes: files without a name and without a disk.

The agent opens them before it starts the first worker process, so every process of the node has them, and
what one has written is there for the others when it is gone. They go with the last of these processes. An
agent that is started again gets them from a worker process that still runs. No torch.

    line 0   own 0   own 1   held 0   held 1     of the process with this line of the heartbeat board
    line 1   ...
"""

import fcntl
import json
import os
import secrets
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from recycle_runtime.protocol.codec import Natural, decode

SLOTS = 2
"""One for what is complete, one for what is being written."""
_KINDS = ("own", "held")
_NAME = "recycle-copy"
_FILE = "memory.json"

Kind = Literal["own", "held"]


class NodeMemory(NamedTuple):
    """The files of one node."""

    number: str
    """By which the coordinator knows it: of two nodes never the same."""
    files: tuple[int, ...]
    """Descriptors."""

    def file(self, line: int, kind: Kind, slot: int) -> int:
        """The descriptor for what a process has kept of its own, or holds for another."""
        return self.files[(line * len(_KINDS) + _KINDS.index(kind)) * SLOTS + slot]


def open_memory(folder: Path, lines: int, pids: Iterable[int] = ()) -> NodeMemory:
    """For so many worker processes; what the agent before this one had, if one of its processes runs."""
    count = lines * len(_KINDS) * SLOTS
    number, numbers = _written(folder / _FILE)
    for pid in pids if len(numbers) == count else ():
        if (files := _taken_from(pid, numbers)) is not None:
            return NodeMemory(number, files)
    return NodeMemory(secrets.token_hex(8), tuple(os.memfd_create(_NAME) for _ in range(count)))


def empty(descriptor: int) -> None:
    """Give the memory of a file back, unless a process is writing to it."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    os.ftruncate(descriptor, 0)
    fcntl.lockf(descriptor, fcntl.LOCK_UN)


@contextmanager
def kept_from_others(descriptor: int) -> Generator[None]:
    """No other process empties the file meanwhile: whoever reads what is mapped there would be ended."""
    fcntl.lockf(descriptor, fcntl.LOCK_SH)
    try:
        yield
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN)


def note_memory(folder: Path, memory: NodeMemory) -> None:
    """For the next agent: under which descriptors the worker processes that are started from here have it."""
    aside = folder / f"{_FILE}.{os.getpid()}"
    aside.write_text(json.dumps({"number": memory.number, "files": memory.files}), encoding="utf-8")
    aside.replace(folder / _FILE)


def _written(path: Path) -> tuple[str, tuple[int, ...]]:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        return decode(tuple[str, tuple[Natural, ...]], [found["number"], found["files"]])
    except (OSError, ValueError, LookupError, TypeError):
        return "", ()


def _taken_from(pid: int, numbers: tuple[int, ...]) -> tuple[int, ...] | None:
    """The same files as another process has; None if it is gone, or has others."""
    opened: list[int] = []
    try:
        for number in numbers:
            path = f"/proc/{pid}/fd/{number}"
            if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
                raise OSError
            opened.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        for descriptor in opened:
            os.close(descriptor)
        return None
    return tuple(opened)
