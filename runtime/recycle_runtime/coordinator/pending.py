"""Pending changes of a job: a stop between two steps, a missing plan, a generation that has not begun, an
end, and what was left undone by the coordinator before this one. Needs no torch.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from recycle_runtime.coordinator.events import WantPlan
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.work import Share, chunks_amiss
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.protocol.messages.generations import Hold, Holding, WorkShare
from recycle_runtime.protocol.messages.members import Member


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


class SlotWait:
    """The wait for a failed worker, where the others of its stage have too few slots for its experts."""

    def __init__(self, seconds: float) -> None:
        """The longest."""
        self._seconds, self._since = seconds, 0.0
        self._lack: str | None = None
        """Missing part; None: nothing, as far as is known."""

    @property
    def is_under_way(self) -> bool:
        return self._lack is not None

    def need(self, lack: str, now: float) -> str | None:
        """Words for the user, if they are news; as long as one wait lasts, it has one limit."""
        if self._lack is None:
            self._since = now
        is_news, self._lack = lack != self._lack, lack
        return f"waits up to {self._seconds:g} s for a worker to come back: {lack}" if is_news else None

    def end(self) -> None:
        """Nothing is missing."""
        self._lack = None

    def failed(self, now: float) -> str | None:
        """Reason to wait no longer, once it has taken too long."""
        if self._lack is None or now - self._since < self._seconds:
            return None
        return f"{self._lack}{f', and no worker came back in {self._seconds:g} s' if self._seconds else ''}"


class GroupStart:
    """Processes that have not begun with the generation. One of each worker says what it will do; there is a
    verdict once all have."""

    def __init__(self) -> None:
        self.missing: set[Member] = set()
        """Processes that have not begun."""
        self._silent: set[Member] = set()
        self._shares: list[Share] = []

    def begin(self, members: Iterable[Member], bundle: Bundle, plan: str) -> None:
        """With a plan of this bundle."""
        self.missing = set(members)
        self._silent = {member for member in self.missing if member.tp_rank == 0}
        self._shares, self._bundle, self._plan = [], bundle, plan

    def hear(self, member: Member, said: tuple[WorkShare, ...] | None) -> str | None:
        """A process has begun: why the plan must not be trained with, once the last has said what it does."""
        self.missing.discard(member)
        if said is None or member not in self._silent:
            return None
        self._silent.discard(member)
        self._shares += [Share(*each) for each in said]
        return None if self._silent else self._mistake()

    def _mistake(self) -> str | None:
        bundle = self._bundle
        amiss = chunks_amiss(self._shares, len(bundle.chunk_stages), bundle.pipelines * bundle.microbatches)
        if not amiss:
            return None
        return (
            f"the plan {self._plan} of the bundle does not run every micro-batch once on chunk {amiss[0]}: "
            "it would train something else; recyclec verify says more"
        )


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
