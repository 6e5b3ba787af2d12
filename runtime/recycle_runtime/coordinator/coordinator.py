"""The order of things when workers come and go. Standard library only; what it says goes to `Outbox`.

    forming     the first members arrive
    gathering   everybody leaves the old group and reports; when all have, they get the next one
    running     they train
    ended

A generation is one group of members with one plan. Every failure begins a new one; so does every change at
a boundary between two steps (a worker that joins, a better plan, a move), for which everybody stops there.
"""

import time
from collections.abc import Callable
from enum import Enum

from recycle_runtime.coordinator.checkpoints import NoSaving
from recycle_runtime.coordinator.decision import CannotAgreeError, StageLost, Standing, stand
from recycle_runtime.coordinator.journal import Remembered
from recycle_runtime.coordinator.orders import Start, carry_out, go_order
from recycle_runtime.coordinator.outbox import Outbox
from recycle_runtime.coordinator.recoveries import Recovery
from recycle_runtime.coordinator.roster import Roster, name_of
from recycle_runtime.coordinator.standstill import Standstill
from recycle_runtime.coordinator.step_metrics import StepRows
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.plan_book import Assignment, PlanBook, one_of_each_stage, plan_name
from recycle_runtime.protocol.messages import End, Hold, Leave, Member, Recall, Report, StepRow

_LEAVING_SECONDS = 15.0
"""One that gloo never wakes is given up."""
_LAST_LEAVING_SECONDS = 700.0
"""The last of a stage: longer than it waits for others, so that it comes out by itself."""
_MOST_FRUITLESS = 5
"""Generations in a row that end without a step or a loss; more of them mean that something else is wrong."""


class Phase(Enum):
    FORMING = "forming"
    GATHERING = "gathering"
    RUNNING = "running"
    ENDED = "ended"


