"""Meeting place of a user's script and the engine, which trains, each on a thread of its own.

    script    asks for step 7, waits                 goes on with the loop's body      asks for step 8, waits
    engine                        makes step 7                                                 makes step 8

The engine works only while the script waits in a call of its trainer: user code and training never run at
the same time in a process. A step that all workers make again, because one of them failed before all had
it, is made again while the script waits for something, and the script does not see it. The script of a worker
that joins has no part in training until that worker is a full member of the group: its engine runs free.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from recycle_runtime.execution.evaluation import EvaluationData
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.protocol.messages.generations import Failed
from recycle_runtime.protocol.messages.scripts import (
    Evaluated,
    EvaluationRequest,
    EvaluationShare,
    KeptRequest,
    KeptState,
    LoopBegins,
    LoopRequest,
    OtherEnded,
    OtherEvaluates,
    OtherSaves,
    RowRequest,
    Saved,
    SaveOrder,
    SaveRequest,
    SaveShare,
    ScriptEnded,
    ScriptSteps,
    SettledRequest,
    ToScript,
)
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled
from recycle_runtime.protocol.messages.wire import FromWorker


class Next(Enum):
    """Action of the engine at a boundary between two steps."""

    STEP = "make the step"
    WAIT = "wait for the script"
    JUDGE = "say what becomes of the last step"
    STOP = "stop: the script has ended"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Forward passes over some micro-batches, before a step."""

    step: int
    number: int
    """Among the evaluations before the same step."""
    data: EvaluationData


@dataclass(frozen=True, slots=True)
class Save:
    """The parameters before a step, settled; to disk, if this process is asked for its shards."""

    path: str | None


@dataclass(frozen=True, slots=True)
class ScriptStart:
    """Beginning of a script."""

    step: int
    """The first one that it is given."""
    is_made: bool
    """True if that step is made already: by the other workers if this one joins, or before a resume."""
    run_begins: int
    """The first step of the run."""


class _LeftToParent(threading.Condition):
    """In place of a condition whose other thread is in another process."""

    def __enter__(self) -> bool:
        raise ProgramError(
            "a process that a script has forked cannot use its trainer, nor ask for what a report has not "
            "said yet: that is for the worker's own process"
        )


