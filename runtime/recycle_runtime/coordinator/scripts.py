"""Questions of the scripts of a job, and the answers: belongs to the job's state machine.

Every worker runs the same script, and all of them ask for the same: a worker whose script asks for something
else ends the job with a sentence. What all have to see alike, the loss of a step or the result of an
evaluation, is decided here once, and sent to everybody who asks: those who were there, and those who join
and run the same lines later. Needs no torch.
"""

from collections.abc import Collection, Iterable, Sequence

from recycle_runtime.checkpoint.script_state import ScriptState
from recycle_runtime.coordinator.events import Answer, GivenUp, Note, Order, ScriptsKeep, Send, Tell
from recycle_runtime.coordinator.journal import Field, Lines
from recycle_runtime.coordinator.participant import Asked, Hears, Memory, NewGeneration, Participant, View
from recycle_runtime.coordinator.step_rows import StepRows, told_since
from recycle_runtime.plan.worker_ids import worker_text
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.scripts import (
    Evaluated,
    EvaluationRequest,
    EvaluationShare,
    InScript,
    KeptRequest,
    KeptState,
    LoopBegins,
    LoopRequest,
    OtherEnded,
    OtherEvaluates,
    RowRequest,
    ScriptEnded,
    ScriptSteps,
    SettledRequest,
)
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled

_KEPT_ROWS = 4096
"""Scripts ask for those of the steps that they have just made."""
_RECALLED_ROWS = 64
"""The same, of the steps before the coordinator was killed."""


