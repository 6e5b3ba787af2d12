"""Where the orders and news of a coordinator go. Standard library only."""

from typing import Protocol

from recycle_runtime.coordinator.recoveries import Recovery
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.plan_book import Assignment
from recycle_runtime.protocol.messages import Member, StepRow, ToWorker


class Outbox(Protocol):
    """Where orders and news go."""

    def order(self, member: Member, message: ToWorker) -> None: ...

    def fence(self, member: Member, why: str) -> None:
        """Kill a process, so that it cannot come back half alive."""
        ...

    def moved(self, member: Member, target: Member) -> None:
        """A process has another place from now on."""
        ...

    def row(self, row: StepRow) -> None: ...

    def gathering(self, number: int) -> None:
        """Older generations are over; whoever waits for somebody in one waits for nothing."""
        ...

    def generation(self, number: int, step: int, assignment: Assignment) -> None:
        """A new generation has been ordered."""
        ...

    def recovered(self, recovery: Recovery) -> None: ...

    def plan_wanted(self, live: tuple[Worker, ...]) -> None:
        """There is no plan for exactly these workers yet."""
        ...

    def ended(self, error: str | None, no_plan: bool) -> None: ...
