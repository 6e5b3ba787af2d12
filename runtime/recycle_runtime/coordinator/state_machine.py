"""Job state machine: the generations of a job, from one group of workers to the next. Events in, orders out.

    forming     the first members arrive
    gathering   all workers leave the old group and report; when all have, they get the next one
    running     they train
    saving      they write what they should when the last step is made
    ended

A generation is one group of members with one plan. Every failure begins a new one; so does every change at
a boundary between two steps (a worker that joins, a better plan, a move), for which all workers stop there.

Participants do everything else: they get the events, and their answers are added. No clock, no
sockets, no files: time comes in with each event, and what has to be done comes out as a list. Needs
no torch.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from enum import Enum
from typing import Any

from recycle_runtime.coordinator.cells import Cells
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
    WorkerFailed,
    WorkerStuck,
)
from recycle_runtime.coordinator.journal import Lines
from recycle_runtime.coordinator.last_generation import Remembered
from recycle_runtime.coordinator.members import Members
from recycle_runtime.coordinator.membership import Roster
from recycle_runtime.coordinator.participant import Asked, Participant, View
from recycle_runtime.coordinator.participants import Participants
from recycle_runtime.coordinator.patience import Patience, Standstill
from recycle_runtime.coordinator.pending import (
    BoundaryStop,
    Ending,
    GroupStart,
    PlanWait,
    Predecessor,
    SlotWait,
)
from recycle_runtime.coordinator.programs import ProgramFaults, told_of
from recycle_runtime.coordinator.regrouping import (
    CannotAgreeError,
    GenerationStart,
    Recovery,
    StageGone,
    Standing,
    go_order,
    stand,
    takers_of,
)
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.moves import moves_text
from recycle_runtime.plan.plan_book import Assignment, PlanBook, one_of_each_stage, plan_name
from recycle_runtime.plan.worker_ids import grid_text, worker_text
from recycle_runtime.protocol.messages.generations import (
    AtBoundary,
    Began,
    CaughtUp,
    End,
    Failed,
    GroupBroken,
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
        self._tensor, self._check_peers = tensor, check_peers
        self._patience = patience or Patience()
        asked = asked or Asked(steps, has_scripts=steps >= ENDLESS)
        self.cells, self.roster = Cells(book), Roster(tensor)
        self.members = Members(self.roster, self.cells, expected, asked.begins)
        self.phase = Phase.FORMING
        self.number = 1
        """Of the generation."""
        view = View(self.roster, self.cells, self._is_current, lambda: self._now)
        self.participants = Participants(asked, view)
        self.assignment: Assignment | None = None
        self.recovery = Recovery(1, ["start"], now)
        self._start = GroupStart()
        self._boundary = BoundaryStop()
        self._plan = PlanWait()
        self._slots = SlotWait(self._patience.returning)
        self._ending = Ending()
        self._faults = ProgramFaults()
        self._progress = Standstill(self._patience, now)
        self._predecessor = Predecessor()
        self._now = self._asked_at = now
        """As the event under way says; and when all were asked for something."""
        self._orders: list[Order] = []
        """That it has led to so far."""
        self._handlers: dict[type[object], Callable[[Any], None]] = {
            Joined: self._joined,
            Returned: self._returned,
            AllReturned: self._all_returned,
            Reconnected: self._reconnected,
            Said: lambda event: self.messages.handle(event.member, event.message),
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
        messages = self.messages = Handlers[Member]()
        """Of workers: to it, or to one of its participants."""
        messages.on(LeftGroup, self._left_group)
        messages.on(Began, self._began)
        messages.on(Holding, self._holding)
        messages.on(AtBoundary, self._at_boundary)
        messages.on(CaughtUp, self._caught_up)
        messages.on(GroupBroken, self._group_broken)
        messages.on(Failed, self._failed)
        messages.on(ShardsHeld, lambda member, said: self.members.have_shards(member, said, self._is_current))
        # Nobody can make progress while a script is busy.
        messages.on(InScript, lambda member, said: self._progress.wait(self._now))
        for participant in self.participants:
            for kind, hear in participant.hears().items():
                messages.on(kind, lambda member, said, hear=hear: self._take(hear(member, said)))
            for kind, follow in participant.follows().items():
                self._handlers[kind] = lambda event, follow=follow: self._take(follow(event))
        for kind in self.participants.not_asked_for():
            messages.on(kind, lambda member, said: None)

    @property
    def book(self) -> PlanBook:
        """The plans of the current cut."""
        return self.cells.book

    @property
    def is_settled(self) -> bool:
        """True if nothing is under way at all: no change, no joiner, no layers."""
        is_moving = self.participants.layer_moves.move is not None or self.members.are_on_their_way
        return self.is_steady and not is_moving

    def can_go_on_with(self, workers: Collection[Worker]) -> bool:
        """True if these hold, for all that is known, all there is of every stage, or of every stage of a
        group."""
        return self.cells.are_enough(workers) if self._is_as_begun else self.members.hold_all(workers)

    @property
    def _is_as_begun(self) -> bool:
        """True if one that has just been started holds as much as any other."""
        is_first = self.participants.rows.next == self.members.begins.step
        return self.phase is Phase.FORMING or (is_first and not self.members.may_be_ahead())

    @property
    def is_steady(self) -> bool:
        """True if every worker trains, and no change is under way or asked for."""
        return self.phase is Phase.RUNNING and self._boundary.step is None and self.recovery.going > 0

    def handle(self, event: Event, now: float) -> list[Order]:
        """Orders to carry out for an event, in this order."""
        self._now = now
        if self.phase is Phase.SAVING and not isinstance(event, _WHILE_SAVING):
            return []
        if self.phase is not Phase.ENDED or isinstance(event, CheckpointClosed | Reconnected | WorkerFailed):
            self._handlers[type(event)](event)
        orders, self._orders = self._orders, []
        return orders

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
                    self._progress.step(self._now, row.seconds)
                    self._orders += self._faults.made(row.step)
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
        self.number = self._predecessor.generation = state.generation
        self.members.expected, self.members.restore = set(), state.restore
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
        members = sorted(one for one in self.roster.members() if one.worker not in state.joiners)
        group = self.members.generation(self.number, self.participants.rows.next, members)
        self.participants.rows.begin(
            self.participants.rows.next, frozenset(members), len(state.places), plan, group.with_loss
        )
        self.recovery.going = self._now
        for participant in self.participants:
            participant.go_on(group)
        if (begun := self.participants.last_save.begun) is not None:
            self.phase, self.steps, self._asked_at = Phase.SAVING, begun.steps, self._now
            self.participants.stop()

    def remember_end(self, error: str | None) -> None:
        """The job had ended when the coordinator before this one did."""
        self.phase, self._ending.error = Phase.ENDED, error
        self.participants.stop()

    # Who comes.

    def _joined(self, event: Joined) -> None:
        member = event.member
        if member in self.roster:
            return
        self.roster.join(member, event.ranks).is_outdated = event.has_trained
        if self.roster.is_whole(member.worker):
            self.members.expected.discard(member.worker)
        self._predecessor.asked(event.asked)
        if event.asked >= self.number == self._predecessor.generation and self.phase is Phase.RUNNING:
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
        self._predecessor.asked(event.asked)
        self._send(event.member, Recall(self.participants.rows.next))
        if self.phase in _CHANGING:
            self._ask_to_leave(event.member, event.asked)
        elif self.phase is Phase.SAVING:
            self._send(event.member, End(ok=True))
        elif self.phase is not Phase.RUNNING:
            self._send(event.member, Leave(self.number))
        elif event.is_training and event.asked <= self.number:
            self._send(event.member, self._boundary.order(self.steps))
            # Whether a joiner has caught up is not known here: what it reports tells.
            self._predecessor.left_change_open |= self.roster.entries[event.member].is_joining
        else:
            self._predecessor.left_change_open = True

    def _all_returned(self, event: AllReturned) -> None:
        """If the last coordinator ended in the middle of a change, make that change now."""
        if self._predecessor.left_change_open and self.phase is Phase.RUNNING:
            self._regroup("the coordinator restarted")
        elif self.phase is Phase.RUNNING and self.assignment is not None:
            chosen = self.book.assign(self.cells.all_of(self.roster.whole()))
            if chosen is not None and chosen[:2] != self.assignment[:2]:
                self._stop_at_boundary("a plan that had been chosen")
        self._ask(lambda one: one.all_returned())
        self._predecessor.left_change_open = False

    def _reconnected(self, event: Reconnected) -> None:
        member = event.member
        for participant in self.participants:
            participant.miss(member)
        if member in self.roster:
            self.roster.entries[member].saves = event.saves
        self._predecessor.asked(event.asked)
        if self.phase is not Phase.ENDED:
            self._send(member, Recall(self.participants.rows.next))
        if self.phase in (Phase.SAVING, Phase.ENDED):
            is_well = self.phase is Phase.SAVING or self._ending.error is None
            is_outdated = member in self.roster and self.roster.entries[member].is_outdated
            self._send(member, End(is_well and not is_outdated))
        elif self.phase in _CHANGING:
            self._ask_to_leave(member, event.asked)
        elif self.phase is not Phase.RUNNING or not self.roster.entries[member].is_active:
            self._send(member, Leave(self.number))
        elif event.generation != self.number or not event.is_training or event.asked > self.number:
            # One that has been asked to leave by the coordinator before this one is about to do so.
            self._regroup(f"{worker_text(member.worker)} lost its connection to the group")
        else:
            self._send(member, self._boundary.order(self.steps))

    # What worker processes say.

    def _left_group(self, member: Member, message: LeftGroup) -> None:
        if member not in self.roster:
            return
        entry = self.roster.entries[member]
        if message.generation < max(entry.generation, self.number):
            # It has been asked again since, and whether it has left for that is not known.
            return
        self.members.left(member, message)
        if self.phase is Phase.RUNNING:
            is_here = not self.roster.is_new(member.worker)
            if not entry.is_active and is_here and self.cells.has_room(member.worker):
                self._stop_at_boundary(f"{worker_text(member.worker)} arrives")
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
        if (mistake := self._start.hear(member, message.shares)) is not None:
            self._end(mistake)
            return
        if not self._start.missing and not self.recovery.going:
            self.recovery.going = self._now
            self.members.restore = None
            if self.members.begins.step:
                self._orders.append(Note({"restored": True}))
            self._orders.append(FinishRecovery(self.recovery))
            self._ask(lambda one: one.recovered(self.recovery.told().total))
            if self._ending.why is not None:
                self._stop_at_boundary(self._ending.why)

    def _holding(self, member: Member, message: Holding) -> None:
        """If it has passed the step before which to stop, all are sent a later one."""
        if self._boundary.is_passed(message, self.steps):
            self._ask_to_hold()

    def _at_boundary(self, member: Member, message: AtBoundary) -> None:
        if member not in self.roster or self.phase is not Phase.RUNNING:
            return
        step = message.step
        self.roster.entries[member].boundary = step
        # Once all scripts have ended before the same step, that is how many steps the job has.
        scripts = self.participants.scripts
        end = scripts.ended_before(scripts.ending())
        if end is not None and end < self.steps:
            self.steps = self.participants.end_with(end)
        if step >= self.steps:
            if self.roster.wait_at(step, scripts.ending()):
                self._end_when_saved()
        elif self._boundary.step == step and self.roster.wait_at(
            step, self.participants.layer_moves.stopping()
        ):
            if self._ending.why is None:
                self._regroup(*self._boundary.causes, at_boundary=True)
                return
            self.steps = self.participants.end_with(step)
            self._end_when_saved()

    def _caught_up(self, member: Member, message: CaughtUp) -> None:
        """It has come as far as its peers, and can work."""
        if not self._is_current(member, message.generation):
            return
        self.roster.entries[member].is_joining = False
        ranks = [entry for other, entry in self.roster.entries.items() if other.worker == member.worker]
        if not any(entry.is_joining for entry in ranks):
            self._stop_at_boundary(f"{worker_text(member.worker)} joins")

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
        cause = f"{worker_text(member.worker)} failed"
        if self._is_outside(member):
            # Where it was started something may be missing; those who train need not end for that.
            self._orders.append(told_of(member.worker, message))
            self._worker_failed(WorkerFailed(member.worker, cause))
            return
        if self.phase is Phase.FORMING or message.is_hopeless:
            # Nothing has been trained yet: the program or its surroundings are at fault.
            self._end(message.why, is_lost=message.is_hopeless and self.members.refuse_copy())
            return
        if self._faults.is_raised_alike(member.worker, message):
            self._end(message.why)
            return
        self._worker_failed(WorkerFailed(member.worker, cause, reason=message.why))

    def _is_outside(self, member: Member) -> bool:
        """True if it was started while others train, and is not among them yet."""
        entry = self.roster.entries.get(member)
        return self.phase is Phase.RUNNING and (entry is None or not entry.is_active)

    def _is_current(self, member: Member, generation: int) -> bool:
        """True if what it says is about the generation that runs."""
        return member in self.roster and generation == self.number and self.phase is Phase.RUNNING

    # Who goes.

    def _worker_failed(self, event: WorkerFailed) -> None:
        worker, cause = event.worker, event.cause
        self.members.expected.discard(worker)
        trained = any(member.worker == worker for member in self.roster.active())
        gone = self._remove(worker, cause)
        if self.phase is Phase.SAVING:
            self._take(self.participants.last_save.lose(worker, cause))
            return
        if self.phase is Phase.ENDED or (not gone and self.phase is not Phase.FORMING):
            return
        if self.phase is Phase.RUNNING and not trained:
            # It had not joined yet.
            self._take(self.participants.layer_moves.lose(worker, cause))
            return
        if self.phase is not Phase.FORMING and (empty := self.members.empty_stages()):
            # While others leave their group because of a failure, that is why this one fails too.
            earlier = self.recovery.reason if self.phase is Phase.GATHERING else ""
            said = f" ({reason})" if (reason := event.reason or earlier) else ""
            self._end(f"every worker of stage {empty[0]} has failed: {cause}{said}", is_lost=True)
        elif self.phase is Phase.FORMING and not self.members.expected and not self.roster.entries:
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
        self.members.expected.add(event.worker)

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

    def _time_passed(self, event: TimePassed) -> None:
        if self._ending.why is not None and self._now > self._ending.by:
            self._end(f"{self._ending.why} (there was no time for a last checkpoint)")
            return
        if self.phase is Phase.SAVING:
            is_late = self._now - self._asked_at > self._patience.first_step
            self._take(self.participants.last_save.look(is_late=is_late))
            return
        waited = self._now - self._asked_at if self.phase is Phase.GATHERING else 0.0
        for worker in self.members.late(waited, self._patience, self.can_go_on_with):
            self._worker_failed(WorkerFailed(worker, f"{worker_text(worker)} did not leave its group"))
        is_going = self.phase is Phase.RUNNING and self.recovery.going > 0
        if is_going and self._progress.is_over(self._now, self.recovery.going, self.roster.have_stepped):
            self._regroup_fruitlessly(self.roster.active()[0], "no worker made progress")
        if self.phase is Phase.GATHERING and (error := self._slots.failed(self._now)) is not None:
            self._end(error)
            return
        self._take(self.participants.layer_moves.look())
        if self.phase is Phase.RUNNING and (ending := self.participants.scripts.ending()):
            waiting = (self.roster.entries[member].boundary for member in ending)
            if all(step is not None and step >= self.steps for step in waiting):
                self._end_when_saved()

    # Changes that are wanted.

    def _stop_wanted(self, event: StopWanted) -> None:
        self._stop_at_boundary(event.why)
        for outside in self.participants.layer_moves.awaited():
            if not self.roster.entries[outside].is_active:
                # All may have been told before it was known that these have to stop too.
                self._send(outside, self._boundary.order(self.steps))

    def _moves_wanted(self, event: MovesWanted) -> None:
        for worker, place in event.moves.items():
            self.members.moves[worker] = place
            self._stop_at_boundary(f"{worker_text(worker)} moves to {worker_text(place)}")

    def _recut_wanted(self, event: RecutWanted) -> None:
        if self.is_settled:
            self._take(self.participants.layer_moves.begin(event.move))

    def _plan_made(self, event: PlanMade) -> None:
        if self.phase in _CHANGING:
            self._go_if_all_are_here()
        elif self.phase is Phase.RUNNING and self.participants.layer_moves.move is None:
            self._stop_for_exact_plan()

    def _stop_for_exact_plan(self) -> None:
        """If there is one by now."""
        if self.phase is not Phase.RUNNING or self.assignment is None or self.assignment.is_exact:
            return
        chosen = self.book.assign(sorted(self.assignment.roles))
        if chosen is not None and chosen.is_exact:
            self._stop_at_boundary("a plan for these failures")

    def _planning_failed(self, event: PlanningFailed) -> None:
        self._plan.fail()
        if self.phase not in _CHANGING or self._slots.is_under_way:
            return
        if self.members.have_plan:
            self._go_if_all_are_here()
            return
        is_first = self.phase is Phase.FORMING
        if not is_first and (moves := self.members.moves_to_a_plan(self.number)):
            self.members.moves = moves
            self._orders.append(Tell(f"{moves_text(moves)}: there is a plan for failures that lie so"))
            self._go_if_all_are_here()
            if self.phase is not Phase.GATHERING:
                return
        said, reason = f"{event.error} ({', '.join(self.recovery.causes)})", self.recovery.reason
        self._end(f"{said}; {reason}" if reason else said, no_plan=not reason)

    def _stop_at_boundary(self, why: str) -> None:
        """Have every worker stop between two steps, for a change."""
        step = min(self.participants.rows.next + 2, self.steps)
        if self.phase is Phase.RUNNING and self._boundary.want(why, step):
            self._ask_to_hold()

    def _ask_to_hold(self) -> None:
        for member in self.participants.layer_moves.stopping():
            self.roster.entries[member].boundary = None
            self._send(member, self._boundary.order(self.steps))

    # From one generation to the next.

    def _regroup_fruitlessly(self, member: Member, why: str) -> None:
        """No worker has failed, and yet they cannot continue; the number of times is limited."""
        error = self._faults.fruitless(member.worker, why)
        if error is not None:
            self._end(error)
        else:
            self._regroup(f"{worker_text(member.worker)} lost its connection to the group")

    def _regroup(self, *causes: str, fault_at: float | None = None, at_boundary: bool = False) -> None:
        self.recovery = Recovery(self.number + 1, list(causes), self._now, fault_at)
        self.recovery.repeated = 0.0 if at_boundary else self._now - self._progress.since
        self._boundary.end()
        self._gather(self.number + 1)

    def _gather(self, number: int) -> None:
        if self.phase is not Phase.FORMING:
            self.phase = Phase.GATHERING
        # Processes may have been asked for more by the coordinator before this one.
        number = max(number, self._predecessor.newest + 1)
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

    def _go_if_all_are_here(self) -> None:
        is_first = self.phase is Phase.FORMING
        if self.phase not in _CHANGING or not self.members.are_gathered(self.number, with_new=is_first):
            return
        self.recovery.left = self._now
        movers = self._change_cells()
        restorable = None if self.members.restore is None else self.members.begins.step
        reports = self.members.reports_by_cell(self.number)
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
        lack = self.members.lack_of_slots(self.book.counts(live))
        if joiners and (assignment is None or lack is not None):
            # They are needed at once, so all workers wait for them.
            joiners, live = frozenset[Worker](), tuple(cells)
            assignment = self.book.assign(live)
            lack = self.members.lack_of_slots(self.book.counts(live))
        if lack is not None and self.phase is Phase.GATHERING:
            self._wait_for_slots(lack)
            return
        self._slots.end()
        if assignment is None and live == self._plan.unplannable and self.members.have_plan:
            return
        if assignment is None or not (assignment.is_exact or joiners):
            self._orders.append(self._plan.ask(live, is_needed=assignment is None))
            if self.phase is Phase.FORMING and not self._plan.has_failed:
                # No worker has begun yet, so none is kept waiting.
                return
        if assignment is not None:
            self._go(standing, assignment, joiners)

    def _wait_for_slots(self, lack: str) -> None:
        """Until a worker comes back, or for too long; not if others can move there, or all had too
        few together."""
        if (never := self.members.lack_of_slots((0,) * self.book.stages)) is not None:
            self._end(never)
            return
        words = self._slots.need(lack, self._now)
        if words is not None and (moves := self.members.moves_to_a_plan(self.number)):
            self.members.moves = moves
            self._orders.append(Tell(f"{moves_text(moves)}: {lack}"))
            self._go_if_all_are_here()
        if not self._slots.is_under_way:
            return
        if (error := self._slots.failed(self._now)) is not None:
            self._end(error)
        elif words is not None:
            self._orders.append(Tell(words))

    def _change_cells(self) -> set[Worker]:
        """Move workers, and switch the cut, as was wanted: the places that are taken now."""
        moved = self.members.make_moves(self.number)
        for member, target in moved:
            self._send(member, Move(target.worker))
            self._orders.append(Rename(member, target))
        move, answers = self.participants.layer_moves.end(self.roster.reports(self.number))
        self._take(answers)
        if move is not None:
            # Layers have travelled for it, and nothing has come between.
            self.members.switch_cut(move)
        self.members.go_on_alone()
        # Those who have moved are there under their new names.
        self.cells.place(self.roster.reported(self.number))
        return {target.worker for _, target in moved}

    def _stage_gone(self, gone: StageGone) -> None:
        if self._is_as_begun and self.roster.new():
            # They hold as much as any other, once they have built it.
            return
        words = f"no live worker holds {gone.shard or f'the parameters of stage {gone.stages[0]}'}"
        if self.phase is Phase.FORMING and any(one.is_outdated for one in self.roster.entries.values()):
            words += ", and workers have trained of which the coordinator's journal does not know"
        self._end(words, is_lost=True)

    def _go(self, standing: Standing, assignment: Assignment, joiners: frozenset[Worker]) -> None:
        self.phase = Phase.RUNNING
        self.assignment = assignment
        plan = plan_name(self.book, assignment)
        self.recovery.step, self.recovery.undone, self.recovery.plan = standing.step, len(standing.undo), plan
        workers = self.cells.workers()
        members = [member for member in self.roster.members() if self.cells.of(member.worker) is not None]
        working = [member for member in members if self.cells.of(member.worker) not in joiners]
        group = self.members.generation(self.number, standing.step, working)
        rows = self.participants.rows
        told = rows.begin(standing.step, frozenset(working), len(assignment.roles), plan, group.with_loss)
        self._take(rows.told(told))
        cells = {workers[cell]: cell for cell in assignment.roles}
        joining = {workers[cell]: cell for cell in joiners}
        fewer = dict(self.roster.fewer)
        self._orders.append(BeginGeneration(self.number, standing.step, assignment, cells, joining, fewer))
        self._predecessor.generation = None
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
            restore=self.members.restore,
            steps=self.steps,
            first_step=self.members.begins.step,
            first_item=self.members.begins.item,
            spared=frozenset(one_of_each_stage(here, self.number)),
            check_peers=self._check_peers,
            fewer=self.members.told_fewer(roles),
        )
        self._start.begin(members, self.book.bundles[assignment.bundle], plan)
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
            self._send(
                member, replace(order, is_main=True) if member == self.participants.scripts.main else order
            )
        self._ask(lambda one: one.started(group))

    # The end.

    def _end_wanted(self, event: EndWanted) -> None:
        if self._ending.why is not None:
            return
        if self.phase is Phase.FORMING or self.participants.checkpoints is None:
            self._end(event.why)
            return
        self._ending.why, self._ending.by = event.why, self._now + event.seconds
        self._orders.append(Tell(f"{event.why}: the job ends after a last checkpoint"))
        self._stop_at_boundary(event.why)

    def _end_when_saved(self) -> None:
        """Every worker waits after the last step, until the last checkpoint is complete."""
        rows, checkpoints = self.participants.rows, self.participants.checkpoints
        if rows.next < self.steps and not self._ending.has_recalled:
            # What was said while there was no coordinator is said again, and then that every worker waits.
            self._ending.has_recalled = True
            for member in self.roster.active():
                self.roster.entries[member].boundary = None
                self._send(member, Recall(self.participants.rows.next))
                self._send(member, self._boundary.order(self.steps))
        elif checkpoints is not None and not checkpoints.is_finished:
            self._take(checkpoints.wait(self.steps))
        else:
            self._take(rows.told(rows.begin(self.steps, frozenset(), 0, "")))
            if self._ending.why is None:
                self._save()
            else:
                self._end("; ".join(filter(None, (self._ending.why, self.participants.failure))))

    def _save(self) -> None:
        """All steps are made: the job has ended well once everybody has written what it should."""
        skipped, error = self.participants.skipped, self.participants.failure
        self._ask(lambda one: one.ends())
        if skipped.has_made_none(self.steps - self.members.begins.step):
            error = f"every step was skipped, so nothing was trained; {skipped.words}"
        begun = self.participants.last_save.begin(self.steps, error)
        if not begun:
            self._end(error, ok=True)
            return
        self.phase, self._asked_at = Phase.SAVING, self._now
        self.participants.stop()
        self._take(begun)

    def _end(
        self, error: str | None, *, no_plan: bool = False, ok: bool = False, is_lost: bool = False
    ) -> None:
        """`ok`: all steps are made, whatever else went wrong."""
        if self.phase is Phase.ENDED:
            return
        is_told = self.phase is Phase.SAVING
        self._orders += self._faults.told(ENDLESS, error or "")
        self.phase, self._ending.error = Phase.ENDED, error
        if not (is_told or ok):
            self._ask(lambda one: one.ends())
        self.participants.stop()
        # First, so that it is written down: who has heard of it is gone when a coordinator comes back.
        self._orders.append(EndJob(error, no_plan, is_lost))
        for member, entry in () if is_told else self.roster.entries.items():
            self._send(member, End((ok or error is None) and not entry.is_outdated))

    def _send(self, member: Member, message: ToWorker) -> None:
        self._orders.append(Send(member, message))
