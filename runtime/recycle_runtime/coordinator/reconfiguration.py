"""Reconfiguration: which plan a job runs next, and on which workers. Needs no torch.

Live workers, measured op times and the cost of switching go in; a change of the running job comes out, or
none. After a failure there is nothing to weigh: `PlanBook.assign` has the quickest plan for those who are
left. Everything else that could run is a `Candidate`, in one form whatever its source:

    candidates        layers travel to another cut; or workers move to the places of failed ones, in a job
                      whose cut cannot change
    measured_plans    plans for measured op times: for workers that are alike, with less or nothing to do for
                      slow ones, or under another cut

The decision: candidates are weighed from the cheapest on. Each is compared with the best before it, the first
with the plan in use, and is better if what it saves beyond that pays for switching (`JobChange.pays`). The
best is taken, and all candidates are reported in one line.

Nothing is decided while a change is under way. Meanwhile `next_plan` says which plan could be needed next and
is missing, in this order:

    failures that nothing would fit     of another worker, or of a node: all would have to wait
    the fastest cut for those left      if more workers are gone than the bundle was made for
    failures placed better              in the same case, so that a few moves may pay: plans on demand have
                                        failures where they happened to be
    failures without an exact plan      they would cost speed until that is made
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from statistics import median

from recycle_runtime.coordinator.candidates import Candidate, Recuts, Situation, Wish, moves_of_workers
from recycle_runtime.coordinator.journal import Lines
from recycle_runtime.coordinator.measured_job import JobText
from recycle_runtime.coordinator.measured_plans import MeasuredPlans
from recycle_runtime.coordinator.plans import FailedWorkers, PlanFiles, Request, request_for
from recycle_runtime.coordinator.regrouping import Recovery
from recycle_runtime.coordinator.replanning import Replanner
from recycle_runtime.coordinator.state_machine import StateMachine
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.change import Outlook
from recycle_runtime.plan.moves import (
    STEPS_BEFORE_FURTHER_MOVES,
    STEPS_BEFORE_MOVES,
    ChangeRate,
    CostOfMoves,
    Counts,
    quickest_counts,
)
from recycle_runtime.plan.plan_book import Assignment, PlanBook
from recycle_runtime.protocol.messages.generations import Began
from recycle_runtime.protocol.messages.layer_moves import LayersArrived
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.observers import JobEvent
from recycle_runtime.protocol.messages.steps import StepDone, StepRow

_ROWS_KEPT = 21


class Reconfiguration:
    """Listens to a job, and decides whether to change it."""

    def __init__(
        self,
        job: StateMachine,
        options: AdaptationOptions,
        replanner: Replanner,
        files: PlanFiles,
        is_started: Callable[[Worker], bool] = lambda worker: False,
    ) -> None:
        """`is_started` says whether an agent has been ordered to start a worker."""
        self._job, self._is_started = job, is_started
        self._rate = ChangeRate(options.mtbf)
        self._recuts = Recuts(job.book, options.recut, files.notes)
        self._plans = MeasuredPlans(job.book, options, replanner, files, self._recuts)
        self._costs = CostOfMoves()
        for stage in range(job.book.stages):
            self._costs.state_bytes[stage] = self._plans.job.parameter_bytes(stage)
        self._rows: list[float] = []
        """Seconds of steps of this generation, but for the first."""
        self._seen = 0
        """Steps of this generation."""
        self._period = 0
        """Ticks of the plan of this generation."""
        self._pace: float | None = None
        """Seconds of a tick, by the steps of an earlier generation."""
        self._live = 0
        """Workers of this generation."""
        self._weighed: set[tuple[frozenset[Worker], str]] = set()
        """Workers, and what was weighed for them in this generation."""
        self._copying = 0.0
        self._asked: set[Request] = set()
        """Plans that were asked for ahead."""
        self._prepared_for: tuple[object, ...] | None = None
        """The state of the job in which there was nothing left to plan ahead."""

    # What the job tells.

    def hear(self, member: Member, message: object) -> None:
        """A process has said something, perhaps something that was measured."""
        match message:
            case StepDone():
                self._plans.measured(member, message.times)
            case Began():
                self._began(member, message)
            case LayersArrived():
                self._costs.copied(*message.copied)
            case _:
                pass

    def _began(self, member: Member, said: Began) -> None:
        """A process runs in a new generation: what it holds, and what it had to copy for that."""
        stage, copied = member.worker[1], said.copied
        self._costs.state_bytes[stage] = max(self._costs.state_bytes.get(stage, 0), said.state_bytes)
        if member.tp_rank == 0:
            self._recuts.began(said.first_layer, said.layer_bytes, can_halve=said.can_halve)
        if copied is not None:
            self._costs.copied(*copied)
            self._copying = max(self._copying, copied.seconds)

    def recall(self, lines: Lines) -> None:
        """Knowledge of layers that the coordinator before this one had."""
        for layer_bytes in lines.values("layer_bytes")[-1:]:
            self._recuts.recall(layer_bytes)

    def move_ended(self, why: str | None) -> None:
        """Layers have travelled, or will not."""
        self._recuts.ended(why, self._seen)
        self._plans.move_ended(why)
        self._weighed.clear()

    def generation(self, assignment: Assignment, cells: Mapping[Worker, Worker]) -> None:
        """A new generation has been ordered; `cells` are those of its workers."""
        if self._live and len(cells) != self._live:
            self._rate.change()
        self._live = len(cells)
        self._plans.generation(assignment, cells, self._job.roster.fewer)
        self._recuts.generation()
        if self._seen >= STEPS_BEFORE_MOVES and self._period:
            self._pace = median(self._rows) / self._period
        self._period = assignment.period
        self._rows, self._seen, self._copying = [], 0, 0.0
        self._weighed.clear()

    def recovered(self, recovery: Recovery, now: float) -> None:
        """Every worker runs in it."""
        self._rate.begin(now)
        if recovery.causes != ["start"]:
            # To leave takes longer after a failure than between two steps, where next time it will happen.
            self._costs.regrouped(recovery.going - recovery.left, self._copying)

    def moved(self, worker: Worker, place: Worker) -> None:
        self._plans.ops.forget(worker)
        self._plans.ops.forget(place)

    def row(self, row: StepRow) -> None:
        """A step has been made."""
        self._seen += 1
        if self._seen > 1:
            self._rows = [*self._rows, row.seconds][-_ROWS_KEPT:]

    def stop(self) -> None:
        self._plans.stop()

    # What comes next.

    def decide(self, time: float, *, is_planning: bool) -> list[Wish | JobEvent]:
        """Now and then: lines to tell, and at most one thing to do. Few things are begun while a plan for the
        failures is being made."""
        if not self._job.is_steady or self._job.participants.layer_moves.move is not None:
            return []
        now = self._situation(time)
        plans = self._plans.candidates(now)
        others = [] if self._plans.has_slow_workers(now) else self._others(now, is_planning=is_planning)
        best: Candidate | None = None
        told: list[Wish | JobEvent] = []
        for candidate in sorted((*plans, *others), key=_cost):
            change = candidate.change.beyond(None if best is None else best.change)
            if candidate.is_told and (not change.least or change.saving >= change.least):
                told.append(JobEvent(str(change)))
            if change.pays:
                best = candidate
        taken = best.change if best is not None and best in plans else None
        told = [*self._recuts.news(), *self._plans.news(taken, now), *told]
        if best is not None:
            return [*told, best.take()]
        return told if told or is_planning else list(self._plans.ask(now))

    def _others(self, now: Situation, *, is_planning: bool) -> list[Candidate]:
        """Candidates by planned periods, which say what is better if all are equally fast; each once in a
        generation."""
        found = self._recuts.candidates(now)
        if not (is_planning or self._recuts.is_considered):
            found += moves_of_workers(now)
        live = frozenset(self._job.roster.whole()) if found else frozenset()
        found = [candidate for candidate in found if (live, candidate.change.what) not in self._weighed]
        self._weighed.update((live, candidate.change.what) for candidate in found)
        return found

    def _situation(self, time: float) -> Situation:
        left = self._job.steps - self._job.participants.rows.next
        outlook = Outlook(self._step, self._rate.seconds(time), left)
        return Situation(self._job, self._seen, outlook, self._costs, self._is_started)

    @property
    def _step(self) -> float:
        """Seconds; 0 as long as it is not known."""
        if self._seen < (STEPS_BEFORE_MOVES if self._pace is None else STEPS_BEFORE_FURTHER_MOVES):
            return 0.0
        if self._seen < STEPS_BEFORE_MOVES and self._pace is not None:
            return self._pace * self._period
        return median(self._rows)

    def next_plan(self, nodes: Iterable[Collection[Worker]]) -> Request | None:
        """A plan to make while nothing happens, so that what comes next does not have to wait for it; `nodes`
        are the workers that would fail together."""
        job = self._job
        if not job.is_steady:
            return None
        book, there, may_recut = job.book, job.roster.whole(), self._recuts.is_considered
        live = job.cells.all_of(there)
        groups = [tuple(sorted(job.cells.all_of(workers))) for workers in nodes]
        state = (book, len(book.bundles), tuple(there), tuple(live), tuple(groups), may_recut)
        if state == self._prepared_for:
            # At size it takes long to find out that there is nothing to do.
            return None
        cut_for = len(there) if may_recut else 0
        request = next(missing_plans(book, live, groups, self._asked, workers_to_cut_for=cut_for), None)
        if request is None:
            self._prepared_for = state
        else:
            self._asked.add(request)
        return request


def _cost(candidate: Candidate) -> tuple[int, float, float]:
    """Of switching to it; of those that cost the same, the one that saves most is weighed first."""
    change = candidate.change
    return change.size, change.pause, -change.saving


# Plans that are missing.


def missing_plans(
    book: PlanBook,
    live: Collection[Worker],
    nodes: Iterable[Collection[Worker]] = (),
    asked: Collection[Request] = (),
    *,
    workers_to_cut_for: int = 0,
) -> Iterator[Request]:
    """Those that have not been `asked` for.

    `live` are cells, and `nodes` those that would fail together. `workers_to_cut_for` are all who are there,
    in a job whose cut can change.
    """
    inexact: list[Request] = []
    for left in _left_after(book, live, nodes):
        request = request_for(book, _failed(book, left))
        if request in asked:
            continue
        assignment = book.assign(left)
        if assignment is None:
            yield request
        elif not assignment.is_exact:
            inexact.append(request)
    others: list[Request] = []
    if workers_to_cut_for and is_beyond(book, workers_to_cut_for):
        others.append(Request((), split=book.split == 2, workers=workers_to_cut_for))
    if (failed := _better_placed(book, live)) is not None:
        others.append(request_for(book, failed))
    yield from (request for request in others if request not in asked)
    yield from inexact


def _left_after(
    book: PlanBook, live: Collection[Worker], nodes: Iterable[Collection[Worker]]
) -> Iterator[list[Worker]]:
    """The cells that each failure would leave, a whole node before a single worker."""
    stages: dict[int, list[Worker]] = {stage: [] for stage in range(book.stages)}
    for place in sorted(live):
        stages[place[1]].append(place)
    for lost in _losses(book, nodes):
        if any(count >= len(stages[stage]) for stage, count in enumerate(lost) if count):
            continue
        # Peers are interchangeable, so that the last of them stand for all.
        yield [place for stage, here in stages.items() for place in here[: len(here) - lost[stage]]]


def _failed(book: PlanBook, left: Collection[Worker]) -> FailedWorkers:
    kept = set(left)
    return tuple(place for place in book.grid if place not in kept)


def is_beyond(book: PlanBook, workers: int) -> bool:
    """True if more workers are gone than the bundle that the job was started with has plans for."""
    own = book.family[0]
    fewest = min(len(own.first.workers(number)) for number in range(len(own.first.plans)))
    return workers < fewest


def _losses(book: PlanBook, nodes: Iterable[Collection[Worker]]) -> list[Counts]:
    """Workers of each stage that may fail at the same moment: of each node, and one alone; each once."""
    found: dict[Counts, None] = {}
    for cells in nodes:
        stages = Counter(stage for _, stage in cells)
        found[tuple(stages[stage] for stage in range(book.stages))] = None
    for stage in range(book.stages):
        found[tuple(int(stage == other) for other in range(book.stages))] = None
    return [lost for lost in found if any(lost)]


def _better_placed(book: PlanBook, live: Collection[Worker]) -> FailedWorkers | None:
    """The failures of now where they do least, if nothing else was planned and they do not lie so already."""
    if not book.is_own:
        return None
    failed = book.counts(live)
    if book.is_planned(sum(failed)):
        return None
    wanted = quickest_counts(failed, JobText(book.bundles[0].job_text).loads)
    if wanted == failed:
        return None
    return tuple(place for place in book.grid if place[0] >= book.pipelines - wanted[place[1]])
