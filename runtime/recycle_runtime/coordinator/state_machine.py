"""Job state machine: the generations of a job, from one group of workers to the next. Events in, orders out.

    forming     the first members arrive
    gathering   all workers leave the old group and report; when all have, they get the next one
    running     they train
    saving      they write what they should when the last step is made
    ended

A generation is one group of members with one plan. Every failure begins a new one; so does every change at
a boundary between two steps (a worker that joins, a better plan, a move), for which all workers stop there.

Participants do everything else: they are told what happens, and what they answer is added. No clock, no
sockets, no files: time comes in with each event, and what has to be done comes out as a list. Needs
no torch.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

from recycle_runtime.checkpoint.checkpoint_folder import is_copy
from recycle_runtime.coordinator.cells import Cells
from recycle_runtime.coordinator.checkpoints import Checkpoints
from recycle_runtime.coordinator.events import (
    AllReturned,
    Answer,
    BeginGathering,
    BeginGeneration,
    BeginsAnew,
    CheckpointClosed,
    EndJob,
    EndMove,
    EndWanted,
    Event,
    Fence,
    FinishRecovery,
    GivenUp,
    Joined,
    MovesWanted,
    Note,
    Order,
    PlanMade,
    PlanningFailed,
    Reconnected,
    RecutWanted,
    Rename,
    Returned,
    Said,
    ScriptsKeep,
    Send,
    StopWanted,
    Tell,
    TellRow,
    TellSettled,
    TimePassed,
    WantPlan,
    WorkerFailed,
    WorkerStuck,
)
from recycle_runtime.coordinator.journal import Lines
from recycle_runtime.coordinator.last_generation import Remembered
from recycle_runtime.coordinator.last_save import LastSaving
from recycle_runtime.coordinator.layer_move import LayerMove, cells_of
from recycle_runtime.coordinator.layer_moves import LayerMoves
from recycle_runtime.coordinator.membership import Roster, name_of
from recycle_runtime.coordinator.neighbour_copies import CompleteCopy, NeighbourCopies
from recycle_runtime.coordinator.participant import Asked, Kind, NewGeneration, Participant, View
from recycle_runtime.coordinator.participants import not_asked_for, open_participants
from recycle_runtime.coordinator.patience import Patience, Standstill
from recycle_runtime.coordinator.program_faults import ProgramFaults, told_of
from recycle_runtime.coordinator.recovery import Recovery
from recycle_runtime.coordinator.regrouping import (
    CannotAgreeError,
    GenerationStart,
    StageGone,
    Standing,
    go_order,
    lost_shard,
    possible_moves,
    stand,
    takers_of,
)
from recycle_runtime.coordinator.scripts import Scripts
from recycle_runtime.coordinator.shard_owners import ShardOwnership
from recycle_runtime.coordinator.skipped_steps import SkippedSteps
from recycle_runtime.coordinator.step_rows import StepRows
from recycle_runtime.coordinator.work_shares import WorkShares
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.moves import Moves, least_moves, moves_text
from recycle_runtime.plan.plan_book import Assignment, PlanBook, one_of_each_stage, plan_name
from recycle_runtime.plan.worker_ids import grid_text
from recycle_runtime.protocol.messages.checkpoints import CheckpointPath
from recycle_runtime.protocol.messages.generations import (
    AtBoundary,
    Began,
    CaughtUp,
    End,
    Failed,
    GroupBroken,
    HeldState,
    Hold,
    Holding,
    Leave,
    LeftGroup,
    Move,
    ShardsHeld,
)
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.scripts import InScript
from recycle_runtime.protocol.messages.steps import Recall, StepRow
from recycle_runtime.protocol.messages.wire import Handlers, ToWorker
from recycle_runtime.protocol.store_table import REGROUPING

ENDLESS = 1 << 62
"""Steps of a job whose scripts say when it ends."""
_WHILE_SAVING = (Said, WorkerFailed, Returned, Reconnected, CheckpointClosed, TimePassed, GivenUp)
"""Events that still matter when all steps are made."""


class Phase(Enum):
    FORMING = "forming"
    GATHERING = "gathering"
    RUNNING = "running"
    SAVING = "saving"
    ENDED = "ended"


def _always(view: View, kind: type[Kind]) -> Kind:
    """A participant that every job has."""
    found = view.find(kind)
    assert found is not None
    return found


_CHANGING = (Phase.FORMING, Phase.GATHERING)
"""A generation is being made."""


class StateMachine:
    """The state of a job, with its participants. Other modules may read it; `handle` changes it."""

    def __init__(
        self,
        book: PlanBook,
        tensor: int,
        steps: int,
        expected: set[Worker],
        now: float,
        asked: Asked | None = None,
        check_peers: int = 0,
        patience: Patience | None = None,
    ) -> None:
        """`check_peers` are the steps from one comparison of peers to the next; 0: never."""
        self.steps = steps
        self._patience = patience or Patience()
        self.cells = Cells(book)
        self.roster = Roster(tensor)
        self.phase = Phase.FORMING
        self.number = 1
        """Of the generation."""
        asked = asked or Asked(steps, has_scripts=steps >= ENDLESS)
        self.begins = asked.begins
        """Where the run begins."""
        view = View(self.roster, self.cells, self._is_current, lambda: self._now)
        self.participants = open_participants(asked, view)
        self.rows = _always(view, StepRows)
        self._skipped = _always(view, SkippedSteps)
        self._scripts = _always(view, Scripts)
        self._last_save = _always(view, LastSaving)
        self._layer_moves = _always(view, LayerMoves)
        self.shards = _always(view, ShardOwnership)
        self._checkpoints, self._copies = view.find(Checkpoints), view.find(NeighbourCopies)
        self.assignment: Assignment | None = None
        self.recovery = Recovery(1, ["start"], now)
        self.expected = set(expected)
        """Workers that have not joined yet, in the beginning."""
        self._restore = self.begins.checkpoint
        """The checkpoint that the run begins with, until every worker has read it."""
        self.has_bad_copy = False
        """Whether it is a copy in memory that workers cannot begin with."""
        self._tensor = tensor
        self._now = now
        """As the event under way says."""
        self._orders: list[Order] = []
        """That it has led to so far."""
        self._can_wait_for_plan = True
        """False once planning has failed."""
        self._planned_for: tuple[Worker, ...] = ()
        """Cells of the last plan that was asked for."""
        self._unplannable: tuple[Worker, ...] | None = None
        """Cells for which none could be made."""
        self._to_begin: set[Member] = set()
        """Of those who train in the generation, who has not begun with it."""
        self._work = WorkShares()
        self._hold: int | None = None
        """The step before which every worker should stop."""
        self._hold_request = 0
        """Of the orders to stop, the last; a later one has a later step."""
        self._hold_tries = 0
        self._wanted: list[str] = []
        """Why every worker should stop at a boundary."""
        self._moves: dict[Worker, Worker] = {}
        self._faults = ProgramFaults()
        self._row_at = self._asked_at = now
        self._standstill = Standstill(self._patience)
        self._remembered: int | None = None
        """The generation in which the coordinator before this one ended, until this one begins another."""
        self._newest = 0
        """The newest generation that any process knows of."""
        self._is_change_open = False
        """Whether the coordinator before this one ended in the middle of a change."""
        self._has_recalled = False
        self._error: str | None = None
        self._ends_because: str | None = None
        """Of the user's: at the next boundary, with a last checkpoint."""
        self._ends_by = float("inf")
        self._check_peers = check_peers
        self._handlers: dict[type[object], Callable[[Any], None]] = {
            Joined: self._joined,
            Returned: self._returned,
            AllReturned: self._all_returned,
            Reconnected: self._reconnected,
            Said: lambda event: self._members.handle(event.member, event.message),
            WorkerFailed: self._worker_failed,
            BeginsAnew: self._begins_anew,
            WorkerStuck: self._worker_stuck,
            EndWanted: self._end_wanted,
            StopWanted: self._stop_wanted,
            MovesWanted: self._moves_wanted,
            RecutWanted: self._recut_wanted,
            PlanMade: self._plan_made,
            PlanningFailed: self._planning_failed,
            GivenUp: lambda event: self._end(event.error),
            TimePassed: self._time_passed,
        }
        members = self._members = Handlers[Member]()
        members.on(LeftGroup, self._left_group)
        members.on(Began, self._began)
        members.on(ShardsHeld, self._shards_held)
        members.on(Holding, self._holding)
        members.on(AtBoundary, self._at_boundary)
        members.on(CaughtUp, self._caught_up)
        members.on(GroupBroken, self._group_broken)
        members.on(Failed, self._failed)
        members.on(InScript, self._in_script)
        for participant in self.participants:
            for kind, hear in participant.hears().items():
                members.on(kind, partial(self._answer, hear))
            for kind, follow in participant.follows().items():
                self._handlers[kind] = partial(self._answer, follow)
        for kind in not_asked_for(self.participants):
            members.on(kind, lambda member, said: None)

    @property
    def hears(self) -> Iterable[type[Any]]:
        """Kinds of messages of workers that it, or one of its participants, has to do with."""
        return self._members.kinds

    @property
    def newest_checkpoint(self) -> CheckpointPath | None:
        return None if self._checkpoints is None else self._checkpoints.newest

    def usable_copy(self, memories: Collection[str]) -> tuple[CompleteCopy | None, str]:
        """The copy in memory that the job can go on from; or why there is none, if copies are made."""
        if self._copies is None:
            return None, ""
        return self._copies.usable(memories, self.newest_checkpoint, is_bad=self.has_bad_copy)

    @property
    def book(self) -> PlanBook:
        """The plans of the current cut."""
        return self.cells.book

    @property
    def move(self) -> LayerMove | None:
        """Layers that are on their way to another cut."""
        return self._layer_moves.move

    @property
    def places_wanted(self) -> Collection[Worker]:
        """Places of failed workers that others are about to move to."""
        return self._moves.values()

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way at all: no change, no joiner, no layers."""
        return (
            self.is_steady
            and self.move is None
            and not any(self._is_on_its_way(member) for member in self.roster.entries)
        )

    def _is_on_its_way(self, member: Member) -> bool:
        """Whether it waits for its state, or arrives and will be given a cell."""
        entry = self.roster.entries[member]
        return entry.is_joining or (not entry.is_active and self.cells.has_room(member.worker))

    def fewer_ranks(self) -> tuple[int, ...] | None:
        """Numbers of ranks with which a worker can go on that has lost some, the most first; none in a job
        that divides optimizer state. None: not known yet."""
        return () if self.book.has_shards else self.roster.fewer_ranks()

    def can_go_on_with(self, workers: Collection[Worker]) -> bool:
        """True if these hold, for all that is known, all there is of every stage, or of every stage of a
        group; one that joins holds nothing yet."""
        if self._is_as_at_the_beginning:
            return self.cells.are_enough(workers)
        holders = {one for one in workers if self.roster.has_state(one)}
        if not self.book.has_shards:
            return self.cells.are_enough(holders)
        entries = {member: entry for member, entry in self.roster.entries.items() if member.worker in holders}
        silent = {member.worker for member, entry in entries.items() if entry.shards is None}
        shards = {member: entry.shards for member, entry in entries.items() if entry.shards is not None}
        return self.cells.are_enough(holders - silent) and lost_shard(shards) is None

    @property
    def _is_as_at_the_beginning(self) -> bool:
        """Whether one that has just been started holds as much as any other. Not once somebody may have made
        a step, also if that was not told: who is left has made it then, and nobody can make it again."""
        if self.phase is Phase.FORMING:
            return True
        begins = self.begins.step
        if self.rows.next != begins:
            return False
        # While all still have to read a checkpoint, whoever is ahead of it undoes a step.
        return self._restore is not None or not any(
            entry.may_be_ahead(begins) for entry in self.roster.entries.values()
        )

    @property
    def is_steady(self) -> bool:
        """Whether every worker trains, and no change is under way or asked for."""
        return self.phase is Phase.RUNNING and self._hold is None and self.recovery.going > 0

    def handle(self, event: Event, now: float) -> list[Order]:
        """What has to be done, in this order."""
        self._now = now
        if self.phase is Phase.SAVING and not isinstance(event, _WHILE_SAVING):
            return []
        if self.phase is not Phase.ENDED or isinstance(event, CheckpointClosed | Reconnected | WorkerFailed):
            self._handlers[type(event)](event)
        orders, self._orders = self._orders, []
        return orders

    def _answer(self, ask: Callable[..., Iterable[Answer]], *told: Any) -> None:
        self._take(ask(*told))

    def _take(self, answers: Iterable[Answer]) -> None:
        """Carry out the answers of a participant: its orders, and news for others."""
        rows: list[StepRow] = []
        for answer in answers:
            match answer:
                case GivenUp(error):
                    self._end(error)
                case StopWanted():
                    self._stop_wanted(answer)
                case EndMove():
                    self._orders.append(answer)
                    # A plan that was made meanwhile was not taken up, in view of the one to come.
                    self._stop_for_exact_plan()
                case ScriptsKeep(step, is_known):
                    self._ask(lambda one, step=step, known=is_known: one.kept(step, is_known=known))
                case TellSettled(settled):
                    self._orders.append(answer)
                    self._ask(lambda one, settled=settled: one.settle(settled))
                case TellRow(row):
                    self._orders.append(answer)
                    self._note_row(row)
                    rows.append(row)
                case _:
                    self._orders.append(answer)
        if rows:
            self._ask(lambda one: one.progress(rows))

    def _ask(self, ask: Callable[[Participant], Iterable[Answer]]) -> None:
        for participant in self.participants:
            self._take(ask(participant))

    def remember(self, state: Remembered, lines: Lines) -> None:
        """Go on as the coordinator before this one; its workers train, and are on their way back here."""
        for participant in self.participants:
            participant.recall(lines)
        self.phase = Phase.RUNNING
        self.number = self._remembered = state.generation
        self.expected = set()
        self._restore = state.restore
        if state.plan is not None:
            book = self.book.with_bundle(state.plan.bundle)
            cells = {worker: state.cells.get(worker, worker) for worker in state.places}
            self.cells.switch(book, {**cells, **state.joiners})
            self.assignment = state.plan.assignment(book, state.cells)
        else:
            self.cells.place(state.places)
            self.assignment = self.book.assign(state.places)
        for worker in (*state.places, *state.joiners):
            for member in state.members(worker, self._tensor):
                entry = self.roster.join(member, state.fewer.get(worker, 0))
                entry.has_begun = entry.has_stepped = True
                entry.is_joining = worker in state.joiners
        self.roster.activate(tuple(self.roster.entries))
        assert self.assignment is not None, "the plan of the last generation is not there any more"
        plan = plan_name(self.book, self.assignment)
        members = frozenset(one for one in self.roster.members() if one.worker not in state.joiners)
        self.rows.begin(self.rows.next, members, len(state.places), plan, self._with_loss(members))
        self.recovery.going = self._now
        group = self._new_generation(self.rows.next, sorted(members))
        for participant in self.participants:
            participant.go_on(group)
        if self._last_save.begun is not None:
            self.phase, self.steps, self._asked_at = Phase.SAVING, self._last_save.begun.steps, self._now
            self._stop_participants()

    def remember_end(self, error: str | None) -> None:
        """The job had ended when the coordinator before this one did."""
        self.phase, self._error = Phase.ENDED, error
        self._stop_participants()

    # Who comes.

    def _joined(self, event: Joined) -> None:
        member = event.member
        if member in self.roster:
            return
        self.roster.join(member, event.ranks).is_outdated = event.has_trained
        if self.roster.is_whole(member.worker):
            self.expected.discard(member.worker)
        self._newest = max(self._newest, event.asked)
        if event.asked >= self.number == self._remembered and self.phase is Phase.RUNNING:
            # It was joining when the coordinator before this one ended, and the others may wait for it.
            self._regroup("the coordinator restarted")
        elif self.phase in _CHANGING:
            self._ask_to_leave(member, event.asked)
        else:
            self._send(member, Leave(self.number))

    def _ask_to_leave(self, member: Member, asked: int) -> None:
        """A process that has heard of a later generation, from another coordinator, obeys no earlier one."""
        if asked > self.number:
            self._gather(asked)
        else:
            self._send(member, Leave(self.number))

    def _returned(self, event: Returned) -> None:
        self.roster.entries[event.member].saves = event.saves
        self._newest = max(self._newest, event.asked)
        self._recall(event.member)
        if self.phase in _CHANGING:
            self._ask_to_leave(event.member, event.asked)
        elif self.phase is Phase.SAVING:
            self._send(event.member, End(ok=True))
        elif self.phase is not Phase.RUNNING:
            self._send(event.member, Leave(self.number))
        elif event.is_training and event.asked <= self.number:
            self._say_where_to_stop(event.member)
            # Whether a joiner has caught up is not known here: what it reports tells.
            self._is_change_open |= self.roster.entries[event.member].is_joining
        else:
            self._is_change_open = True

    def _all_returned(self, event: AllReturned) -> None:
        """If the last coordinator ended in the middle of a change, make that change now."""
        if self._is_change_open and self.phase is Phase.RUNNING:
            self._regroup("the coordinator restarted")
        elif self.phase is Phase.RUNNING and self.assignment is not None:
            chosen = self.book.assign(self.cells.all_of(self.roster.whole()))
            if chosen is not None and chosen[:2] != self.assignment[:2]:
                self._stop_at_boundary("a plan that had been chosen")
        self._ask(lambda one: one.all_returned())
        self._is_change_open = False

    def _reconnected(self, event: Reconnected) -> None:
        member = event.member
        for participant in self.participants:
            participant.miss(member)
        if member in self.roster:
            self.roster.entries[member].saves = event.saves
        self._newest = max(self._newest, event.asked)
        if self.phase is not Phase.ENDED:
            self._recall(member)
        if self.phase in (Phase.SAVING, Phase.ENDED):
            is_well = self.phase is Phase.SAVING or self._error is None
            is_outdated = member in self.roster and self.roster.entries[member].is_outdated
            self._send(member, End(is_well and not is_outdated))
        elif self.phase in _CHANGING:
            self._ask_to_leave(member, event.asked)
        elif self.phase is not Phase.RUNNING or not self.roster.entries[member].is_active:
            self._send(member, Leave(self.number))
        elif event.generation != self.number or not event.is_training or event.asked > self.number:
            # One that has been asked to leave by the coordinator before this one is about to do so.
            self._regroup(f"{name_of(member.worker)} lost its connection to the group")
        else:
            self._say_where_to_stop(member)

    # What worker processes say.

    def _left_group(self, member: Member, message: LeftGroup) -> None:
        if member not in self.roster:
            return
        entry = self.roster.entries[member]
        if message.generation < max(entry.generation, self.number):
            # It has been asked again since, and whether it has left for that is not known.
            return
        lost = HeldState(None, is_fresh=False)
        entry.report = lost if entry.is_outdated else message.report
        entry.others = (lost,) * len(message.others) if entry.is_outdated else message.others
        entry.fewer_ranks = message.ranks
        entry.generation, entry.is_leaving = message.generation, False
        if not entry.is_active:
            # Said again, it is older than what a worker that trains has said of its shards.
            entry.shards = entry.report.shards
        if self.phase is Phase.RUNNING:
            is_here = not self.roster.is_new(member.worker)
            if not entry.is_active and is_here and self.cells.has_room(member.worker):
                self._stop_at_boundary(f"{name_of(member.worker)} arrives")
            return
        self._go_if_all_are_here()

    def _began(self, member: Member, message: Began) -> None:
        """It runs the first instruction of a generation."""
        if member in self.roster and self.roster.entries[member].generation == message.generation:
            # What it was given for that counts, even if all have been asked to leave again.
            self.roster.entries[member].is_outdated = False
        if not self._is_current(member, message.generation):
            return
        entry = self.roster.entries[member]
        entry.has_begun, entry.is_outdated, entry.has_layers = True, False, False
        entry.awaits_copy = False
        entry.saves = message.saves
        self._to_begin.discard(member)
        if self._work.hear(member, message.shares) and (mistake := self._mistake_of_work()) is not None:
            self._end(mistake)
            return
        if not self._to_begin and not self.recovery.going:
            self.recovery.going = self._now
            self._restore = None
            if self.begins.step:
                self._orders.append(Note({"restored": True}))
            self._orders.append(FinishRecovery(self.recovery))
            self._ask(lambda one: one.recovered(self.recovery.told().total))
            if self._ends_because is not None:
                self._stop_at_boundary(self._ends_because)

    def _shards_held(self, member: Member, message: ShardsHeld) -> None:
        entry = self.roster.entries.get(member)
        if entry is not None and message.generation >= entry.generation:
            entry.shards = message.shards
        if entry is not None and message.sizes is not None and self._is_current(member, message.generation):
            entry.shard_sizes = {
                (each.layer, shard): size
                for each, sizes in zip(message.shards, message.sizes, strict=True)
                for shard, size in zip(each.held, sizes, strict=True)
            }

    def _mistake_of_work(self) -> str | None:
        assert self.assignment is not None
        bundle = self.book.bundles[self.assignment.bundle]
        return self._work.mistake(bundle, plan_name(self.book, self.assignment))

    def _holding(self, member: Member, message: Holding) -> None:
        """If it has passed the step before which to stop, all are told a later one."""
        if message.request != self._hold_request or self._hold is None:
            return
        if self._hold <= message.step < self.steps:
            self._hold_tries += 1
            self._ask_to_hold(message.step + 2 * self._hold_tries)

    def _at_boundary(self, member: Member, message: AtBoundary) -> None:
        if member not in self.roster or self.phase is not Phase.RUNNING:
            return
        step = message.step
        self.roster.entries[member].boundary = step
        self._end_with_scripts()
        if step >= self.steps:
            if all(self.roster.entries[other].boundary == step for other in self._those_who_end()):
                self._end_when_saved()
        elif self._hold == step and all(
            self.roster.entries[other].boundary == step for other in self._those_who_stop()
        ):
            if self._ends_because is None:
                self._regroup(*self._wanted, at_boundary=True)
                return
            self._end_with(step)
            self._end_when_saved()

    def _caught_up(self, member: Member, message: CaughtUp) -> None:
        """It has come as far as its peers, and can work."""
        if not self._is_current(member, message.generation):
            return
        self.roster.entries[member].is_joining = False
        ranks = [entry for other, entry in self.roster.entries.items() if other.worker == member.worker]
        if not any(entry.is_joining for entry in ranks):
            self._stop_at_boundary(f"{name_of(member.worker)} joins")

    def _group_broken(self, member: Member, message: GroupBroken) -> None:
        if not self._is_current(member, message.generation):
            return
        if REGROUPING in message.why:
            # A coordinator that refuses has another generation to begin. The one before this one has refused,
            # and ended before it could write that down.
            self._regroup("the coordinator restarted")
        else:
            self._regroup_fruitlessly(member, message.why)

    def _failed(self, member: Member, message: Failed) -> None:
        """Its own work raised an error; the process ends by itself."""
        cause = f"{name_of(member.worker)} failed"
        if self._is_outside(member):
            # Where it was started something may be missing; those who train need not end for that.
            self._orders.append(told_of(member.worker, message))
            self._worker_failed(WorkerFailed(member.worker, cause))
            return
        if self.phase is Phase.FORMING or message.is_hopeless:
            # Nothing has been trained yet: the program or its surroundings are at fault.
            self.has_bad_copy = message.is_hopeless and self._restore is not None and is_copy(self._restore)
            self._end(message.why, is_lost=self.has_bad_copy)
            return
        if self._faults.is_raised_alike(member.worker, message):
            self._end(message.why)
            return
        self._worker_failed(WorkerFailed(member.worker, cause, reason=message.why))

    def _is_outside(self, member: Member) -> bool:
        """Whether it was started while others train, and is not among them yet."""
        entry = self.roster.entries.get(member)
        return self.phase is Phase.RUNNING and (entry is None or not entry.is_active)

    def _is_current(self, member: Member, generation: int) -> bool:
        """Whether what it says is about the generation that runs."""
        return member in self.roster and generation == self.number and self.phase is Phase.RUNNING

    def _in_script(self, member: Member, message: InScript) -> None:
        """Nobody can make progress meanwhile."""
        self._row_at = self._now

    def _end_with_scripts(self) -> None:
        """Once all have ended before the same step, that is how many steps the job has."""
        step = self._scripts.ended_before(self._those_who_end())
        if step is not None and step < self.steps:
            self._end_with(step)

    def _end_with(self, step: int) -> None:
        self.steps = step
        for participant in self.participants:
            participant.end_with(step)

    def _those_who_end(self) -> list[Member]:
        """Workers that train; in a job with scripts, none whose script waits to be part of the group."""
        active = self.roster.active()
        if not self._scripts.ended:
            return active
        return [member for member in active if self.rows.is_made_by(member)]

    # Who goes.

    def _worker_failed(self, event: WorkerFailed) -> None:
        worker, cause = event.worker, event.cause
        self.expected.discard(worker)
        trained = any(member.worker == worker for member in self.roster.active())
        gone = self._remove(worker, cause)
        if self.phase is Phase.SAVING:
            self._take(self._last_save.lose(worker, cause))
            return
        if self.phase is Phase.ENDED or (not gone and self.phase is not Phase.FORMING):
            return
        if self.phase is Phase.RUNNING and not trained:
            # It had not joined yet.
            self._take(self._layer_moves.lose(worker, cause))
            return
        empty = [] if self._group_left() is not None else self.cells.empty_stages(self._known_workers)
        if empty and self.phase is not Phase.FORMING:
            # While others leave their group because of a failure, that is why this one fails too.
            earlier = self.recovery.reason if self.phase is Phase.GATHERING else ""
            said = f" ({reason})" if (reason := event.reason or earlier) else ""
            self._end(f"every worker of stage {empty[0]} has failed: {cause}{said}", is_lost=True)
        elif self.phase is Phase.FORMING and not self.expected and not self.roster.entries:
            said = f" ({event.reason})" if event.reason else ""
            self._end(f"every worker has failed before the first step: {cause}{said}")
        elif self.phase is Phase.RUNNING:
            self._faults.worker_gone()
            self._regroup(cause, fault_at=event.fault_at)
            self.recovery.reason = event.reason
        else:
            self.recovery.reason = self.recovery.reason or event.reason
            self.recovery.causes.append(cause)
            if self.recovery.fault_at is None:
                self.recovery.fault_at = event.fault_at
            # Earlier reports may have counted on it; all processes report again.
            self._gather(self.number + 1)

    def _remove(self, worker: Worker, why: str) -> list[Member]:
        """Its processes, which are none of the job any more."""
        gone = self.roster.remove(worker)
        self.cells.drop(worker)
        for member in gone:
            self._orders.append(Fence(member, why))
            for participant in self.participants:
                participant.drop(member)
        return gone

    def _begins_anew(self, event: BeginsAnew) -> None:
        """It is waited for, as before it came; it holds nothing yet."""
        self._remove(event.worker, event.why)
        self.expected.add(event.worker)

    def _worker_stuck(self, event: WorkerStuck) -> None:
        """One that hangs may be a machine's fault; all workers of a stage, or two in one step, are not."""
        worker = event.failed.worker
        ranks = [Member(worker, rank) for rank in range(self._tensor)]
        if all(self._is_outside(member) for member in ranks):
            self._worker_failed(event.failed)
            return
        stage, is_first = self.cells.stage(worker), self.phase is Phase.FORMING
        peers = [other for other in self.roster.whole() if self.cells.stage(other) == stage]
        error = self._faults.stuck(worker, event.step, () if is_first else peers, event.why)
        if error is not None:
            self._end(error)
        else:
            self._worker_failed(replace(event.failed, reason=event.why))

    def _group_left(self) -> tuple[PlanBook, int] | None:
        """Where a stage of a group has no worker: the plans under which another group goes on alone, and the
        first stage of that group. None if nothing like that has happened or can be done."""
        if not (self.book.groups and self.cells.empty_stages(self._known_workers)):
            return None
        return self.cells.alone(self.roster.whole())

    @property
    def _known_workers(self) -> list[Worker]:
        """All who are here, or will come before the first step."""
        return [*self.roster.whole(), *self.expected]

    def _go_on_alone(self) -> None:
        """A group whose workers are all that is needed; others hold nothing of use, and join anew."""
        if (found := self._group_left()) is None:
            return
        book, first = found
        stages = {worker: stage - first for (_, stage), worker in self.cells.workers().items()}
        here = {worker: stage for worker, stage in stages.items() if 0 <= stage < book.stages}
        self.cells.switch(book, cells_of(here))
        for member, entry in self.roster.entries.items():
            if member.worker not in here:
                entry.hold_nothing()

    def _time_passed(self, event: TimePassed) -> None:
        if self._ends_because is not None and self._now > self._ends_by:
            self._end(f"{self._ends_because} (there was no time for a last checkpoint)")
            return
        if self.phase is Phase.SAVING and not self._last_save.missing:
            # The coordinator before this one had heard the last of them.
            self._end(self._last_save.error, ok=True)
            return
        if self.phase is Phase.SAVING and self._now - self._asked_at > self._patience.first_step:
            names = ", ".join(name_of(member.worker) for member in self._last_save.missing)
            self._end(self._last_save.error or f"these workers have not saved their parameters: {names}")
            return
        self._give_up_late_members()
        since = max(self._row_at, self.recovery.going)
        is_going = self.phase is Phase.RUNNING and self.recovery.going > 0
        if is_going and self._is_standing_still(self._now - since):
            self._regroup_fruitlessly(self.roster.active()[0], "no worker made progress")
        self._take(self._layer_moves.look())
        if self.phase is Phase.RUNNING:
            ending = self._those_who_end()
            waiting = (self.roster.entries[member].boundary for member in ending)
            if ending and all(step is not None and step >= self.steps for step in waiting):
                self._end_when_saved()

    def _is_standing_still(self, seconds: float) -> bool:
        """Whether so many seconds without a step are too many."""
        if not self._standstill.is_long(seconds, is_first=False):
            return False
        is_first = not all(self.roster.entries[member].has_stepped for member in self.roster.active())
        return self._standstill.is_long(seconds, is_first=is_first)

    def _give_up_late_members(self) -> None:
        """Processes that do not leave their group in time; those who cannot be spared get longer."""
        waited = self._now - self._asked_at if self.phase is Phase.GATHERING else 0.0
        patience = self._patience
        late = self.roster.late() if waited > patience.leaving else ()
        if not late:
            return
        # One that is late itself may never come.
        is_bearable = self.can_go_on_with([worker for worker in self.roster.whole() if worker not in late])
        for worker in late:
            if waited > (self._leaving_seconds(worker) if is_bearable else patience.last_leaving):
                cause = f"{name_of(worker)} did not leave its group"
                self._worker_failed(WorkerFailed(worker, cause))

    def _leaving_seconds(self, worker: Worker) -> float:
        ranks = (entry for member, entry in self.roster.entries.items() if member.worker == worker)
        has_stepped = all(entry.has_stepped for entry in ranks)
        return self._patience.leaving if has_stepped else self._patience.first_step

    # Changes that are wanted.

    def _stop_wanted(self, event: StopWanted) -> None:
        self._stop_at_boundary(event.why)
        for outside in (one for one in self._those_who_stop() if not self.roster.entries[one].is_active):
            # All may have been told before it was known that these have to stop too.
            self._say_where_to_stop(outside)

    def _moves_wanted(self, event: MovesWanted) -> None:
        for worker, place in event.moves.items():
            self._moves[worker] = place
            self._stop_at_boundary(f"{name_of(worker)} moves to {name_of(place)}")

    def _recut_wanted(self, event: RecutWanted) -> None:
        if self.is_settled:
            self._take(self._layer_moves.begin(event.move))

    def _those_who_stop(self) -> list[Member]:
        """Workers that train, and those who wait outside for layers that the next cut needs."""
        active = self.roster.active()
        return [*active, *(one for one in self._layer_moves.awaited() if one not in active)]

    def _plan_made(self, event: PlanMade) -> None:
        if self.phase in _CHANGING:
            self._go_if_all_are_here()
        elif self.phase is Phase.RUNNING and self.move is None:
            self._stop_for_exact_plan()

    def _stop_for_exact_plan(self) -> None:
        """If there is one by now."""
        if self.phase is not Phase.RUNNING or self.assignment is None or self.assignment.is_exact:
            return
        chosen = self.book.assign(sorted(self.assignment.roles))
        if chosen is not None and chosen.is_exact:
            self._stop_at_boundary("a plan for these failures")

    def _planning_failed(self, event: PlanningFailed) -> None:
        self._can_wait_for_plan, self._unplannable = False, self._planned_for
        if self.phase not in _CHANGING:
            return
        if self._has_plan_with_newcomers:
            self._go_if_all_are_here()
            return
        if moves := self._moves_to_a_plan():
            self._moves = moves
            self._orders.append(Tell(f"{moves_text(moves)}: there is a plan for failures that lie so"))
            if self._goes_if_all_are_here():
                return
        said, reason = f"{event.error} ({', '.join(self.recovery.causes)})", self.recovery.reason
        self._end(f"{said}; {reason}" if reason else said, no_plan=not reason)

    def _stop_at_boundary(self, why: str) -> None:
        """Have every worker stop between two steps, for a change."""
        if self.phase is not Phase.RUNNING:
            return
        if why not in self._wanted:
            self._wanted.append(why)
        if self._hold is None:
            self._hold_tries = 0
            self._ask_to_hold(self.rows.next + 2)

    def _ask_to_hold(self, step: int) -> None:
        self._hold_request += 1
        self._hold = min(step, self.steps)
        for member in self._those_who_stop():
            self.roster.entries[member].boundary = None
            self._send(member, Hold(self._hold, self._hold_request))

    def _say_where_to_stop(self, member: Member) -> None:
        """Again; one that has stopped there says so again too."""
        step = self.steps if self._hold is None else self._hold
        self._send(member, Hold(step, self._hold_request))

    def _moves_to_a_plan(self) -> Moves:
        """Of workers that are all here, so that failures lie where there is a plan for as many; none if that
        cannot be done."""
        live = self.roster.whole()
        failed = self.book.counts(live)
        best = self.book.best_placement(sum(failed))
        is_possible = self.phase is Phase.GATHERING and self._is_gathered and self.cells.is_plain
        if best is None or self.book.pipelines in failed or not is_possible:
            return {}
        return least_moves(live, best.counts, self.book.pipelines, self.book.standby)

    # From one generation to the next.

    def _regroup_fruitlessly(self, member: Member, why: str) -> None:
        """No worker has failed, and yet they cannot continue; the number of times is limited."""
        error = self._faults.fruitless(member.worker, why)
        if error is not None:
            self._end(error)
        else:
            self._regroup(f"{name_of(member.worker)} lost its connection to the group")

    def _regroup(self, *causes: str, fault_at: float | None = None, at_boundary: bool = False) -> None:
        self.recovery = Recovery(self.number + 1, list(causes), self._now, fault_at)
        self.recovery.repeated = 0.0 if at_boundary else self._now - self._row_at
        self._hold, self._wanted = None, []
        self._gather(self.number + 1)

    def _gather(self, number: int) -> None:
        if self.phase is not Phase.FORMING:
            self.phase = Phase.GATHERING
        # Processes may have been asked for more by the coordinator before this one.
        number = max(number, self._newest + 1)
        self.number = self.recovery.generation = number
        self._orders.append(BeginGathering(number))
        self._asked_at = self._now
        for participant in self.participants:
            participant.leave()
        leave = Leave(number)
        for member, entry in self.roster.entries.items():
            entry.is_leaving = entry.is_leaving or entry.is_active
            entry.has_begun = False
            entry.boundary = entry.shard_sizes = None
            self._send(member, leave)
        self.roster.activate(())
        self._go_if_all_are_here()

    def _goes_if_all_are_here(self) -> bool:
        """True if the job runs now."""
        self._go_if_all_are_here()
        return self.phase is Phase.RUNNING

    def _go_if_all_are_here(self) -> None:
        if self.phase not in _CHANGING or not self._is_gathered:
            return
        self.recovery.left = self._now
        movers = self._make_moves()
        self._switch_cut()
        self._go_on_alone()
        # Those who have moved are there under their new names.
        self.cells.place(self.roster.reported(self.number))
        restorable = None if self._restore is None else self.begins.step
        reports = self._reports_by_cell()
        try:
            standing = stand(reports, self.book.stages, restorable, self.book.once)
        except CannotAgreeError as error:
            self._end(str(error))
            return
        if isinstance(standing, StageGone):
            self._stage_gone(standing)
            return
        # Workers that moved are waited for; joiners get their state while the others train.
        joiners = frozenset(member.worker for member in standing.donors) - movers
        cells = sorted({member.worker for member in reports})
        live = tuple(cell for cell in cells if cell not in joiners)
        assignment = self.book.assign(live)
        if assignment is None and joiners:
            # They are needed at once, so all workers wait for them.
            joiners, live = frozenset[Worker](), tuple(cells)
            assignment = self.book.assign(live)
        if assignment is None and live == self._unplannable and self._has_plan_with_newcomers:
            return
        if assignment is None or not (assignment.is_exact or joiners):
            self._planned_for = live
            self._orders.append(WantPlan(live, is_needed=assignment is None))
            if self.phase is Phase.FORMING and self._can_wait_for_plan:
                # No worker has begun yet, so none is kept waiting.
                return
        if assignment is not None:
            self._go(standing, assignment, joiners)

    def _reports_by_cell(self) -> dict[Member, HeldState]:
        """Of every rank of all who have reported. Where a worker has fewer processes than ranks, all ranks of
        one that needs a state get it from the same donor."""
        reports = {
            Member(cell, each.tp_rank): held
            for member, report in self.roster.reports(self.number).items()
            if (cell := self.cells.of(member.worker)) is not None
            for each, held in self.roster.of_ranks(member, self._holds(member, report)).items()
        }
        if not self.roster.fewer:
            return reports
        empty = HeldState(None, is_fresh=False)
        without = {member.worker for member, report in reports.items() if report.applied is None}
        return {member: empty if member.worker in without else held for member, held in reports.items()}

    def _stage_gone(self, gone: StageGone) -> None:
        if self._is_as_at_the_beginning and self.roster.new():
            # They hold as much as any other, once they have built it.
            return
        words = f"no live worker holds {gone.shard or f'the parameters of stage {gone.stages[0]}'}"
        if self.phase is Phase.FORMING and any(one.is_outdated for one in self.roster.entries.values()):
            words += ", and workers have trained of which the coordinator's journal does not know"
        self._end(words, is_lost=True)

    @property
    def _has_plan_with_newcomers(self) -> bool:
        """There is a plan for all who are here or on the way."""
        here = [self.cells.of(worker) or worker for worker in self.roster.whole()]
        return self.book.assign([*here, *self.expected]) is not None

    @property
    def _is_gathered(self) -> bool:
        """All have come that are waited for, and somebody has."""
        is_first = self.phase is Phase.FORMING
        has_all = not self.expected and self.roster.have_reported(self.number, with_new=is_first)
        return has_all and bool(self.roster.reported(self.number))

    def _holds(self, member: Member, report: HeldState) -> HeldState:
        """What it reports of its stage under this cut; with what it was sent for that, until it has begun."""
        entry, cell, ranges = self.roster.entries[member], self.cells.of(member.worker), self.book.ranges
        has_layers = entry.has_layers and report.layers_applied is not None
        shards = (*report.shards, *(entry.taken if has_layers else ()))
        if ranges and cell is not None:
            # Those of other layers go when it changes its cut.
            first, past = ranges[cell[1]]
            shards = tuple(each for each in shards if first <= each.layer < past)
        if has_layers and report.is_fresh:
            report = HeldState(report.layers_applied, is_fresh=False)
        return report._replace(shards=shards)

    def _switch_cut(self) -> None:
        """If layers have travelled for it and nothing has come between: from here on the new cut counts."""
        move, answers = self._layer_moves.end(self.roster.reports(self.number))
        self._take(answers)
        if move is None:
            return
        self.cells.switch(move.book, move.cells)
        joiners = move.joiners(self.roster.entries)
        for member, entry in self.roster.entries.items():
            entry.has_layers, entry.has_stepped = member in joiners, False
            entry.taken = move.shards_for(member.worker)
            if member.worker not in move.cells:
                # What it holds is of no use under the new cut.
                entry.hold_nothing()

    def _make_moves(self) -> frozenset[Worker]:
        """Those that were wanted and can still be made; the places that are taken now."""
        moves, self._moves = self._moves, {}
        taken: set[Worker] = set()
        reports = self.roster.reports(self.number)
        for member, target in list(possible_moves(moves, reports, self.roster.new())):
            self._send(member, Move(target.worker))
            self._orders.append(Rename(member, target))
            self.roster.rename(member, target).report = HeldState(None, is_fresh=False)
            self.cells.drop(member.worker)
            self.cells.put({target.worker: target.worker})
            taken.add(target.worker)
        return frozenset(taken)

    def _go(self, standing: Standing, assignment: Assignment, joiners: frozenset[Worker]) -> None:
        self.phase = Phase.RUNNING
        self.assignment = assignment
        plan = plan_name(self.book, assignment)
        self.recovery.step, self.recovery.undone, self.recovery.plan = standing.step, len(standing.undo), plan
        workers = self.cells.workers()
        members = [member for member in self.roster.members() if self.cells.of(member.worker) is not None]
        working = [member for member in members if self.cells.of(member.worker) not in joiners]
        told = self.rows.begin(
            standing.step, frozenset(working), len(assignment.roles), plan, self._with_loss(working)
        )
        self._tell_rows(told)
        cells = {workers[cell]: cell for cell in assignment.roles}
        joining = {workers[cell]: cell for cell in joiners}
        fewer = dict(self.roster.fewer)
        self._orders.append(BeginGeneration(self.number, standing.step, assignment, cells, joining, fewer))
        self._remembered = None
        group = self._new_generation(standing.step, working)
        self._ask(lambda one: one.generation(group))
        # Where groups hold all layers, one of them is enough.
        here = [
            cell
            for cell in self.cells.all_of(member.worker for member in working)
            if cell[1] in self.book.once
        ]
        roles = assignment.roles | self.book.idle_roles(assignment, joiners)
        start = GenerationStart(
            self.number,
            standing,
            assignment,
            roles=roles,
            grid=grid_text(roles.values()),
            takers=takers_of(standing),
            workers=workers,
            joiners=joiners,
            restore=self._restore,
            steps=self.steps,
            first_step=self.begins.step,
            first_item=self.begins.item,
            spared=frozenset(one_of_each_stage(here, self.number)),
            check_peers=self._check_peers,
            fewer=tuple(
                (roles[cell], ranks)
                for worker, ranks in sorted(self.roster.fewer.items())
                if (cell := self.cells.of(worker)) in roles
            ),
        )
        self._to_begin = set(members)
        self._work.begin(members)
        self.roster.activate(members)
        for member in members:
            entry = self.roster.entries[member]
            entry.boundary, entry.has_begun = None, False
            cell = self.cells.of(member.worker)
            assert cell is not None
            entry.is_joining = cell in joiners
            at = Member(cell, member.tp_rank)
            asked = (one.asked_of(member) for one in self.participants)
            order = go_order(start, at, next(filter(None, asked), None))
            entry.awaits_copy = order.copy_from is not None
            self._send(member, replace(order, is_main=True) if member == self._scripts.main else order)
        self._ask(lambda one: one.started(group))

    def _new_generation(self, step: int, working: Sequence[Member]) -> NewGeneration:
        return NewGeneration(
            self.number, step, working, self._with_loss(working), self._stages(), self.book.has_shards
        )

    def _with_loss(self, members: Iterable[Member]) -> frozenset[Member]:
        """One process of each worker that computes losses."""
        last = self.book.loss_stages
        return frozenset(
            member for member in members if member.tp_rank == 0 and self.cells.stage(member.worker) in last
        )

    def _stages(self) -> dict[Worker, int]:
        """Where each worker works; where groups hold all layers, those of the first."""
        once = self.book.once
        return {worker: cell[1] for cell, worker in self.cells.workers().items() if cell[1] in once}

    def _tell_rows(self, rows: list[StepRow]) -> None:
        self._take(self.rows.told(rows))

    def _note_row(self, row: StepRow) -> None:
        self._row_at = self._now
        self._standstill.step(row.seconds)
        self._orders += self._faults.made(row.step)

    # The end.

    def _end_wanted(self, event: EndWanted) -> None:
        if self._ends_because is not None:
            return
        if self.phase is Phase.FORMING or self._checkpoints is None:
            self._end(event.why)
            return
        self._ends_because, self._ends_by = event.why, self._now + event.seconds
        self._orders.append(Tell(f"{event.why}: the job ends after a last checkpoint"))
        self._stop_at_boundary(event.why)

    def _end_when_saved(self) -> None:
        """Every worker waits after the last step, until the last checkpoint is complete."""
        if self.rows.next < self.steps and not self._has_recalled:
            self._recall_rows()
        elif self._checkpoints is None or self._checkpoints.is_finished:
            self._tell_rows(self.rows.begin(self.steps, frozenset(), 0, ""))
            if self._ends_because is None:
                self._save()
            else:
                self._end(self._with_failure(self._ends_because))
        else:
            self._take(self._checkpoints.wait(self.steps))

    def _with_failure(self, why: str | None) -> str | None:
        """Also that a checkpoint could not be written, if the newest could not."""
        failure = None if self._checkpoints is None else self._checkpoints.failure
        return failure if why is None else why if failure is None else f"{why}; {failure}"

    def _save(self) -> None:
        """All steps are made: the job has ended well once everybody has written what it should."""
        error = self._with_failure(None)
        self._take(self._skipped.end(self.cells.stage))
        if self._skipped.has_made_none(self.steps - self.begins.step):
            error = f"every step was skipped, so nothing was trained; {self._skipped.words}"
        begun = self._last_save.begin(self.steps, error)
        if not begun:
            self._end(error, ok=True)
            return
        self.phase, self._asked_at = Phase.SAVING, self._now
        self._stop_participants()
        self._take(begun)

    def _stop_participants(self) -> None:
        for participant in self.participants:
            participant.stop()

    def _recall_rows(self) -> None:
        """What was said while there was no coordinator is said again, and then that every worker waits."""
        self._has_recalled = True
        for member in self.roster.active():
            self.roster.entries[member].boundary = None
            self._recall(member)
            self._say_where_to_stop(member)

    def _recall(self, member: Member) -> None:
        """Ask a process to say again what may not have been heard: its steps, and questions of its script."""
        self._send(member, Recall(self.rows.next))

    def _end(
        self, error: str | None, *, no_plan: bool = False, ok: bool = False, is_lost: bool = False
    ) -> None:
        """`ok`: all steps are made, whatever else went wrong."""
        if self.phase is Phase.ENDED:
            return
        is_told = self.phase is Phase.SAVING
        self._orders += self._faults.told(ENDLESS, error or "")
        self.phase, self._error = Phase.ENDED, error
        self._stop_participants()
        # First, so that it is written down: who has heard of it is gone when a coordinator comes back.
        self._orders.append(EndJob(error, no_plan, is_lost))
        for member, entry in () if is_told else self.roster.entries.items():
            self._send(member, End((ok or error is None) and not entry.is_outdated))

    def _send(self, member: Member, message: ToWorker) -> None:
        self._orders.append(Send(member, message))
