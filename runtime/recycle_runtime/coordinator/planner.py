"""Plans on demand, made by a process while training goes on. Standard library only."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle, BundleError


class Planner:
    """One `recyclec plan` at a time; the newest request wins. Plans stay in the folder."""

    def __init__(self, job: str, folder: Path) -> None:
        self._job, self._folder = job, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._made = 0
        self.is_in_background = False
        """Whether the last request was one that nobody waits for."""
        self.error = ""
        """Why the last request came to nothing."""

    @property
    def is_busy(self) -> bool:
        return self._process is not None

    def ask(self, failed: Collection[Worker], *, in_background: bool = False) -> None:
        """Begin to plan for exactly these losses; in the background, only while nobody else wants to work."""
        self.stop()
        self.is_in_background = in_background
        if not self._job.strip():
            self.error = "the bundle does not say for which job it is"
            return
        beside = Path(sys.executable).parent / "recyclec"
        command = str(beside) if beside.exists() else shutil.which("recyclec")
        if command is None:
            self.error = "recyclec is not there to plan for these losses"
            return
        self._made += 1
        names = ",".join(f"{pipeline}:{stage}" for pipeline, stage in sorted(failed))
        job = self._folder / "job"
        job.write_text(self._job, encoding="utf-8")
        with job.open("rb") as source:
            self._process = subprocess.Popen(
                [command, "--quiet", "plan", "-", "--failed", names, "-o", str(self._path())],
                stdin=source,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                preexec_fn=_die_with_parent_and_yield if in_background else die_with_parent,
            )

    def made(self) -> tuple[Path, Bundle] | None:
        """A plan that is ready now, once."""
        if self._process is None or self._process.poll() is None:
            return None
        process, self._process = self._process, None
        assert process.stderr is not None
        said = process.stderr.read().decode(errors="replace").strip()
        process.stderr.close()
        if process.returncode != 0:
            self.error = said or f"recyclec ended with status {process.returncode}"
            return None
        try:
            return self._path(), Bundle.read(self._path())
        except (OSError, BundleError) as error:
            self.error = str(error)
            return None

    def stop(self) -> None:
        self.error = ""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _path(self) -> Path:
        # Another coordinator of the same job may have left plans here.
        return self._folder / f"on-demand-{os.getpid()}-{self._made}.plan"


def die_with_parent() -> None:
    """A plan that nobody waits for is not worth the time."""
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _die_with_parent_and_yield() -> None:
    die_with_parent()
    os.nice(19)
