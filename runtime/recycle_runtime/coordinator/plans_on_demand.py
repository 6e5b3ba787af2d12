"""Plans that the bundle does not have, for failures as they are and for the next. Standard library only."""

from collections.abc import Callable
from pathlib import Path

from recycle_runtime.coordinator.coordinator import Coordinator
from recycle_runtime.coordinator.plan_ahead import next_failure
from recycle_runtime.coordinator.plan_files import PlanFiles
from recycle_runtime.coordinator.planner import Planner
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.protocol.messages import JobEvent


class PlansOnDemand:
    """Asks for them, takes them up, and tells what comes of it."""

    def __init__(
        self, coordinator: Coordinator, files: PlanFiles, folder: Path, tell: Callable[[JobEvent], None]
    ) -> None:
        self._coordinator, self._files, self._tell = coordinator, files, tell
        self._book = coordinator.book
        self._planner = Planner(self._book.bundles[0].job_source, folder)
        self._wanted: tuple[Worker, ...] | None = None
        self._planned_ahead: set[tuple[Worker, ...]] = set()

    @property
    def is_awaited(self) -> bool:
        """Whether one is being made that somebody waits for."""
        return self._planner.is_busy and not self._planner.is_in_background

    def want(self, live: tuple[Worker, ...]) -> None:
        """One for exactly those that are left."""
        failed = tuple(worker for worker in self._book.grid if worker not in live)
        if failed != self._wanted:
            self._wanted = failed
            self._planner.ask(failed)

    def look_ahead(self) -> None:
        """While nothing happens: a plan for the next failure, so that it does not have to wait for one."""
        if self._planner.is_busy or not self._coordinator.is_steady:
            return
        failed = next_failure(self._book, self._coordinator.roster.whole(), self._planned_ahead)
        if failed is not None:
            self._planned_ahead.add(failed)
            self._planner.ask(failed, in_background=True)

    def take(self) -> None:
        """What has been made since, if anything."""
        made = self._planner.made()
        if made is not None:
            path, bundle = made
            self._files.add(path, bundle)
            if set(bundle.plans[0].failed) == set(self._wanted or ()):
                self._tell(JobEvent("planned on demand", bundle.plans[0].period))
                self._coordinator.add_plan()
        elif self._planner.error and self._planner.is_in_background:
            # Nobody waits for it.
            self._planner.error = ""
        elif self._planner.error:
            error, self._planner.error = self._planner.error, ""
            self._tell(JobEvent(f"no plan on demand: {error}"))
            self._coordinator.no_plan(f"there is no plan for these failures: {error}")

    def stop(self) -> None:
        self._planner.stop()
