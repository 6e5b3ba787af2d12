"""The last save of a job: all steps are made, and workers write their parameters. Needs no torch."""

from collections.abc import Iterable
from typing import NamedTuple

from recycle_runtime.coordinator.events import Answer, GivenUp, Note, Order, Send, Tell
from recycle_runtime.coordinator.journal import Field, Lines
from recycle_runtime.coordinator.participant import Asked, Hears, Memory, Participant, View
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.protocol.messages.generations import Done, End
from recycle_runtime.protocol.messages.members import Member


class LastSave(NamedTuple):
    """The last save that was begun."""

    steps: int
    saving: tuple[tuple[Member, int | None], ...]
    """Processes that should write, with their stages; None: they have no state of any."""
    error: str | None
    """The error of the job by then."""


class LastSaving(Participant):
    """Keeps count of the processes that have written what they should."""

    memory = (
        Memory(
            "the last save, and who has done its part",
            said=(Done,),
            journal={
                "last_save": Field(LastSave),
                "done": Field(Member, needs=("error",)),
                "error": Field(str | None),
            },
        ),
    )

    def __init__(self) -> None:
        self.begun: LastSave | None = None
        """None until all steps are made."""
        self.error: str | None = None
        """The error of the job."""
        self._saving: dict[Member, int | None] = {}
        """Processes that have not written yet, with their stages."""
        self._saved: set[tuple[int | None, int]] = set()
        """Stages whose parameters are on disk, by tensor-parallel rank."""

    @classmethod
    def open(cls, asked: Asked, job: View) -> "LastSaving":
        return cls()

    def hears(self) -> Hears:
        return {Done: self._hear}

    def recall(self, lines: Lines) -> None:
        for last in lines.values("last_save")[:1]:
            self._begin(last)
            for fields in (line.fields for line in lines.all if "done" in line.fields):
                self._note(fields["done"], fields["error"])

    def begin(self, steps: int, error: str | None) -> list[Order]:
        """All steps are made: write that down before any order is sent. Nothing if nobody saves."""
        job = self.job
        saving: dict[Member, int | None] = {}
        for member, entry in job.roster.entries.items():
            if entry.saves:
                # One without a state of its stage has nothing to save, and is not counted on.
                is_counted = entry.is_active and not entry.is_joining and not entry.is_outdated
                saving[member] = job.cells.stage(member.worker) if is_counted else None
        if not saving:
            return []
        last = LastSave(steps, tuple(saving.items()), error)
        self._begin(last)
        # One that was given up and has come back would save what it had then.
        ends = [Send(member, End(ok=not entry.is_outdated)) for member, entry in job.roster.entries.items()]
        return [Note({"last_save": last}), *ends]

    def _begin(self, last: LastSave) -> None:
        self.begun, self.error, self._saving = last, last.error, dict(last.saving)

    def _hear(self, member: Member, said: Done) -> Iterable[Answer]:
        """Last words are said once: a coordinator that comes after this one has to know them."""
        if self.begun is None:
            return
        yield Note({"done": member, "error": said.error})
        if member in self._saving:
            self._note(member, said.error)
            yield from self._end_if_all_have()

    def _note(self, member: Member, error: str | None) -> None:
        stage = self._saving.pop(member, None)
        if error is None:
            self._saved.add((stage, member.tp_rank))
        else:
            self.error = self.error or f"worker {worker_text(member.worker)}: {error}"

    def lose(self, worker: Worker, cause: str) -> Iterable[Answer]:
        """A worker has failed: its peers have the same parameters, if it has any."""
        ranks = [member for member in self._saving if member.worker == worker]
        lost = {(self._saving.pop(member), member.tp_rank) for member in ranks}
        lost = {(stage, rank) for stage, rank in lost if stage is not None}
        gone = lost - self._saved - {(stage, member.tp_rank) for member, stage in self._saving.items()}
        if gone:
            self.error = self.error or f"the parameters of stage {min(gone)[0]} were not saved: {cause}"
        elif lost:
            yield Tell(f"{cause} while it saved its parameters, which its peers save too")
        yield from self._end_if_all_have()

    def look(self, *, is_late: bool) -> Iterable[GivenUp]:
        """Now and then: the coordinator before this one may have heard the last of them."""
        if is_late and self._saving:
            names = ", ".join(worker_text(member.worker) for member in sorted(self._saving))
            yield GivenUp(self.error or f"these workers have not saved their parameters: {names}")
        yield from self._end_if_all_have()

    def _end_if_all_have(self) -> Iterable[GivenUp]:
        if not self._saving:
            yield GivenUp(self.error)
