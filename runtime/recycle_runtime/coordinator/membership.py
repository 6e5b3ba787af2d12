"""The worker processes of a job: their last reports, and where they wait. Needs no torch."""

from collections import Counter
from collections.abc import Iterable, Iterator

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.shard_moves import HeldShards
from recycle_runtime.protocol.messages.generations import HeldState, LayerExperts, LayerShards
from recycle_runtime.protocol.messages.members import Member


class Entry:
    """One process that has joined."""

    def __init__(self) -> None:
        self.report: HeldState | None = None
        self.generation = 0
        """The generation that the report was made for."""
        self.shards: tuple[LayerShards, ...] | None = None
        """Shards of optimizer state that it holds; None: that is not known."""
        self.shard_sizes: HeldShards | None = None
        """Their bytes; None as long as some are on their way in the generation under way."""
        self.boundary: int | None = None
        """The step before which it waits."""
        self.is_joining = False
        """True if it is a standby until it has its state."""
        self.awaits_copy = False
        """True if a peer has to send it its state before it can begin with the generation."""
        self.is_leaving = False
        """True if it trained in an older generation and has not said that it has left."""
        self.is_active = False
        """True if it trains in the generation under way."""
        self.has_begun = False
        """True if it has run an instruction of that generation."""
        self.has_stepped = False
        """True if it has made a step with the layers that it has; the first step may take much longer."""
        self.saves = False
        """True if it writes its parameters when the job ends."""
        self.is_outdated = False
        """It was given up and has come back: what it holds is old until it has been given something newer."""
        self.has_layers = False
        """True if it holds the layers that it was sent, until it trains with them."""
        self.taken: tuple[LayerShards, ...] = ()
        """Shards of optimizer state that came with them."""
        self.others: tuple[HeldState, ...] = ()
        """As `report`, of every further rank that it stands for."""
        self.fewer_ranks: tuple[int, ...] | None = None
        """With how many ranks a worker could go on that has lost some; None: not known yet."""
        self.experts: tuple[LayerExperts, ...] = ()
        """As `LeftGroup` has them."""

    @property
    def is_new(self) -> bool:
        """It has never reported, nor trained."""
        return self.report is None and not self.is_active and not self.is_leaving

    def hold_nothing(self) -> None:
        """Its state is of no use any more; of one that has never reported nothing is known."""
        self.is_outdated = True
        if not self.is_new:
            self.report = HeldState(None, is_fresh=False)

    @property
    def has_state(self) -> bool:
        """True if it trains, or held state when it last reported."""
        if self.is_active or self.is_leaving:
            return not self.is_joining and not self.awaits_copy
        return self.report is not None and self.report.applied is not None and not self.report.is_fresh

    def may_be_ahead(self, step: int) -> bool:
        """True if it may have made this step."""
        if self.is_active or self.is_leaving:
            return True
        return self.report is not None and self.report.applied is not None and self.report.applied > step