class Coordinator:
    """The state of a job."""

    def __init__(
        self,
        book: PlanBook,
        tensor: int,
        steps: int,
        expected: set[Worker],
        outbox: Outbox,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.book, self.steps = book, steps
        self.roster = Roster(tensor)
        self.phase = Phase.FORMING
        self.number = 1
        """Of the generation."""
        self.rows = StepRows(book.stages)
        self.assignment: Assignment | None = None
        self.recovery = Recovery(1, ["start"], clock())
        self.restore: str | None = None
        """The checkpoint that the run begins with, until everybody has read it."""
        self.first_step = self.first_item = 0
        """Where the run begins, and the number of its first micro-batch."""
        self.saving = NoSaving()
        """Takes checkpoints, where they are wanted."""
        self.can_wait_for_plan = True
        """False once planning has failed."""
        self._tensor, self._outbox, self._clock = tensor, outbox, clock
        self.expected = set(expected)
        """Workers that have not joined yet, in the beginning."""
        self._hold: int | None = None
        self._request = 0
        self._wanted: list[str] = []
        """Why everybody should stop at a boundary."""
        self._fruitless = 0
        self._failures: dict[int, set[Member]] = {}
        self._row_at = clock()
        self._standstill = Standstill()
        self._moves: dict[Worker, Worker] = {}
        self._movers: frozenset[Worker] = frozenset()

    @property
    def is_steady(self) -> bool:
        """Whether everybody trains, and no change is under way or asked for."""
        return self.phase is Phase.RUNNING and self._hold is None and self.recovery.going > 0

    # What members say.

    def join(self, member: Member, *, has_trained: bool = False, asked: int = 0) -> bool:
        """A process is there; False if its place is taken. One that `has_trained` was given up before.

        `asked` is the newest generation that it has heard of, from another coordinator perhaps.
        """
        if self.phase is Phase.ENDED or member in self.roster:
            return False
        self.roster.join(member).is_outdated = has_trained
        if member.worker in self.roster.whole():
            self.expected.discard(member.worker)
        self._newest = max(self._newest, asked)
        if asked > self.number and self.phase is not Phase.RUNNING:
            self._gather(asked)
            return True
        self._outbox.order(member, Leave(self.number))
        return True

    def remember(self, state: Remembered) -> None:
        """Go on as the coordinator before this one; its members train, and are on their way back here."""
        self.phase = Phase.RUNNING
        self.number = state.generation
        self.expected = set()
        self.rows.next = state.next_row
        self.assignment = self.book.assign(state.places)
        if state.plan is not None:
            bundle, plan, roles, standbys, on_purpose = state.plan
            period = self.book.bundles[bundle].plans[plan].period
            self.assignment = Assignment(bundle, plan, roles, standbys, period, on_purpose)
        for place in state.places:
            for part in range(self._tensor):
                entry = self.roster.join(Member(place, part))
                entry.is_active = entry.has_begun = True
        assert self.assignment is not None, "the plan of the last generation is not there any more"
        plan = plan_name(self.book, self.assignment)
        self.rows.begin(state.next_row, frozenset(self.roster.members()), len(state.places), plan)
        self.recovery.going = self._clock()
        self.saving.train(list(self.roster.members()))

    def rejoin(self, member: Member, *, is_training: bool, asked: int) -> None:
        """A member has found the new coordinator; it stops nowhere unless it is told to."""
        self._newest = max(self._newest, asked)
        if self.phase is not Phase.RUNNING:
            self._outbox.order(member, Leave(self.number))
        elif is_training and asked <= self.number:
            self._say_where_to_stop(member)
        else:
            self._left_before = True

    def reconnect(self, member: Member, generation: int, is_training: bool) -> None:
        """A member's connection broke and is there again; both ends may have missed something."""
        self.saving.lose(member)
        if self.phase is Phase.ENDED:
            self._outbox.order(member, self._last_order)
        elif self.phase is not Phase.RUNNING or not self.roster.entries[member].is_active:
            self._outbox.order(member, Leave(self.number))
        elif generation != self.number or not is_training:
            self._regroup(f"{name_of(member.worker)} lost touch")
        else:
            self._say_where_to_stop(member)

    def all_are_back(self) -> None:
        """If the last coordinator ended in the middle of a change, make that change now."""
        if self._left_before and self.phase is Phase.RUNNING:
            self._regroup("the coordinator started again")
        elif self.phase is Phase.RUNNING and self.assignment is not None:
            chosen = self.book.assign(self.roster.whole())
            if chosen is not None and chosen[:2] != self.assignment[:2]:
                self.stop_at_boundary("a plan that had been chosen")
        self._left_before = False

    def report(self, member: Member, generation: int, report: Report) -> None:
        """It has left its group and says what it holds."""
        if member not in self.roster:
            return
        entry = self.roster.entries[member]
        entry.report = Report(None, is_fresh=False) if entry.is_outdated else report
        entry.generation, entry.is_leaving = generation, False
        if self.phase is Phase.RUNNING:
            if not entry.is_active and member.worker in self.roster.whole():
                self.stop_at_boundary(f"{name_of(member.worker)} arrives")
            return
        self._go_if_all_are_here()

    def step(self, member: Member, step: int, loss: float | None, seconds: float) -> None:
        """It has made a step."""
        self._tell(self.rows.add(member, step, loss, seconds))

    def loss(self, member: Member, step: int, loss: float | None) -> None:
        """It is about to make a step, and adds this to its loss."""
        self.rows.add_loss(member, step, loss)

    def began(self, member: Member, generation: int) -> None:
        """It runs the first instruction of a generation."""
        if member not in self.roster or generation != self.number or self.phase is not Phase.RUNNING:
            return
        self.roster.entries[member].has_begun = True
        self.roster.entries[member].is_outdated = False
        entries = [self.roster.entries[other] for other in self.roster.active()]
        if all(entry.has_begun for entry in entries) and not self.recovery.going:
            self.recovery.going = self._clock()
            self.restore = None
            self._outbox.recovered(self.recovery)

    def holding(self, request: int, step: int) -> None:
        """A member knows where to stop, and is in this step now."""
        if request == self._request and self._hold is not None and step >= self._hold and step < self.steps:
            self._ask_to_hold(step + 2 * self._request_tries())

    def boundary(self, member: Member, step: int) -> None:
        """It waits before this step."""
        if member not in self.roster or self.phase is not Phase.RUNNING:
            return
        self.roster.entries[member].boundary = step
        if all(self.roster.entries[other].boundary == step for other in self.roster.active()):
            if step >= self.steps:
                self._end_when_saved()
            elif self._hold == step:
                self._regroup(*self._wanted, at_boundary=True)

    def look_at_checkpoints(self) -> None:
        """Now and then: files take their time."""
        if self.phase is not Phase.RUNNING:
            return
        self.saving.poll()
        waiting = [self.roster.entries[member].boundary for member in self.roster.active()]
        if waiting and all(step is not None and step >= self.steps for step in waiting):
            self._end_when_saved()

    def caught_up(self, member: Member, generation: int) -> None:
        """It has come as far as its peers, and can work."""
        if member not in self.roster or generation != self.number or self.phase is not Phase.RUNNING:
            return
        self.roster.entries[member].is_learning = False
        parts = [entry for other, entry in self.roster.entries.items() if other.worker == member.worker]
        if not any(entry.is_learning for entry in parts):
            self.stop_at_boundary(f"{name_of(member.worker)} joins")

    def broken(self, member: Member, generation: int, why: str) -> None:
        """It cannot talk to somebody in its group."""
        if generation == self.number and self.phase is Phase.RUNNING and member in self.roster:
            self._fruitless += 1
            if self._fruitless > _MOST_FRUITLESS:
                self._end(f"the workers could not talk to each other {self._fruitless} times in a row: {why}")
                return
            self._regroup(f"{name_of(member.worker)} lost touch")

    def look_at_progress(self) -> None:
        """Now and then: if nobody gets on for very long, group everybody anew."""
        waited = self._clock() - self._asked_at if self.phase is Phase.GATHERING else 0.0
        for place in self.roster.late(self.number) if waited > _LEAVING_SECONDS else ():
            others = [other for other in self.roster.whole() if other != place]
            if waited > _LAST_LEAVING_SECONDS or any(other[1] == place[1] for other in others):
                self.lose(place, f"{name_of(place)} did not leave its group")
        since = max(self._row_at, self.recovery.going)
        if self.is_steady and self._standstill.is_long(self._clock() - since):
            self.broken(self.roster.active()[0], self.number, "nobody got on")

    def failed(
        self, member: Member, step: int, why: str, *, is_injected: bool = False, is_hopeless: bool = False
    ) -> None:
        """Its own work raised an error; the process ends by itself. Hopeless: others would fail too."""
        if self.phase is Phase.ENDED:
            return
        if self.phase is Phase.FORMING or is_hopeless:
            # Nothing has been trained yet: the program or its surroundings are at fault.
            self._end(why)
            return
        others = self._failures.setdefault(step, set())
        if not is_injected:
            others.add(member)
        if len({other.worker for other in others}) > 1:
            # The same step fails wherever it runs, so no machine is at fault.
            self._end(why)
            return
        self.lose(member.worker, f"{name_of(member.worker)} failed", reason=why)

    # What agents say.

    def lose(self, place: Worker, cause: str, harmed: float | None = None, reason: str = "") -> None:
        """A worker is gone, all its parts with it."""
        self.expected.discard(place)
        trained = any(member.worker == place for member in self.roster.active())
        gone = self.roster.lose(place)
        for member in gone:
            self._outbox.fence(member, cause)
            self.saving.lose(member)
        if self.phase is Phase.ENDED or (not gone and self.phase is not Phase.FORMING):
            return
        if self.phase is Phase.RUNNING and not trained:
            # It had not joined yet.
            return
        lost = [stage for stage in range(self.book.stages) if self._stage_is_empty(stage)]
        if lost and self.phase is not Phase.FORMING:
            said = f" ({reason})" if reason else ""
            self._end(f"every worker of stage {lost[0]} is lost: {cause}{said}")
        elif self.phase is Phase.RUNNING:
            self._fruitless = 0
            self._regroup(cause, harmed=harmed)
            self.recovery.reason = reason
        else:
            self.recovery.reason = self.recovery.reason or reason
            self.recovery.causes.append(cause)
            if harmed is not None and self.recovery.harmed is None:
                self.recovery.harmed = harmed
            # Whoever has reported may have been counted on; everybody says again where it stands.
            self._gather(self.number + 1)

    # What the coordinator wants itself.

    def stop_at_boundary(self, why: str) -> None:
        """Have everybody stop between two steps, for a change."""
        if self.phase is not Phase.RUNNING:
            return
        if why not in self._wanted:
            self._wanted.append(why)
        if self._hold is None:
            self._tries = 0
            self._ask_to_hold(self.rows.next + 2)

    def move(self, worker: Worker, place: Worker) -> None:
        """At the next change a worker leaves its stage and takes a lost one's place."""
        self._moves[worker] = place
        self.stop_at_boundary(f"{name_of(worker)} moves to {name_of(place)}")

    def add_plan(self) -> None:
        """A plan has been made that may fit better."""
        if self.phase in (Phase.FORMING, Phase.GATHERING):
            self._go_if_all_are_here()
        elif self.phase is Phase.RUNNING and self.assignment is not None and not self.assignment.is_exact:
            self.stop_at_boundary("a plan for these losses")

    def no_plan(self, error: str) -> None:
        """Planning has failed; what there is has to do."""
        self.can_wait_for_plan = False
        if self.phase in (Phase.FORMING, Phase.GATHERING):
            live = [*self.roster.whole(), *self.expected]
            if self.book.assign(live) is None:
                said = f"{error} ({', '.join(self.recovery.causes)})"
                reason = self.recovery.reason
                self._end(f"{said}; {reason}" if reason else said, no_plan=not reason)
            else:
                self._go_if_all_are_here()

    def give_up(self, error: str) -> None:
        """End for a reason from outside."""
        if self.phase is not Phase.ENDED:
            self._end(error)

    # Inside.

    _tries = 0
    _left_before = False
    _has_asked_for_rows = False
    _newest = 0

    def _request_tries(self) -> int:
        self._tries += 1
        return self._tries

    def _say_where_to_stop(self, member: Member) -> None:
        """Again; one that has stopped there says so again too."""
        step = self.steps if self._hold is None else self._hold
        self._outbox.order(member, Hold(step, self._request))

    def _ask_to_hold(self, step: int) -> None:
        self._request += 1
        self._hold = min(step, self.steps)
        for member in self.roster.active():
            self.roster.entries[member].boundary = None
            self._outbox.order(member, Hold(self._hold, self._request))

    def _regroup(self, *causes: str, harmed: float | None = None, at_boundary: bool = False) -> None:
        now = self._clock()
        self.recovery = Recovery(self.number + 1, list(causes), now, harmed)
        self.recovery.repeated = 0.0 if at_boundary else now - self._row_at
        self._hold, self._wanted = None, []
        self._gather(self.number + 1)

    def _gather(self, number: int) -> None:
        if self.phase is not Phase.FORMING:
            self.phase = Phase.GATHERING
        # Members may have been asked for more by the coordinator before this one.
        number = max(number, self._newest + 1)
        self.number = self.recovery.generation = number
        self._outbox.gathering(number)
        self._asked_at = self._clock()
        for member, entry in self.roster.entries.items():
            entry.is_leaving = entry.is_leaving or entry.is_active
            entry.is_active = entry.has_begun = False
            entry.boundary = None
            self._outbox.order(member, Leave(number))
        self._go_if_all_are_here()

    def _go_if_all_are_here(self) -> None:
        if self.phase not in (Phase.FORMING, Phase.GATHERING):
            return
        if self.expected or not self.roster.have_reported(self.number) or not self.roster.whole():
            return
        self.recovery.left = self._clock()
        moves, self._moves = self._moves, {}
        self._movers, reports = carry_out(moves, self.roster, self._outbox)
        restorable = None if self.restore is None else self.first_step
        try:
            standing = stand(reports, self.book.stages, restorable)
        except CannotAgreeError as error:
            self._end(str(error))
            return
        if isinstance(standing, StageLost):
            self._end(f"nobody alive holds the parameters of stage {standing.stages[0]}")
            return
        learners = self._learners(standing)
        live = tuple(place for place in self.roster.whole() if place not in learners)
        assignment = self.book.assign(live)
        if assignment is None and learners:
            # They are needed at once, so the others have to wait for them.
            learners, live = frozenset(), tuple(self.roster.whole())
            assignment = self.book.assign(live)
        if assignment is None or not (assignment.is_exact or learners):
            self._outbox.plan_wanted(live)
            if self.phase is Phase.FORMING and self.can_wait_for_plan:
                # Nobody has begun yet, so nobody is kept waiting.
                return
        if assignment is not None:
            self._go(standing, assignment, learners)

    def _learners(self, standing: Standing) -> frozenset[Worker]:
        """Workers that get their state while the others train; who has moved is waited for."""
        return frozenset(member.worker for member in standing.donors) - self._movers

    def _go(self, standing: Standing, assignment: Assignment, learners: frozenset[Worker]) -> None:
        self.phase = Phase.RUNNING
        self.assignment = assignment
        self.recovery.step, self.recovery.undone = standing.step, len(standing.undo)
        self.recovery.plan = plan_name(self.book, assignment)
        members = list(self.roster.members())
        working = [member for member in members if member.worker not in learners]
        live, plan = len(assignment.roles), self.recovery.plan
        self._tell(self.rows.begin(standing.step, frozenset(working), live, plan))
        roles = assignment.roles | self.book.idle_roles(assignment, learners)
        self._outbox.generation(self.number, standing.step, assignment)
        self.saving.regroup(standing.step, working)
        spared = one_of_each_stage([member.worker for member in working], self.number)
        start = Start(
            self.number, standing, assignment, roles, learners, self.restore,
            self.steps, self.first_step, self.first_item, frozenset(spared),
        )  # fmt: skip
        for member in members:
            entry = self.roster.entries[member]
            entry.is_active, entry.boundary, entry.has_begun = True, None, False
            entry.is_learning = member.worker in learners
            self._outbox.order(member, go_order(start, member, self.saving.asked_of(member)))

    def _tell(self, rows: list[StepRow]) -> None:
        for row in rows:
            self._fruitless = 0
            self._row_at = self._clock()
            self._standstill.step(row.seconds)
            self._failures.pop(row.step, None)
            self._outbox.row(row)
        if rows:
            self.saving.progress(self.rows.next)

    def _stage_is_empty(self, stage: int) -> bool:
        known = [*self.roster.whole(), *self.expected]
        return not any(place[1] == stage for place in known)

    def _end_when_saved(self) -> None:
        """Everybody waits after the last step; the last checkpoint is waited for."""
        if self.rows.next < self.steps and not self._has_asked_for_rows:
            self._ask_for_rows()
        elif self.saving.is_finished:
            self._tell(self.rows.begin(self.steps, frozenset(), 0, ""))
            self._end(None)
        else:
            self.saving.progress(self.steps)

    def _ask_for_rows(self) -> None:
        """What was said while there was no coordinator is said again, and then that everybody waits."""
        self._has_asked_for_rows = True
        for member in self.roster.active():
            self.roster.entries[member].boundary = None
            self._outbox.order(member, Recall(self.rows.next))
            self._say_where_to_stop(member)

    def _end(self, error: str | None, *, no_plan: bool = False) -> None:
        self.phase = Phase.ENDED
        self._last_order = End(error is None)
        for member in self.roster.entries:
            self._outbox.order(member, self._last_order)
        self._outbox.ended(error, no_plan)