class Requests:
    """Requests of a script, and their answers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._say: Callable[[FromWorker], None] = lambda _: None
        self._wake: Callable[[], None] = lambda: None
        self._start: ScriptStart | None = None
        self.is_main = False
        self.worker: Worker = (0, 0)
        self.generation = 0
        self._granted = 0
        """Steps that may be made."""
        self._applied = 0
        """Steps that the parameters of this worker have seen."""
        self._most_applied = 0
        """The most that they have seen: a step may be undone, and what the script does is not."""
        self._is_inside = False
        """True if the script waits in a call."""
        self._is_busy = False
        """True if the engine works."""
        self._has_ended = False
        self._evaluation: Evaluation | None = None
        self._shares: dict[tuple[int, int], EvaluationShare] = {}
        self._results: dict[tuple[int, int], float] = {}
        self._save: SaveRequest | None = None
        """That the script waits for."""
        self._save_order: SaveOrder | None = None
        """The newest one."""
        self._settled_for: tuple[int, SaveRequest] | None = None
        """In which generation for which save the last step was settled."""
        self._save_share: SaveShare | None = None
        self._saved: Saved | None = None
        self._rows: dict[int, StepRow] = {}
        self._wanted_rows: set[int] = set()
        self._settled: dict[int, StepSettled] = {}
        self._wanted_settled: int | None = None
        self._judged: tuple[int, int] | None = None
        """In which generation this worker has said what becomes of which step."""
        self._wanted_steps: list[ScriptSteps] = []
        self._loops: dict[int, int | None] = {}
        self._wanted_loop: int | None = None
        self._others_end: tuple[Worker, int] | None = None
        self._others_evaluation: OtherEvaluates | None = None
        self._others_save: OtherSaves | None = None
        self._last_evaluation = self._last_save = (-1, -1)
        """Step and number of what this script has asked for."""
        self._data: dict[int, Any] = {}
        """Data that the script gives for the last steps that it has asked for."""
        self._snapshots: dict[int, bytes] = {}
        """State that the script keeps before a step, of the last steps."""
        self._wanted_snapshots: set[int] = set()
        self._kept: dict[int, bytes] = {}
        """The same, as others have it."""
        self._wanted_kept: int | None = None

    def leave_to_parent(self) -> None:
        """This process is a copy of the worker's, without its engine: whatever it asks for is refused."""
        self._changed = _LeftToParent()

    def attach(self, say: Callable[[FromWorker], None], wake: Callable[[], None]) -> None:
        """The worker process is there: how it talks to the coordinator, and what wakes a waiting engine."""
        self._say, self._wake = say, wake

    # The engine.

    def arrive(self, step: int, first_step: int, worker: Worker, generation: int, *, is_main: bool) -> None:
        """This process stands before a step as a full member of a group; the run began with `first_step`."""
        with self._changed:
            self.is_main, self.worker, self.generation = is_main, worker, generation
            self._applied = step
            if self._start is None:
                joins = step > 0
                self._start = ScriptStart(step - joins, is_made=joins, run_begins=first_step)
                self._granted = step
            self._changed.notify_all()
        self._ask_for_result()

    @property
    def is_free(self) -> bool:
        """True if the engine need not wait: there is no script under way that could ask."""
        return self._start is None

    def next(self, step: int) -> Next | Evaluation | Save:
        """Next action before this step."""
        with self._changed:
            self._is_busy = False
            found = self._next(step)
            self._is_busy = isinstance(found, Evaluation | Save) or found in (Next.STEP, Next.JUDGE)
            self._changed.notify_all()
            return found

    def _next(self, step: int) -> Next | Evaluation | Save:
        if self.is_free:
            return Next.STEP
        if not self._is_inside:
            return Next.WAIT
        if step < self._granted:
            return Next.STEP
        if self._wanted_settled == step - 1 and self._judged != (self.generation, step - 1):
            return Next.JUDGE
        if self._evaluation is not None and self._evaluation.step == step:
            wanted = self._evaluation.step, self._evaluation.number
            known = wanted in self._results or self._has_share(wanted)
            return Next.WAIT if known else self._evaluation
        if self._save is not None and self._save.step == step:
            return self._due_save(self._save)
        return Next.STOP if self._has_ended else Next.WAIT

    def _due_save(self, save: SaveRequest) -> Next | Save:
        order, share = self._save_order, self._save_share
        if self._is_answer(save, self._saved):
            return Next.WAIT
        if (
            order is not None
            and (order.generation, order.step, order.number) == (self.generation, save.step, save.number)
            and (share is None or share.path != order.path)
        ):
            return Save(order.path)
        return Next.WAIT if self._settled_for == (self.generation, save) else Save(None)

    def _has_share(self, wanted: tuple[int, int]) -> bool:
        """True if this worker has done its part in the generation that runs."""
        share = self._shares.get(wanted)
        return share is not None and share.generation == self.generation

    def data(self, step: int) -> Any:
        """Data that the script gives for a step; None if it gives nothing."""
        with self._changed:
            return self._data.get(step)

    def was_made(self, step: int) -> bool:
        """True if the script may have gone on since this worker made the step for the first time."""
        with self._changed:
            return self._start is not None and step < self._most_applied

    def made(self, applied: int) -> None:
        """So many steps."""
        with self._changed:
            self._applied, self._is_busy = applied, False
            self._most_applied = max(self._most_applied, applied)
            self._changed.notify_all()

    def judged(self, step: int) -> None:
        """The coordinator knows the outcome of this step."""
        with self._changed:
            self._judged, self._is_busy = (self.generation, step), False
            self._changed.notify_all()

    def evaluated(self, evaluation: Evaluation, loss: float | None) -> None:
        """This worker's part of it is done."""
        step, number = evaluation.step, evaluation.number
        share = EvaluationShare(self.generation, step, number, evaluation.data.count, loss or 0.0)
        with self._changed:
            self._shares = {(step, number): share}
            self._is_busy = False
        if loss is not None:
            self._say(share)

    def saved(self, share: SaveShare | None) -> None:
        """The last step is settled, and this worker's part of a save is on disk, if it has one."""
        with self._changed:
            if self._save is not None:
                self._settled_for = self.generation, self._save
            if share is not None:
                self._save_share = share
            self._is_busy = False
            self._changed.notify_all()
        if share is not None:
            self._say(share)

    def rest(self) -> None:
        """The engine has left its group."""
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()

    # The line to the coordinator.

    def take(self, message: ToScript) -> None:
        """An answer, or a question."""
        with self._changed:
            match message:
                case StepRow() | StepSettled() | LoopBegins():
                    self._take_answer(message)
                case Evaluated(step, number, loss):
                    self._results[step, number] = loss
                case Saved():
                    self._saved = message
                case SaveOrder():
                    self._save_order = message
                    self._wake()
                case OtherEnded(worker, step):
                    self._others_end = worker, step
                case OtherEvaluates():
                    self._others_evaluation = message
                case OtherSaves():
                    self._others_save = message
                case KeptState(step, data):
                    self._kept[step] = data or b""
                case KeptRequest(step):
                    self._wanted_snapshots.add(step)
            self._changed.notify_all()
        self._check_end()
        self._check_others()
        self._tell_snapshots()

    def _take_answer(self, message: StepRow | StepSettled | LoopBegins) -> None:
        match message:
            case LoopBegins(call, step):
                self._loops[call] = step
            case StepSettled():
                self._settled[message.step] = message
            case StepRow():
                self._rows[message.step] = message
                self._wanted_rows.discard(message.step)

    def recall(self) -> None:
        """A new coordinator may not have heard what was asked."""
        with self._changed:
            again: list[FromWorker] = [*self._wanted_steps, *map(RowRequest, sorted(self._wanted_rows))]
            if self._wanted_settled is not None:
                again.append(SettledRequest(self._wanted_settled))
                self._judged = None
                self._wake()
            if self._wanted_loop is not None:
                again.append(LoopRequest(self._wanted_loop))
            again += self._shares.values()
            if self._evaluation is not None:
                # Its result may have been lost on the way here.
                again.append(EvaluationRequest(self._evaluation.step, self._evaluation.number))
            if self._save is not None:
                again.append(self._save)
                again += [] if self._save_share is None else [self._save_share]
            if self._wanted_kept is not None:
                again.append(KeptRequest(self._wanted_kept))
            if self._has_ended:
                again.append(ScriptEnded(self._granted))
        for message in again:
            self._say(message)

    def _check_end(self) -> None:
        """True if another script has ended before a step that this one asks for."""
        with self._changed:
            end, granted = self._others_end, self._granted
            worker = self.worker
        if end is not None and granted > end[1]:
            why = (
                f"the script of worker {worker_text(end[0])} ended before step {end[1]}, and that of worker "
                f"{worker_text(worker)} asks for it: every worker runs the same script, and must ask for the "
                "same steps"
            )
            self._say(Failed(end[1], why, is_injected=False, is_hopeless=True))

    def _check_others(self) -> None:
        """True if another script waits for what this one has passed without asking for it."""
        with self._changed:
            asked = (
                (self._others_evaluation, self._last_evaluation, "evaluates", "evaluations"),
                (self._others_save, self._last_save, "saves", "saves"),
            )
            passed = [
                (others, does, what)
                for others, last, does, what in asked
                if others is not None and self._has_passed(others, last)
            ]
            worker = self.worker
        for others, does, what in passed[:1]:
            why = (
                f"the script of worker {worker_text(others.worker)} {does} after {others.step} steps, and "
                f"that of worker {worker_text(worker)} goes on without it: every worker must ask for "
                f"the same {what}, so they may not depend on trainer.is_main"
            )
            self._say(Failed(others.step, why, is_injected=False, is_hopeless=True))

    def _has_passed(self, others: OtherEvaluates | OtherSaves, last: tuple[int, int]) -> bool:
        """True if this script will never ask for that."""
        if self._start is None or others.step < self._start.step + self._start.is_made:
            return False  # Of a time when this worker was not there.
        has_gone_on = self._granted > others.step or self._has_ended
        return has_gone_on and last < (others.step, others.number)

    # The script.

    @contextmanager
    def _inside(self) -> Generator[None]:
        """The script waits: the engine may work. It goes on once the engine rests."""
        with self._changed:
            self._is_inside = True
            self._wake()
            try:
                yield
                self._changed.wait_for(lambda: not self._is_busy)
            finally:
                self._is_inside = False

    def begin(self) -> ScriptStart:
        """Wait until this worker is a full member of a group; where it begins."""
        with self._inside():
            self._changed.wait_for(lambda: self._start is not None)
        assert self._start is not None
        return self._start

    def want(self, steps: int, begins: int | None = None) -> int:
        """A loop of the script asks for so many steps in all, from this one on; its number."""
        with self._changed:
            message = ScriptSteps(len(self._wanted_steps), steps, begins)
            self._wanted_steps.append(message)
        self._say(message)
        return message.call

    def loop_begins(self, call: int) -> int | None:
        """Step at which the other scripts have begun a loop; None if they have not come so far."""
        with self._changed:
            self._wanted_loop = call
            self._loops.pop(call, None)
        self._say(LoopRequest(call))
        with self._inside():
            self._changed.wait_for(lambda: call in self._loops)
            self._wanted_loop = None
        return self._loops[call]

    def make(self, step: int, data: Any = None) -> None:
        """Ask for a step, with this data if the script gives it, and wait until this worker has made it."""
        with self._changed:
            # The one before may have to be made again.
            self._data = {at: given for at, given in self._data.items() if at >= step - 1}
            self._data[step] = data
            self._granted = max(self._granted, step + 1)
            self._results = {at: loss for at, loss in self._results.items() if at[0] > step}
            self._evaluation = None
        self._check_end()
        self._check_others()
        with self._inside():
            self._changed.wait_for(lambda: self._applied > step)

    def evaluate(self, step: int, number: int, data: EvaluationData) -> float:
        """Ask for an evaluation before a step, and wait; the mean of its losses."""
        with self._changed:
            self._evaluation = Evaluation(step, number, data)
            self._last_evaluation = step, number
        self._say(EvaluationRequest(step, number))
        with self._inside():
            self._changed.wait_for(lambda: (step, number) in self._results)
            self._evaluation = None
        return self._results[step, number]

    def _ask_for_result(self) -> None:
        """Of an evaluation that the other workers have left behind."""
        with self._changed:
            wanted, applied = self._evaluation, self._applied
        if wanted is not None and wanted.step < applied:
            self._say(EvaluationRequest(wanted.step, wanted.number))

    def save(self, step: int, number: int, folder: str, *, stays: bool) -> Saved:
        """Save the model before a step, and wait until it is complete, or cannot be."""
        request = SaveRequest(step, number, folder, stays)
        with self._changed:
            self._save = request
            self._last_save = step, number
        self._say(request)
        with self._inside():
            self._changed.wait_for(lambda: self._is_answer(request, self._saved))
            self._save = None
        assert self._saved is not None
        return self._saved

    def _is_answer(self, request: SaveRequest, saved: Saved | None) -> bool:
        return saved is not None and (saved.step, saved.number) == (request.step, request.number)

    def row(self, step: int) -> StepRow:
        """Row of a step, from the coordinator."""
        with self._changed:
            known = self._rows.get(step)
            if known is None:
                self._wanted_rows.add(step)
        if known is not None:
            return known
        self._say(RowRequest(step))
        with self._inside():
            self._changed.wait_for(lambda: step in self._rows)
        return self._rows[step]

    def settled(self, step: int) -> StepSettled:
        """Outcome of a step, from the coordinator; requested if it is not known here."""
        with self._changed:
            known = self._settled.get(step)
            if known is None:
                self._wanted_settled = step
        if known is not None:
            return known
        self._say(SettledRequest(step))
        with self._inside():
            self._changed.wait_for(lambda: step in self._settled)
            self._wanted_settled = None
        return self._settled[step]

    def forget_rows(self, step: int) -> None:
        """Nobody asks for rows before this one any more."""
        with self._changed:
            self._settled = {at: settled for at, settled in self._settled.items() if at >= step}
            self._rows = {at: row for at, row in self._rows.items() if at >= step}

    def keep(self, step: int, snapshot: bytes) -> None:
        """Keep the script's state before this step, and send it as soon as the step before it is made."""
        with self._changed:
            self._snapshots = {at: kept for at, kept in self._snapshots.items() if at >= step - 1}
            self._snapshots[step] = snapshot
        self._tell_snapshots()

    def _tell_snapshots(self) -> None:
        """Those that were asked for and are there, or will never be."""
        with self._changed:
            oldest = min(self._snapshots, default=0)
            due = [step for step in self._wanted_snapshots if step in self._snapshots or step < oldest]
            self._wanted_snapshots.difference_update(due)
            answers = [KeptState(step, self._snapshots.get(step)) for step in due]
        for answer in answers:
            self._say(answer)

    def kept(self, step: int) -> bytes:
        """State that the scripts of the other workers, or of the run before this one, keep before a step."""
        with self._changed:
            self._wanted_kept = step
        self._say(KeptRequest(step))
        with self._inside():
            self._changed.wait_for(lambda: step in self._kept)
            self._wanted_kept = None
        return self._kept.pop(step)

    def end(self) -> None:
        """The script has ended; the engine may do what is left."""
        self.begin()
        with self._changed:
            self._has_ended = self._is_inside = True
            granted = self._granted
        self._say(ScriptEnded(granted))
        self._check_end()
        self._check_others()
        self._wake()

    @property
    def has_ended(self) -> bool:
        return self._has_ended