class Scripts(Participant):
    """Of all workers; nothing is ever said here in a job with a program file that has no hooks."""

    memory = (
        Memory(
            "results of evaluations",
            said=(EvaluationShare, EvaluationRequest),
            journal={"evaluated": Field(Evaluated)},
            again="after `recall`, while the script waits for a result",
        ),
        Memory(
            "questions of scripts, and where they have ended",
            said=(ScriptSteps, LoopRequest, ScriptEnded, RowRequest, SettledRequest, KeptRequest),
            again="after `recall`, while the script waits for the answer; rows and outcomes of the last "
            "steps are read from the journal",
        ),
        Memory(
            "the state that scripts keep",
            said=(KeptState,),
            lost="checkpoints, saves and copies that wait for it are given up with the coordinator; whoever "
            "needs it asks again",
        ),
        Memory("scripts that are busy", said=(InScript,), again="at short intervals, while they are"),
    )

    def __init__(self) -> None:
        self.ended: dict[Member, int] = {}
        """The step before which a script has ended."""
        self.main: Member | None = None
        """Member whose script speaks for all; it stays so as long as it lives."""
        self._totals: dict[int, tuple[Member, int]] = {}
        """Steps that a loop asks for, and who said so first."""
        self._begins: dict[int, int] = {}
        """First step of each loop, by number."""
        self._rows: dict[int, StepRow] = {}
        self._asked: dict[int, list[Member]] = {}
        """Members that wait for a row, by its step."""
        self._settled: dict[int, StepSettled] = {}
        self._asked_settled: dict[int, list[Member]] = {}
        """Members that wait for the outcome of a step, by that step."""
        self._shares: dict[tuple[int, int], dict[Member, float]] = {}
        """Of evaluations that are under way, by step and number."""
        self._results: dict[tuple[int, int], Evaluated] = {}
        """Of all that are complete: whoever joins may run lines that others have run long ago."""
        self._evaluating: tuple[int, int] | None = None
        """The evaluation that a script has asked for last: the others have heard of it."""
        self._with_loss: frozenset[Member] = frozenset()
        self._kept: dict[int, bytes] = {}
        """State of the scripts before a step, by that step."""
        self._keepers: dict[int, list[Member]] = {}
        """Members that wait for that state."""
        self._asked_main: set[int] = set()

    @classmethod
    def open(cls, asked: Asked, job: View) -> "Scripts":
        made = cls()
        begins = asked.begins
        if begins.checkpoint is not None:
            # One that was made by a run with a program file: the loss of its last step is not known here.
            unknown = ScriptState(b"", StepRow(begins.step - 1, None, 0.0, 0, ""))
            made.resume(begins.step, *(asked.script or unknown))
        return made

    def hears(self) -> Hears:
        return {
            ScriptSteps: self._hear_steps,
            LoopRequest: lambda member, said: self.loop(member, said.call),
            ScriptEnded: lambda member, said: self.end(member, said.step, self.job.roster.active()),
            RowRequest: lambda member, said: self.wants_row(member, said.step),
            SettledRequest: lambda member, said: self.wants_settled(member, said.step),
            EvaluationShare: self._hear_share,
            EvaluationRequest: lambda member, said: self.result(
                member, said.step, said.number, self.job.roster.active()
            ),
            KeptRequest: lambda member, said: self.wants_kept(member, said.step),
            KeptState: self._hear_kept,
        }

    def _hear_steps(self, member: Member, said: ScriptSteps) -> list[Answer]:
        why = self.wants(member, said.call, said.steps, said.begins)
        return [] if why is None else [GivenUp(why)]

    def _hear_share(self, member: Member, said: EvaluationShare) -> list[Order]:
        if not self.job.is_current(member, said.generation):
            return []
        return self.share(member, said, self.job.roster.active())

    def _hear_kept(self, member: Member, said: KeptState) -> list[Answer]:
        known = [] if said.data is None else self.keeps(said.step, said.data)
        return [*known, ScriptsKeep(said.step, is_known=said.data is not None)]

    def generation(self, new: NewGeneration) -> list[Order]:
        return self.begin(new.step, new.members, new.with_loss)

    def go_on(self, new: NewGeneration) -> None:
        self.generation(new)

    def progress(self, rows: Sequence[StepRow]) -> list[Order]:
        return [order for row in rows for order in self.row(row)]

    def recall(self, lines: Lines) -> None:
        lines = lines.of_last_run()
        self._results = {(result.step, result.number): result for result in lines.values("evaluated")}
        last = max(lines.values("row"), default=0)
        for told in told_since(lines, last + 1 - _RECALLED_ROWS):
            if isinstance(told, StepSettled):
                self._settled[told.step] = told
            else:
                self._rows[told.step] = told

    def resume(
        self,
        step: int,
        kept: bytes,
        row: StepRow,
        settled: StepSettled | None = None,
        loops: Iterable[tuple[int, int]] = (),
    ) -> None:
        """A run begins with this step, where another has left off."""
        self._begins = dict(loops)
        self._kept[step] = kept
        self._rows.setdefault(row.step, row)
        # What was not written down nobody knows any more.
        self._settled.setdefault(row.step, settled or StepSettled(row.step, None, is_skipped=False))

    def begin(self, step: int, working: Collection[Member], with_loss: frozenset[Member]) -> list[Order]:
        """A generation begins before this step: evaluations that are not complete are made again."""
        if self.main not in working:
            self.main = min(working, default=None)
        self._with_loss = with_loss
        self._shares.clear()
        known = [result for result in self._results.values() if result.step == step]
        # Whoever was asked may be gone.
        wanted, self._asked_main = sorted(self._asked_main), set()
        again = [order for each in wanted for order in self.want_kept(each)]
        return [*(Send(member, result) for member in working for result in known), *again]

    def drop(self, member: Member) -> None:
        """It is gone."""
        self.ended.pop(member, None)
        for waiting in (*self._asked.values(), *self._asked_settled.values(), *self._keepers.values()):
            if member in waiting:
                waiting.remove(member)

    def wants(self, member: Member, call: int, steps: int, begins: int | None = None) -> str | None:
        """A loop of a script asks for so many steps; what is wrong with that."""
        if begins is not None:
            self._begins.setdefault(call, begins)
        first, known = self._totals.setdefault(call, (member, steps))
        if known == steps:
            return None
        return (
            f"the script of worker {worker_text(member.worker)} asks for {steps} steps, and that of worker "
            f"{worker_text(first.worker)} for {known}: every worker runs the same script and asks for "
            "the same"
        )

    def loop(self, member: Member, call: int) -> list[Order]:
        """Answer a script that has begun a loop: one that joins has to know at which step the loop began."""
        return [Send(member, LoopBegins(call, self._begins.get(call)))]

    def loops_before(self, step: int) -> tuple[tuple[int, int], ...]:
        """Those that have begun by then, each with its first step."""
        return tuple((call, begins) for call, begins in sorted(self._begins.items()) if begins <= step)

    def end(self, member: Member, step: int, active: Collection[Member]) -> list[Order]:
        """A script has ended; those that have asked for the next step hear of it."""
        self.ended[member] = step
        return [Send(other, OtherEnded(member.worker, step)) for other in active if other != member]

    def ending(self) -> list[Member]:
        """Workers that train; in a job with scripts, none whose script waits to be part of the group."""
        active = self.job.roster.active()
        return [one for one in active if self.job.get(StepRows).is_made_by(one)] if self.ended else active

    def ended_before(self, working: Collection[Member]) -> int | None:
        """The step before which all of these have ended; None while one of them has not."""
        steps = {self.ended.get(member) for member in working} if self.ended else ()
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

    def wants_settled(self, member: Member, step: int) -> list[Order]:
        """The answer, if it is known."""
        if (settled := self._settled.get(step)) is not None:
            return [Send(member, settled)]
        waiting = self._asked_settled.setdefault(step, [])
        if member not in waiting:
            waiting.append(member)
        return []

    def settle(self, settled: StepSettled) -> list[Order]:
        """It is known what became of a step; what is said first counts."""
        settled = self._settled.setdefault(settled.step, settled)
        self._settled.pop(settled.step - _KEPT_ROWS, None)
        return [Send(member, settled) for member in self._asked_settled.pop(settled.step, ())]

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
        told = Tell(f"evaluation {result.number} after {result.step} steps: loss {result.loss:.6f}")
        return [Note({"evaluated": result}), told, *(Send(other, result) for other in active)]

    def result(self, member: Member, step: int, number: int, active: Collection[Member]) -> list[Order]:
        """Of an evaluation that the others have made without it; if nobody has, they hear who waits first."""
        result = self._results.get((step, number))
        if result is not None:
            return [Send(member, result)]
        if self._evaluating == (step, number):
            return []
        self._evaluating = step, number
        return [
            Send(other, OtherEvaluates(member.worker, step, number)) for other in active if other != member
        ]

    def want_kept(self, step: int) -> list[Order]:
        """Ask the main worker what its script keeps before a step."""
        if step in self._kept or step in self._asked_main or self.main is None:
            return []
        self._asked_main.add(step)
        return [Send(self.main, KeptRequest(step))]

    def wants_kept(self, member: Member, step: int) -> list[Order]:
        """A worker that joins needs it; the answer, if it is known."""
        if (data := self._kept.get(step)) is not None:
            return [Send(member, KeptState(step, data))]
        waiting = self._keepers.setdefault(step, [])
        if member not in waiting:
            waiting.append(member)
        return self.want_kept(step)

    def keeps(self, step: int, data: bytes) -> list[Order]:
        """The main worker has answered."""
        self._asked_main.discard(step)
        self._kept = {at: kept for at, kept in self._kept.items() if at >= step - 1} | {step: data}
        return [Send(member, KeptState(step, data)) for member in self._keepers.pop(step, ())]

    def state_before(self, step: int) -> ScriptState | None:
        """The state of scripts for a checkpoint of this step, if it is known by now."""
        kept, row = self._kept.get(step), self._rows.get(step - 1)
        if kept is None or row is None:
            return None
        return ScriptState(kept, row, self._settled.get(step - 1), self.loops_before(step))
