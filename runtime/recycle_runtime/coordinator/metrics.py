"""What is measured of a job: its steps, and how long each change took. Standard library only."""

from dataclasses import dataclass, field
from typing import NamedTuple

from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.observers import Recovered
from recycle_runtime.protocol.messages.steps import LossShare, StepDone, StepRow


@dataclass(slots=True)
class _Telling:
    """What the workers of a generation have said about a step, as it was run last."""

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


class StepRows:
    """Rows come out in order, each once: when all processes of a generation have reported, or it has ended.

    The loss of a step is the sum of what the workers of the last stage add to it. They say it before
    anybody can make the step, so that a step which counts has its loss whoever dies. A step that a generation
    begins with is made anew, unless all but those who had made it fail before they have undone it: then it
    counts as it was made first.

    Shares may be said of a step whose predecessor is corrected afterwards: it is run again, and they are said
    again with a larger number of corrections. Those of different numbers are never added up: one that was not
    said again, or not heard, is unknown.
    """

    def __init__(self, first: int = 0) -> None:
        self.next = first
        """The first step whose row is not complete."""
        self._with_loss: frozenset[Member] = frozenset()
        self._told: dict[int, _Telling] = {}
        self._earlier: dict[int, _Earlier] = {}
        """Steps that may have been made in a generation before this one, and are made again."""
        self._members: frozenset[Member] = frozenset()
        self._live, self._plan = 0, ""

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
        """Whether steps of this generation count only when this process has made them."""
        return member in self._members

    def add_share(self, member: Member, said: LossShare | StepDone) -> None:
        """What a process adds to the loss of a step that it may fail to finish, and its learning rate."""
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
        """What is known of a step of this generation."""
        losses, done = telling.losses, telling.done.values()
        is_known = self._with_loss <= losses.keys()
        # The ranks of a worker load the same samples.
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
        )


@dataclass(slots=True)
class Recovery:
    """How one change of generation went; times in seconds of the machine's monotonic clock."""

    generation: int
    causes: list[str] = field(default_factory=list[str])
    began: float = 0.0
    """When the coordinator heard of it."""
    fault_at: float | None = None
    """When it happened, if that is known."""
    left: float = 0.0
    """When all had left the old group and reported their step."""
    going: float = 0.0
    """When all run in the new one; 0 until then."""
    step: int = 0
    """Where training goes on."""
    undone: int = 0
    """How many workers took a step back."""
    repeated: float = 0.0
    """Seconds of training that are run again."""
    plan: str = ""
    reason: str = ""
    """What the first worker said whose own work failed."""

    def told(self) -> Recovered:
        """What happened and how long each phase of it took."""
        start = self.began if self.fault_at is None else self.fault_at
        return Recovered(
            generation=self.generation,
            causes=tuple(self.causes),
            step=self.step,
            undone=self.undone,
            repeated=self.repeated,
            plan=self.plan,
            detection=round(self.began - start, 6),
            leaving=round(self.left - self.began, 6),
            regroup=round(self.going - self.left, 6),
            total=round(self.going - start, 6),
        )
