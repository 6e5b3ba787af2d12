"""Pending changes of a job: a stop between two steps, a missing plan, an end, and what was left undone by the
coordinator before this one. Needs no torch.
"""

from dataclasses import dataclass

from recycle_runtime.coordinator.events import WantPlan
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.protocol.messages.generations import Hold, Holding


class BoundaryStop:
    """The step before which all workers stop for a change, and why."""

    def __init__(self) -> None:
        self.step: int | None = None
        """None: they need not."""
        self.causes: list[str] = []
        self._request = 0
        """Of the orders to stop, the last; a later one has a later step."""
        self._tries = 0

    def want(self, why: str, step: int) -> bool:
        """True if no orders have been sent yet: then all get one, to stop before this step."""
        if why not in self.causes:
            self.causes.append(why)
        if self.step is not None:
            return False
        self.step, self._tries = step, 0
        self._request += 1
        return True

    def is_passed(self, said: Holding, steps: int) -> bool:
        """True if a process has passed the step: then all are sent a later one."""
        if said.request != self._request or self.step is None or not self.step <= said.step < steps:
            return False
        self._tries += 1
        self.step = min(said.step + 2 * self._tries, steps)
        self._request += 1
        return True

    def order(self, steps: int) -> Hold:
        """Order to hold, for any process; one that has stopped there answers again too."""
        return Hold(steps if self.step is None else self.step, self._request)

    def end(self) -> None:
        """All leave their group."""
        self.step, self.causes = None, []


class PlanWait:
    """The plan that was asked for last."""

    def __init__(self) -> None:
        self.has_failed = False
        """Planning has failed once: nobody waits for a better plan any more."""
        self.unplannable: tuple[Worker, ...] | None = None
        """Cells for which no plan could be made."""
        self._asked: tuple[Worker, ...] = ()

    def ask(self, live: tuple[Worker, ...], *, is_needed: bool) -> WantPlan:
        """The order to make one for these cells."""
        self._asked = live
        return WantPlan(live, is_needed=is_needed)

    def fail(self) -> None:
        """It could not be made."""
        self.has_failed, self.unplannable = True, self._asked


@dataclass(slots=True)
class Ending:
    """The end of the job."""

    why: str | None = None
    """The user's reason to end it at the next boundary, with a last checkpoint."""
    by: float = float("inf")
    """Time at which the job ends at the latest, then without a last checkpoint."""
    error: str | None = None
    """Of a job that has ended."""
    has_recalled: bool = False
    """All were asked to say again what may not have been heard."""


@dataclass(slots=True)
class Predecessor:
    """The coordinator before this one."""

    generation: int | None = None
    """The generation in which it ended, until this one begins another."""
    left_change_open: bool = False
    """It ended in the middle of a change."""
    newest: int = 0
    """The newest generation that any process was asked for."""

    def asked(self, generation: int) -> None:
        """A process has been asked for this one."""
        self.newest = max(self.newest, generation)
