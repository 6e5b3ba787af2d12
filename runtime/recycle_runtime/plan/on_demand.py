"""Run `recyclec` as a process, for plans that a bundle does not have. Standard library only.

    process = Recyclec(plan_arguments("-", failed, out=path), stdin=job_file)
    ...                                   training goes on
    if process.has_ended:
        process.output()                  what it printed, or OnDemandError with what it complained of
        bundle = read_plan(path)

This is the only place where the runtime starts the compiler. The runtime never imports it: planning takes
seconds of compute, and must not hold up the coordinator.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import BinaryIO

from recycle_runtime import logs
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle, BundleError

_NOBODY: Mapping[Worker, float] = MappingProxyType({})


class OnDemandError(RuntimeError):
    """`recyclec` could not do what it was asked for: its own words, or one sentence."""


class KilledError(OnDemandError):
    """Somebody else has ended the process; it may be tried again."""


class Recyclec:
    """One process. It is killed with the process that started it."""

    def __init__(
        self, arguments: Sequence[str], *, stdin: Path | None = None, in_background: bool = False
    ) -> None:
        """Start it; `in_background` it runs at the lowest priority."""
        command = find_recyclec()
        if command is None:
            raise OnDemandError("recyclec is not installed here, so no plan can be made")
        # Files and not pipes: nobody reads while it runs, and a full pipe would stop it.
        self._output, self._complaint = TemporaryFile(), TemporaryFile()  # noqa: SIM115
        source = os.open(os.devnull if stdin is None else stdin, os.O_RDONLY)
        try:
            self._process = subprocess.Popen(
                [command, "--quiet", *_log_options(), *arguments],
                stdin=source,
                stdout=self._output,
                stderr=self._complaint,
                preexec_fn=_die_with_parent_and_yield if in_background else _die_with_parent,
            )
        finally:
            os.close(source)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def output(self) -> str:
        """Output of the process, once it has ended; OnDemandError if it failed."""
        with self._output, self._complaint:
            said, complaint = (_text(file) for file in (self._output, self._complaint))
        if (status := self._process.wait()) < 0:
            raise KilledError(f"recyclec was killed by signal {-status}")
        if status != 0:
            raise OnDemandError(complaint or f"recyclec ended with status {self._process.returncode}")
        return said

    def kill(self) -> None:
        """End it: the plan is not wanted any more."""
        self._process.kill()
        self._process.wait()
        self._output.close()
        self._complaint.close()


def find_recyclec() -> str | None:
    """The command of the same environment, else the first one on the path."""
    beside = Path(sys.executable).parent / "recyclec"
    return str(beside) if beside.exists() else shutil.which("recyclec")


def plan_arguments(
    job: str,
    failed: Collection[Worker],
    slow: Mapping[Worker, float] = _NOBODY,
    *,
    layout: str = "",
    split: bool = False,
    out: Path,
) -> list[str]:
    """For one plan: for exactly these failed workers, with less to do for slow ones.

    With a layout it is one of another cut, and the failed and the slow workers are cells of that; its
    micro-batches may be split in two.
    """
    if layout:
        halves = ["--split"] if split else []
        under = ["--layout", layout, *halves]
        return ["plan", job, *under, *_failed(failed), *_slow(slow), "-o", str(out)]
    if not failed and not slow:
        return ["compile", job, "--failures", "0", "--recut", "off", "--jobs", "1", "-o", str(out)]
    return ["plan", job, *_failed(failed), *_slow(slow), "-o", str(out)]


def cut_arguments(job: str, workers: int, *, split: bool = False, out: Path) -> list[str]:
    """For the plans of the fastest cut for so many workers."""
    return ["plan", job, "--workers", str(workers), *(["--split"] if split else []), "-o", str(out)]


def cut_for_slow_arguments(
    job: str, workers: int, factors: Collection[float], *, split: bool = False, out: Path
) -> list[str]:
    """For a plan of the fastest cut for so many workers of which some are slow, given as JSON."""
    slow = ["--slow", ",".join(f"{by:.3f}" for by in factors)]
    return [*cut_arguments(job, workers, split=split, out=out), *slow, "--json"]


def retime_arguments(
    plan: Path, failed: Collection[Worker], job: str, slow: Mapping[Worker, float] = _NOBODY
) -> list[str]:
    """For the step time of a plan with the op times of another job, as JSON."""
    which = _failed(failed) or ["--failures", "0"]
    return ["retime", str(plan), *which, "--times", job, "--json", *_slow(slow)]


def read_made_plan(path: Path) -> Bundle:
    """Read the plan that was made; OnDemandError if it cannot be read."""
    try:
        return Bundle.read(path)
    except (OSError, BundleError) as error:
        raise OnDemandError(str(error)) from None


def _log_options() -> list[str]:
    """It logs to our file; to stderr it writes only what we report as its error."""
    settings = logs.settings()
    return settings.options() if settings.file is not None else []


def _failed(workers: Collection[Worker]) -> list[str]:
    names = [f"{pipeline}:{stage}" for pipeline, stage in sorted(workers)]
    return ["--failed", ",".join(names)] if names else []


def _slow(workers: Mapping[Worker, float]) -> list[str]:
    words = [f"{pipeline}:{stage}={by:.3f}" for (pipeline, stage), by in sorted(workers.items())]
    return ["--slow", ",".join(words)] if words else []


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").strip()


def _die_with_parent() -> None:
    """A plan that training does not wait for is not worth the time."""
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _die_with_parent_and_yield() -> None:
    _die_with_parent()
    os.nice(19)
