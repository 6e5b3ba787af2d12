"""Hooks of tests into a running job: empty in production. Needs no torch."""

from collections.abc import Collection

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.protocol.messages.members import InjectedFault


class CoordinatorHooks:
    """Questions and reports of a coordinator while a job runs; `testing.timetable` answers."""

    def resume(self, step: int, workers: Collection[Worker]) -> None:
        """The coordinator was started again: the run goes on from this step, with these workers."""

    def faults(self, worker: Worker) -> tuple[InjectedFault, ...]:
        """Faults that a process that is started now should inject into itself."""
        return ()

    def injected(self, worker: Worker, fault: InjectedFault) -> None:
        """It has happened."""

    def due_to_join(self, step: int) -> list[Worker]:
        """Workers to start again by now."""
        return []

    def ranks(self, worker: Worker) -> int:
        """With how many tensor-parallel ranks it should be, if fewer than the job has; or 0."""
        return 0

    def started(self, worker: Worker) -> None:
        """One of them has been."""
