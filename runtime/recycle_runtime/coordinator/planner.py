"""Plans on demand, made by a process while training goes on. Standard library only."""

import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from recycle_runtime.assembly import Worker
from recycle_runtime.bundle import Bundle, BundleError


class Planner:
    """One `recyclec plan` at a time; the newest request wins. Plans stay in the folder."""

    def __init__(self, job: str, folder: Path) -> None:
        self._job, self._folder = job, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._made = len(list(folder.glob("*.plan")))
        self.error = ""
        """Why the last request came to nothing."""

    @property
    def is_busy(self) -> bool:
        return self._process is not None

    def ask(self, failed: Collection[Worker]) -> None:
        """Begin to plan for exactly these losses."""
        self.stop()
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
        return self._folder / f"on-demand-{self._made}.plan"
