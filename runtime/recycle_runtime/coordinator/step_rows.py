"""Rows of steps: the loss and the seconds of each, once it counts. Needs no torch."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from recycle_runtime.coordinator.events import Note, Order, TellRow
from recycle_runtime.coordinator.journal import Damaged, Field, Lines
from recycle_runtime.coordinator.participant import Asked, Hears, Memory, Participant, View
from recycle_runtime.protocol.codec import Natural, ProtocolError, decode
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.steps import LossShare, StepDone, StepRow, StepSettled


@dataclass(slots=True)
class _Telling:
    """Words of the workers of a generation about a step, as it was run last."""

    corrections: int
    """Of steps before it, as the workers count them: after another one it is run again."""
    losses: dict[Member, float] = field(default_factory=dict[Member, float])
    rate: float | None = None
    done: dict[Member, StepDone] = field(default_factory=dict[Member, StepDone])
    """By those who have made it."""


class _Earlier(NamedTuple):
    """A step as an earlier generation may have made it."""

    corrections: int
    row: StepRow


class StepRows(Participant):
    """Rows come out in order, each once: when all processes of a generation have reported, or it has ended.

    The loss of a step is the sum of what the workers of the last stage add to it. They say it before
    anybody can make the step, so that a step which counts has its loss whoever dies. A step that a generation
    begins with is made again, unless all but those who had made it fail before they have undone it: then it
    counts as it was made first.

    Shares may be said of a step whose predecessor is corrected afterwards: it is run again, and they are said
    again with a larger number of corrections. Those of different numbers are never added up: one that was not
    said again, or not heard, is unknown.
    """

    memory = (
        Memory(
            "rows of steps",
            said=(LossShare, StepDone),
            journal={"row": Field(Natural), "told": Field(Any, needs=("row",))},
            again="`recall` asks for those of the steps that have no row",
        ),
    )

    def __init__(self, first: int = 0) -> None:
        self.next = first
        """The first step whose row is not complete."""
        self._with_loss: frozenset[Member] = frozenset()
        self._told: dict[int, _Telling] = {}
        self._earlier: dict[int, _Earlier] = {}
        """Steps that may have been made in a generation before this one, and are made again."""
        self._members: frozenset[Member] = frozenset()
        self._live, self._plan = 0, ""

    @classmethod
    def open(cls, asked: Asked, job: View) -> "StepRows":
        return cls(asked.begins.step)

    def hears(self) -> Hears:
        return {LossShare: self._hear_share, StepDone: self._hear_done}

    def _hear_share(self, member: Member, said: LossShare) -> list[Order]:
        self.add_share(member, said)
        return []

    def _hear_done(self, member: Member, said: StepDone) -> list[Order]:
        if member in self.job.roster:
            self.job.roster.entries[member].has_stepped = True
        return self.told(self.add(member, said))

    def told(self, rows: Iterable[StepRow]) -> list[Order]:
        """Orders to write them down, and to tell them."""
        return [order for row in rows for order in (Note({"row": row.step, "told": row}), TellRow(row))]

    def recall(self, lines: Lines) -> None:
        for fields in (line.fields for line in lines.all):
            if "row" in fields:
                self.next = fields["row"] + 1
            elif "begins" in fields:
                self.next = fields["begins"][1]

    def begin(
        self,
        step: int,
        members: frozenset[Member],
        live: int,
        plan: str,
        with_loss: frozenset[Member] = frozenset(),
    ) -> list[StepRow]:
        """A new generation. Whatever comes before its first step has been made; the rest is made again.

        `with_loss` are the members whose shares make up the loss.
        """
        rows = [self._row() for _ in range(self.next, step)]
        for made, telling in self._told.items():
            row, earlier = self._made(made, telling), self._earlier.get(made)
            if row.loss is not None:
                self._earlier[made] = _Earlier(telling.corrections, row)
            elif earlier is not None and earlier.corrections != telling.corrections:
                del self._earlier[made]
        self._told.clear()
        self._members, self._live, self._plan, self._with_loss = members, live, plan, with_loss
        return rows

    def is_made_by(self, member: Member) -> bool:
        """True if steps of this generation count only when this process has made them."""
        return member in self._members

    def add_share(self, member: Member, said: LossShare | StepDone) -> None:
        """Add a process's share of the loss of a step that it may fail to finish, and its learning rate."""
        if said.step < self.next or member not in self._members:
            return
        telling = self._told.get(said.step)
        if telling is None or telling.corrections < said.corrections:
            telling = self._told[said.step] = _Telling(said.corrections)
        if telling.corrections > said.corrections:
            return
        if said.loss is not None:
            telling.losses[member] = said.loss
        if said.rate is not None:
            telling.rate = said.rate
        if isinstance(said, StepDone):
            telling.done[member] = said

    def add(self, member: Member, done: StepDone) -> list[StepRow]:
        """A process has made a step; rows that are complete now."""
        self.add_share(member, done)
        rows: list[StepRow] = []
        # Nobody else is in there.
        while (
            self._members
            and (telling := self._told.get(self.next)) is not None
            and len(self._members) == len(telling.done)
        ):
            rows.append(self._row())
        return rows

    def _row(self) -> StepRow:
        step, self.next = self.next, self.next + 1
        telling, earlier = self._told.pop(step, None), self._earlier.pop(step, None)
        if telling is None:
            return self._made(step, _Telling(0)) if earlier is None else earlier.row
        row = self._made(step, telling)
        if row.loss is None and earlier is not None and earlier.corrections == telling.corrections:
            return earlier.row
        return row

    def _made(self, step: int, telling: _Telling) -> StepRow:
        """Row of a step of this generation, from all reports on it."""
        losses, done = telling.losses, telling.done.values()
        is_known = self._with_loss <= losses.keys()
        # The ranks of a worker load the same samples, and route them alike.
        loaded = [each for member, each in telling.done.items() if member.tp_rank == 0]
        return StepRow(
            step,
            sum(losses[member] for member in sorted(self._with_loss)) if is_known else None,
            max((each.seconds for each in done), default=0.0),
            self._live,
            self._plan,
            max((each.data_wait for each in done), default=0.0),
            samples=sum(each.samples for each in loaded),
            tokens=sum(each.tokens for each in loaded),
            learning_rate=telling.rate,
            choices=sum(each.choices for each in loaded),
            dropped=sum(each.dropped for each in loaded),
        )


def told_since(lines: Lines, step: int) -> list[StepRow | StepSettled]:
    """Rows from this step on, as they were published, and outcomes of steps from the one before it on."""
    told: list[StepRow | StepSettled] = []
    damaged = Damaged(lines.path)
    for number, fields in lines.all:
        if "settled" in fields and fields["settled"].step >= step - 1:
            told.append(fields["settled"])
        if "told" not in fields or fields["row"] < step:
            continue
        try:
            told.append(decode(StepRow, fields["told"]))
        except ProtocolError:
            damaged.note(number)
    damaged.say()
    return told
