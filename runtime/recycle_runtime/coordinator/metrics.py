"""What is measured of a job: its steps, and how long each change took. Standard library only."""

from dataclasses import dataclass, field

from recycle_runtime.protocol.messages import Member, Recovered, StepDone, StepRow


class StepRows:
    """Rows come out in order, each once: when all processes of a generation have reported, or it has ended.

    The loss of a step is the sum of what the workers of the last stage add to it. They say it before
    anybody can make the step, so that a step which counts has its loss whoever dies. A step that a generation
    begins with is made anew, unless all but those who had made it fail before they have undone it: then it
    counts as it was made first.
    """

    def __init__(self, first: int = 0) -> None:
        self.next = first
        """The first step whose row is not complete."""
        self._with_loss: frozenset[Member] = frozenset()
        self._said: dict[int, dict[Member, StepDone]] = {}
        """By those who have made the step."""
        self._losses: dict[int, dict[Member, float]] = {}
        self._rates: dict[int, float] = {}
        self._earlier: dict[int, StepRow] = {}
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
        self._earlier |= {row.step: row for row in map(self._made, self._losses) if row.loss is not None}
        self._said.clear()
        self._losses.clear()
        self._rates.clear()
        self._members, self._live, self._plan, self._with_loss = members, live, plan, with_loss
        return rows

    def is_made_by(self, member: Member) -> bool:
        """Whether steps of this generation count only when this process has made them."""
        return member in self._members

    def add_loss(self, member: Member, step: int, loss: float | None, rate: float | None = None) -> None:
        """What a process adds to the loss of a step that it may fail to finish, and its learning rate."""
        if step < self.next or member not in self._members:
            return
        if loss is not None:
            self._losses.setdefault(step, {})[member] = loss
        if rate is not None:
            self._rates[step] = rate

    def add(self, member: Member, done: StepDone) -> list[StepRow]:
        """A process has made a step; rows that are complete now."""
        step = done.step
        self.add_loss(member, step, done.loss, done.rate)
        if step >= self.next and member in self._members:
            self._said.setdefault(step, {})[member] = done
        rows: list[StepRow] = []
        # Nobody else is in there.
        while self._members and len(self._members) == len(self._said.get(self.next, ())):
            rows.append(self._row())
        return rows

    def _row(self) -> StepRow:
        step, self.next = self.next, self.next + 1
        row, earlier = self._made(step), self._earlier.pop(step, None)
        for told in (self._losses, self._said, self._rates):
            told.pop(step, None)
        return earlier if earlier is not None and row.loss is None else row

    def _made(self, step: int) -> StepRow:
        """What is known of a step of this generation."""
        losses, said = self._losses.get(step, {}), self._said.get(step, {})
        is_known = self._with_loss <= losses.keys()
        # The ranks of a worker load the same samples.
        loaded = [done for member, done in said.items() if member.tp_rank == 0]
        return StepRow(
            step,
            sum(losses[member] for member in sorted(self._with_loss)) if is_known else None,
            max((done.seconds for done in said.values()), default=0.0),
            self._live,
            self._plan,
            max((done.data_wait for done in said.values()), default=0.0),
            samples=sum(done.samples for done in loaded),
            tokens=sum(done.tokens for done in loaded),
            learning_rate=self._rates.get(step),
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
