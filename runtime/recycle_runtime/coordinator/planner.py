"""Plans on demand, one at a time, made by a process while training goes on. Standard library only."""

import os
from collections.abc import Collection
from pathlib import Path

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.on_demand import OnDemandError, Recyclec, plan_arguments, read_plan


class Planner:
    """The newest request wins. Plans stay in the folder."""

    def __init__(self, job: str, folder: Path) -> None:
        self._job, self._folder = job, folder
        self._process: Recyclec | None = None
        self._made = 0
        self.is_in_background = False
        """Whether the last request was one that nobody waits for."""
        self.error = ""
        """Why the last request came to nothing."""

    @property
    def is_busy(self) -> bool:
        return self._process is not None

    def ask(self, failed: Collection[Worker], *, in_background: bool = False) -> None:
        """Begin to plan for exactly these failed workers; in the background at the lowest priority."""
        self.stop()
        self.is_in_background = in_background
        if not self._job.strip():
            self.error = "the bundle does not say for which job it is"
            return
        self._made += 1
        job = self._folder / "job"
        job.write_text(self._job, encoding="utf-8")
        try:
            arguments = plan_arguments("-", failed, out=self._path())
            self._process = Recyclec(arguments, stdin=job, in_background=in_background)
        except OnDemandError as error:
            self.error = str(error)

    def made(self) -> tuple[Path, Bundle] | None:
        """A plan that is ready now, once."""
        if self._process is None or not self._process.has_ended:
            return None
        process, self._process = self._process, None
        try:
            process.output()
            return self._path(), read_plan(self._path())
        except OnDemandError as error:
            self.error = str(error)
            return None

    def stop(self) -> None:
        self.error = ""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _path(self) -> Path:
        # Another coordinator of the same job may have left plans here.
        return self._folder / f"on-demand-{os.getpid()}-{self._made}.plan"
