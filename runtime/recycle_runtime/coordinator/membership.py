"""The worker processes of a job: their last reports, and where they wait. Standard library only."""

from collections.abc import Iterator

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.protocol.messages import Member, Report


class Entry:
    """One process that has joined."""

    def __init__(self) -> None:
        self.report: Report | None = None
        self.generation = 0
        """The generation that the report was made for."""
        self.boundary: int | None = None
        """The step before which it waits."""
        self.is_joining = False
        """Whether it is a standby until it has its state."""
        self.is_leaving = False
        """Whether it trained in an older generation and has not said that it has left."""
        self.is_active = False
        """Whether it trains in the generation under way."""
        self.has_begun = False
        """Whether it has run an instruction of that generation."""
        self.has_stepped = False
        """Whether it has made a step with the layers that it has; the first one may take much longer."""
        self.saves = False
        """Whether it writes its parameters when the job ends."""
        self.is_outdated = False
        """It was given up and has come back: what it holds is old until it has been given something newer."""
        self.has_layers = False
        """Whether the layers that it was sent are what it holds, until it trains with them."""


class Roster:
    """Worker processes; a worker is whole when all its tensor-parallel processes are there."""

    def __init__(self, tensor: int) -> None:
        self._tensor = tensor
        self.entries: dict[Member, Entry] = {}

    def __contains__(self, member: Member) -> bool:
        return member in self.entries

    def join(self, member: Member) -> Entry:
        self.entries[member] = Entry()
        return self.entries[member]

    def remove(self, worker: Worker) -> list[Member]:
        """Take a worker off; these of its processes were there."""
        gone = [member for member in self.entries if member.worker == worker]
        for member in gone:
            del self.entries[member]
        return gone

    def whole(self) -> list[Worker]:
        """Workers with all their processes, in order."""
        workers = sorted({member.worker for member in self.entries})
        return [worker for worker in workers if all(member in self for member in self._processes(worker))]

    def members(self) -> Iterator[Member]:
        """Of whole workers."""
        for worker in self.whole():
            yield from self._processes(worker)

    def active(self) -> list[Member]:
        return [member for member, entry in self.entries.items() if entry.is_active]

    def late(self, generation: int) -> list[Worker]:
        """Workers that should have left their group for this generation, and have not."""
        late = {member.worker for member, entry in self.entries.items() if entry.is_leaving}
        return sorted(late) if not self.have_reported(generation) else []

    def have_reported(self, generation: int) -> bool:
        return all(
            entry.report is not None and entry.generation == generation
            for entry in (self.entries[member] for member in self.members())
        )

    def reports(self) -> dict[Member, Report]:
        found = {member: self.entries[member].report for member in self.members()}
        return {member: report for member, report in found.items() if report is not None}

    def _processes(self, worker: Worker) -> list[Member]:
        return [Member(worker, rank) for rank in range(self._tensor)]


def name_of(worker: Worker) -> str:
    return f"{worker[0]}:{worker[1]}"
