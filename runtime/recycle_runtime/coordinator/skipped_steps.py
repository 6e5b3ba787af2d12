"""Steps that were left out because a gradient is not finite: where that began, and how many are too many.

Needs no torch.
"""

from collections.abc import Callable, Collection
from itertools import takewhile

from recycle_runtime.coordinator.events import Answer, GivenUp, Note, Order, Tell, TellSettled
from recycle_runtime.coordinator.journal import Field, Lines
from recycle_runtime.coordinator.participant import Asked, Hears, Memory, Participant, View
from recycle_runtime.options.run import MAX_SKIPPED
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.steps import MOST_SAID_AGAIN, ROUTER, Settled, StepSettled

_WORDS = {
    "data": "the data of micro-batch {}",
    ROUTER: "the router of {1} for micro-batch {0}",
    "forward": "the forward of micro-batch {}",
    "loss": "the loss of micro-batch {}",
    "backward": "the backward of micro-batch {}",
}
StageOf = Callable[[Worker], int | None]


class SkippedSteps(Participant):
    """Verdicts on steps, as they are reported: each step once, however often it is made."""

    memory = (
        Memory(
            "what became of steps",
            said=(Settled,),
            journal={"settled": Field(StepSettled)},
            again="`recall` asks for that of the last step with a row, and of those after it",
        ),
    )

    def __init__(self, most: int = MAX_SKIPPED) -> None:
        self._most = most
        self._verdicts: dict[int, bool] = {}
        """True for a step that was skipped; of the last steps that were heard of, in any order."""
        self._last = -1
        self.in_a_row = 0
        """Up to the last one that was heard of; a step without a verdict was made by somebody."""
        self._open: tuple[int, dict[Member, Settled]] | None = None
        """A step that was skipped, with what its workers say, until all have."""
        self.words = ""
        """About the last one that was."""

    @classmethod
    def open(cls, asked: Asked, job: View) -> "SkippedSteps":
        return cls(MAX_SKIPPED if asked.max_skipped is None else asked.max_skipped)

    def hears(self) -> Hears:
        return {Settled: self._hear_settled}

    def _hear_settled(self, member: Member, said: Settled) -> list[Answer]:
        if member not in self.job.roster:
            return []
        stage_of = self.job.cells.stage
        answers: list[Answer] = [*self.hear(member, said, self.job.roster.active(), stage_of)]
        if self.is_too_often:
            answers.append(GivenUp(f"the last {self.in_a_row} steps were skipped; {self.words}"))
        return answers

    def recall(self, lines: Lines) -> None:
        for settled in lines.of_last_run().values("settled"):
            self._count(settled.step, is_skipped=settled.is_skipped)

    def has_made_none(self, steps: int) -> bool:
        """True if all of so many steps were left out."""
        return steps > 0 and self.in_a_row >= steps

    @property
    def is_too_often(self) -> bool:
        """Once it is known where the last one began."""
        return self.in_a_row >= self._most and self._open is None

    def hear(
        self, member: Member, said: Settled, members: Collection[Member], stage_of: StageOf
    ) -> list[Order]:
        """Handle a worker's report on a step; `members` are all that train."""
        orders: list[Order] = []
        if said.step not in self._verdicts and said.step > self._last - MOST_SAID_AGAIN:
            # After a return of the coordinator it may be an older one: one worker tells of all steps, and
            # others, which may be heard before it, of those that were skipped.
            if said.step > self._last:
                orders += self._close(stage_of)
                self._open = (said.step, {}) if said.is_skipped else None
            self._count(said.step, is_skipped=said.is_skipped)
            settled = StepSettled(said.step, said.norm, said.is_skipped)
            orders += [Note({"settled": settled}), TellSettled(settled)]
        if self._open is not None and self._open[0] == said.step:
            self._open[1][member] = said
            if set(members) <= set(self._open[1]):
                orders += self._close(stage_of)
        return orders

    def _count(self, step: int, *, is_skipped: bool) -> None:
        self._verdicts[step] = is_skipped
        self._verdicts.pop(step - MOST_SAID_AGAIN, None)
        if step == self._last + 1:
            self.in_a_row = self.in_a_row + 1 if is_skipped else 0
        else:
            last = max(step, self._last)
            row = takewhile(lambda each: self._verdicts.get(each, False), range(last, -1, -1))
            self.in_a_row = sum(1 for _ in row)
        self._last = max(step, self._last)

    def ends(self) -> list[Order]:
        """Whoever has not said anything never will."""
        return self._close(self.job.cells.stage)

    def _close(self, stage_of: StageOf) -> list[Order]:
        if self._open is None:
            return []
        (step, said), self._open = self._open, None
        self.words = f"step {step} was skipped: {_first(said, stage_of)}"
        return [Tell(self.words)]


def _first(said: dict[Member, Settled], stage_of: StageOf) -> str:
    """Values go from the first stage to the last, and gradients back: the first there is where it began."""
    found = [
        (not_finite.what, stage_of(member.worker) or 0, not_finite.microbatch, member.worker)
        for member, settled in said.items()
        for not_finite in settled.not_finite
        if _kind(not_finite.what)[0] in _WORDS
    ]
    values = [each for each in found if each[0] != "backward"]
    if values:
        what, stage, microbatch, worker = min(values, key=lambda each: (each[0] != "data", each[1:]))
    elif found:
        what, stage, microbatch, worker = min(found, key=lambda each: (-each[1], each[2:]))
    else:
        return "a gradient of a weight is not finite"
    where = f"on stage {stage} (worker {worker_text(worker)})"
    kind, name = _kind(what)
    return f"{_WORDS[kind].format(microbatch, name)} {where} is the first that is not finite"


def _kind(what: str) -> tuple[str, str]:
    """The value that was computed, and its router where it was one."""
    return (ROUTER, what.removeprefix(ROUTER)) if what.startswith(ROUTER) else (what, "")
