"""Runs a command and says how long it took and how much memory its processes held."""

import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

RECYCLEC = Path(sys.executable).parent / "recyclec"
MIB = 1 << 20
_BETWEEN_SAMPLES = 0.05


class CommandError(Exception):
    """A command that was measured failed: its exit code and its last words."""


@dataclass(frozen=True, slots=True)
class Run:
    """One command that ended well."""

    seconds: float
    cpu_seconds: float
    """Of all its processes together."""
    peak_bytes: int
    """The most that all its processes held together; shared pages count once for each of them."""
    stdout: str


def run(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> Run:
    """Run a command, with some variables added to the environment."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        began = time.perf_counter()
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **(environment or {})},
        )
        watch = _Watch(process.pid)
        watch.start()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        watch.stop()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            words = _text(stderr).strip().splitlines()[-1:] or ["it said nothing"]
            raise CommandError(f"{' '.join(map(str, command))}: exit code {process.returncode}: {words[0]}")
        # What samples may miss: the largest process, as the system counted it.
        largest = usage.ru_maxrss if sys.platform == "darwin" else usage.ru_maxrss * 1024
        return Run(seconds, usage.ru_utime + usage.ru_stime, max(watch.peak, largest), _text(stdout))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


class _Watch(threading.Thread):
    """Adds up what a process and its descendants hold, again and again."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._process = process
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(_BETWEEN_SAMPLES):
            self.peak = max(self.peak, _resident(self._process))

    def stop(self) -> None:
        self._done.set()
        self.join()


def _resident(root: int) -> int:
    """Bytes held by a process and its descendants; 0 where the system does not say."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name in parentheses may hold anything; what follows it is the state and the parent.
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended meanwhile
        children.setdefault(parent, []).append(int(entry.name))
    pages, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        waiting += children.get(process, [])
        with suppress(OSError):
            pages += int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize()
