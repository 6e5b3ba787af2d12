"""What the scripts of a job have asked for and been told: belongs to the job's state machine.

Every worker runs the same script, and all of them ask for the same: a worker whose script asks for something
else ends the job with a sentence. What all have to see alike, the loss of a step or the result of an
evaluation, is decided here once, and told to everybody who asks: those who were there, and those who join
and run the same lines later. Standard library only.
"""

from collections.abc import Collection, Iterable

from recycle_runtime.coordinator.events import Order, Send, TellEvaluation
from recycle_runtime.coordinator.membership import name_of
from recycle_runtime.protocol.messages import (
    Evaluated,
    EvaluationShare,
    Member,
    OtherEnded,
    StepRow,
)

_KEPT_ROWS = 4096
"""Scripts ask for those of the steps that they have just made."""


class Scripts:
    """Of all workers; nothing is ever said here in a job with a program file that has no hooks."""

    def __init__(self) -> None:
        self.ended: dict[Member, int] = {}
        """The step before which a script has ended."""
        self.main: Member | None = None
        """Whose script speaks for all; it stays so as long as it lives."""
        self._totals: dict[int, tuple[Member, int]] = {}
        """Steps that a loop asks for, and who said so first."""
        self._rows: dict[int, StepRow] = {}
        self._asked: dict[int, list[Member]] = {}
        """Who waits for which row."""
        self._shares: dict[tuple[int, int], dict[Member, float]] = {}
        """Of evaluations that are under way, by step and number."""
        self._results: dict[tuple[int, int], Evaluated] = {}
        """Of all that are complete: whoever joins may run lines that others have run long ago."""
        self._with_loss: frozenset[Member] = frozenset()

    def remember(self, results: Iterable[Evaluated]) -> None:
        """What was known before the coordinator was restarted."""
        self._results = {(result.step, result.number): result for result in results}

    def begin(self, step: int, working: Collection[Member], with_loss: frozenset[Member]) -> list[Order]:
        """A generation begins before this step: evaluations that are not complete are made again."""
        if self.main not in working:
            self.main = min(working, default=None)
        self._with_loss = with_loss
        self._shares.clear()
        known = [result for result in self._results.values() if result.step == step]
        return [Send(member, result) for member in working for result in known]

    def drop(self, member: Member) -> None:
        """It is gone."""
        self.ended.pop(member, None)
        for waiting in self._asked.values():
            if member in waiting:
                waiting.remove(member)

    def wants(self, member: Member, call: int, steps: int) -> str | None:
        """A loop of a script asks for so many steps; what is wrong with that."""
        first, known = self._totals.setdefault(call, (member, steps))
        if known == steps:
            return None
        return (
            f"the script of worker {name_of(member.worker)} asks for {steps} steps, and that of worker "
            f"{name_of(first.worker)} for {known}: every worker runs the same script and asks for the same"
        )

    def end(self, member: Member, step: int, active: Collection[Member]) -> list[Order]:
        """A script has ended; those that have asked for the next step hear of it."""
        self.ended[member] = step
        return [Send(other, OtherEnded(member.worker, step)) for other in active if other != member]

    def ended_before(self, working: Collection[Member]) -> int | None:
        """The step before which all of these have ended; None while one of them has not."""
        steps = {self.ended.get(member) for member in working}
        return next(iter(steps)) if len(steps) == 1 else None

    def wants_row(self, member: Member, step: int) -> list[Order]:
        """The answer, if it is known."""
        if (row := self._rows.get(step)) is not None:
            return [Send(member, row)]
        waiting = self._asked.setdefault(step, [])
        if member not in waiting:
            waiting.append(member)
        return []

    def row(self, row: StepRow) -> list[Order]:
        """A step counts."""
        self._rows[row.step] = row
        self._rows.pop(row.step - _KEPT_ROWS, None)
        return [Send(member, row) for member in self._asked.pop(row.step, ())]

    def share(self, member: Member, message: EvaluationShare, active: Collection[Member]) -> list[Order]:
        """Of an evaluation in the generation that runs; its result, once all shares are there."""
        key = message.step, message.number
        if key in self._results:
            return []
        shares = self._shares.setdefault(key, {})
        shares[member] = message.loss
        if not self._with_loss <= shares.keys():
            return []
        del self._shares[key]
        loss = sum(shares[one] for one in sorted(self._with_loss)) / message.items
        result = self._results[key] = Evaluated(message.step, message.number, loss)
        return [TellEvaluation(result), *(Send(other, result) for other in active)]

    def result(self, member: Member, step: int, number: int) -> list[Order]:
        """Of an evaluation that the other workers have made without it."""
        result = self._results.get((step, number))
        return [] if result is None else [Send(member, result)]