class Roster:
    """Worker processes; a worker is whole when all its tensor-parallel processes are there. One that has lost
    ranks has fewer, each of which stands for several ranks and is called by the first.

    At size every message of a process must cost the same however many others there are. So what is asked for
    again and again is kept: who is whole until somebody comes or goes, and how far all have reported.
    """

    def __init__(self, tensor: int) -> None:
        self._tensor = tensor
        self.fewer: dict[Worker, int] = {}
        """Processes of workers that have lost ranks. To be read; `join` changes it."""
        self.entries: dict[Member, Entry] = {}
        """To be read; `join`, `remove` and `rename` change who is there."""
        self._whole: list[Worker] | None = None
        self._active: list[Member] | None = None
        self._asked: tuple[int, list[Entry]] | None = None
        """A generation, and those of whom it is not known that they have reported for it."""

    def __contains__(self, member: Member) -> bool:
        return member in self.entries

    def join(self, member: Member, ranks: int = 0) -> Entry:
        """`ranks`: processes of its worker, if that has lost some."""
        if ranks:
            self.fewer[member.worker] = ranks
        elif not any(each in self.entries for each in self._processes(member.worker)):
            self.fewer.pop(member.worker, None)
        self.entries[member] = Entry()
        self._changed()
        return self.entries[member]

    def remove(self, worker: Worker) -> list[Member]:
        """Take a worker off; these of its processes were there."""
        gone = [member for member in self._processes(worker) if member in self.entries]
        for member in gone:
            del self.entries[member]
        self.fewer.pop(worker, None)
        self._changed()
        return gone

    def rename(self, member: Member, target: Member) -> Entry:
        """The process is another worker's from now on."""
        self.entries[target] = self.entries.pop(member)
        if (ranks := self.fewer.get(member.worker)) is not None:
            self.fewer[target.worker] = ranks
        self._changed()
        return self.entries[target]

    def is_whole(self, worker: Worker) -> bool:
        return all(member in self.entries for member in self._processes(worker))

    def whole(self) -> list[Worker]:
        """Workers with all their processes, in order."""
        if self._whole is None:
            ranks = Counter(member.worker for member in self.entries)
            self._whole = sorted(
                worker for worker, count in ranks.items() if count == self.fewer.get(worker, self._tensor)
            )
        return list(self._whole)

    def members(self) -> Iterator[Member]:
        """Of whole workers."""
        for worker in self.whole():
            yield from self._processes(worker)

    def active(self) -> list[Member]:
        """Those who train."""
        if self._active is None:
            self._active = [member for member, entry in self.entries.items() if entry.is_active]
        return list(self._active)

    def activate(self, members: Iterable[Member]) -> None:
        """These train from now on, and no others."""
        for entry in self.entries.values():
            entry.is_active = False
        for member in members:
            self.entries[member].is_active = True
        self._active = None

    def have_stepped(self) -> bool:
        """True if all who train have made a step with the layers that they have."""
        return all(self.entries[member].has_stepped for member in self.active())

    def wait_at(self, step: int, members: Iterable[Member]) -> bool:
        """True if all of these wait before this step."""
        return all(self.entries[member].boundary == step for member in members)

    def has_state(self, worker: Worker) -> bool:
        """True if none of its processes waits to be given one."""
        return all(self.entries[member].has_state for member in self._processes(worker))

    def late(self) -> list[Worker]:
        """Workers that should have left their group, and have not."""
        return sorted({member.worker for member, entry in self.entries.items() if entry.is_leaving})

    def have_reported(self, generation: int, *, with_new: bool) -> bool:
        """All processes of whole workers. New ones, which have never reported and may still be building their
        model, are waited for if that is said or there are no others."""
        if self._asked is None or self._asked[0] != generation:
            entries = [self.entries[member] for member in self.members()]
            known = [] if with_new else [entry for entry in entries if not entry.is_new]
            self._asked = generation, known or entries
        left = self._asked[1]
        # One that has reported has for good, until another generation is asked for.
        while left and left[-1].report is not None and left[-1].generation == generation:
            left.pop()
        return not left

    def reported(self, generation: int) -> list[Worker]:
        """Whole workers of which all processes have, in order."""
        missing = {
            member.worker
            for member, entry in self.entries.items()
            if entry.report is None or entry.generation != generation
        }
        return [worker for worker in self.whole() if worker not in missing]

    def is_new(self, worker: Worker) -> bool:
        """One of its processes has never reported, or is not there."""
        processes = self._processes(worker)
        return any(member not in self.entries or self.entries[member].is_new for member in processes)

    def new(self) -> set[Worker]:
        """Workers with a process that has never reported."""
        return {member.worker for member, entry in self.entries.items() if entry.is_new}

    def reports(self, generation: int) -> dict[Member, HeldState]:
        """Of all processes of those workers."""
        here = [member for worker in self.reported(generation) for member in self._processes(worker)]
        found = {member: self.entries[member].report for member in here}
        return {member: report for member, report in found.items() if report is not None}

    def of_ranks(self, member: Member, report: HeldState) -> dict[Member, HeldState]:
        """The report of a process as those of all the ranks that it stands for."""
        reports = (report, *self.entries[member].others)
        return {Member(member.worker, member.tp_rank + beside): each for beside, each in enumerate(reports)}

    def fewer_ranks(self) -> tuple[int, ...] | None:
        """Numbers of ranks with which workers could go on that have lost some, as all say that know it; None
        as long as nobody does."""
        told = [entry.fewer_ranks for entry in self.entries.values() if entry.fewer_ranks is not None]
        return tuple(sorted(set(told[0]).intersection(*told), reverse=True)) if told else None

    def _processes(self, worker: Worker) -> list[Member]:
        step = self._tensor // self.fewer.get(worker, self._tensor)
        return [Member(worker, rank) for rank in range(0, self._tensor, step)]

    def _changed(self) -> None:
        self._whole = self._asked = self._active = None
