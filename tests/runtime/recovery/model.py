"""Members of a job as little state machines around a job's real state machine: time is a list of choices.

Messages in both directions stay in order, and take as long as chance wants. A member that trains can finish a
step only when everybody in its generation has begun it, as with real sums.
"""

import random
from collections import deque
from typing import Any

from recycle_runtime.coordinator.events import (
    AllReturned,
    BeginGeneration,
    EndJob,
    Event,
    Fence,
    Joined,
    PlanMade,
    Reconnected,
    Returned,
    Said,
    Send,
    TellRow,
    WantPlan,
    WorkerFailed,
)
from recycle_runtime.coordinator.journal import Remembered
from recycle_runtime.coordinator.state_machine import StateMachine
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.plan_book import PlanBook
from recycle_runtime.protocol.messages import (
    AtBoundary,
    Began,
    CaughtUp,
    End,
    Go,
    GroupBroken,
    Hold,
    Holding,
    Join,
    Leave,
    LeftGroup,
    LossShare,
    Member,
    Recall,
    Report,
    StepDone,
    StepRow,
    ToWorker,
)
from tests.runtime.recovery.plans_for_tests import fake_bundle, fewest

Spoken = LeftGroup | LossShare | StepDone | Began | Holding | AtBoundary | CaughtUp | GroupBroken
"""What the processes of this model say once they have joined."""


class Process:
    """A worker process: its line to the coordinator, and what its main thread does."""

    def __init__(self, world: "World", member: Member) -> None:
        self.world, self.member = world, member
        self.is_connected = True
        self.incoming: deque[ToWorker] = deque()
        self.outgoing: deque[Join | Spoken] = deque()
        self.orders: deque[ToWorker] = deque()
        self.made: list[StepDone] = []
        self.asked = self.generation = self.step = 0
        self.applied: int | None = 0
        self.is_fresh = True
        self.hold_at = 0
        self.is_training = False
        self.is_waiting = False
        """At a boundary."""
        self.is_in_step = False
        self.is_joining = False
        """It makes steps with the others, and has no state to apply them to yet."""
        self.made_steps = 0
        """Up to now, whether or not it has a state."""
        self.say(self._hello())

    def say(self, message: Join | Spoken) -> None:
        if isinstance(message, StepDone):
            self.made.append(message)
        if self.is_connected:
            self.outgoing.append(message)

    def hear(self) -> None:
        """What the listening thread does with one message."""
        message = self.incoming.popleft()
        match message:
            case Hold(step, request):
                self.hold_at = step
                self.say(Holding(request, self.step))
            case Recall(step):
                for row in [row for row in self.made if row.step >= step]:
                    if self.is_connected:
                        self.outgoing.append(row)
                return
            case Go():
                self.hold_at = message.until
            case Leave(generation):
                self.asked = max(self.asked, generation)
            case _:
                pass
        self.orders.append(message)

    def act(self) -> bool:
        """One move of the main thread; False if it has to wait."""
        if not self.is_training:
            return self._obey()
        if self.asked > self.generation:
            self._stop_training()
            return True
        if self.is_in_step:
            return self._finish_step()
        if self.is_waiting:
            return self._wait_at_boundary()
        if self.is_joining and self.world.chance.random() < 0.1:
            self.is_joining, self.applied = False, self.made_steps
            self.say(CaughtUp(self.generation))
        if self.step >= self.hold_at:
            self.is_waiting = True
            self.say(AtBoundary(self.step))
        else:
            self.is_in_step = True
            self.say(LossShare(self.step, 1.0))
        return True

    def break_connection(self) -> None:
        """Whatever is on its way is dropped."""
        self.incoming.clear()
        self.outgoing.clear()
        self.is_connected = False

    def connect(self) -> None:
        self.is_connected = True
        self.say(self._hello())

    def _hello(self) -> Join:
        return Join(self.member, 1, self.generation, self.asked, self.is_training)

    def _obey(self) -> bool:
        if not self.orders:
            return False
        order = self.orders.popleft()
        match order:
            case Leave(generation):
                self._report(generation)
            case Go() if order.generation >= self.asked:
                self._begin(order)
            case End(ok):
                self.world.dismissed[self.member] = ok
            case _:
                pass
        return True

    def _begin(self, order: Go) -> None:
        step = order.step
        self.generation = order.generation
        if order.copy_from is not None:
            if self.world.chance.random() < 0.2:
                # Broken off while the state was on its way.
                self.applied = None
                self.is_fresh = False
                self.say(GroupBroken(self.generation, "broken"))
                return
            self.applied = step
        elif order.donor is not None:
            self.applied = None
        elif self.applied == step + 1:
            self.applied = step
        self.made_steps, self.is_joining = step, order.donor is not None
        assert self.is_joining or self.applied == step, f"{self.member} has {self.applied} steps, not {step}"
        self.is_fresh = False
        self.made = [row for row in self.made if row.step < step]
        self.step, self.is_training, self.is_waiting, self.is_in_step = step, True, False, False
        self.world.begun.setdefault(self.generation, {})[self.member] = step
        self.say(Began(self.generation, 0, None))

    def _finish_step(self) -> bool:
        group = self.world.groups[self.generation]
        if any(self.world.has_left(member, self.generation) for member in group):
            self._stop_training()
            self.say(GroupBroken(self.generation, "broken"))
            return True
        if self.made_steps == self.step:
            begun = self.world.begun.get(self.generation, {})
            if any(begun.get(member, -1) < self.step for member in group):
                return False
            if any(self.world.is_before(member, self.generation, self.step) for member in group):
                return False
            self.made_steps += 1
            if not self.is_joining:
                self.applied = self.made_steps
            return True
        self._tell_step()
        self.is_in_step = False
        self.step += 1
        self.world.begun[self.generation][self.member] = self.step
        return True

    def _tell_step(self) -> None:
        self.say(StepDone(self.step, 1.0, 0.0, 0, {}))

    def _wait_at_boundary(self) -> bool:
        if not self.orders:
            return False
        order = self.orders.popleft()
        if isinstance(order, End):
            self.world.dismissed[self.member] = order.ok
            self.is_training = False
        elif isinstance(order, Leave):
            self._stop_training()
            self._report(order.generation)
        elif self.hold_at > self.step:
            self.is_waiting = False
        else:
            self.say(AtBoundary(self.step))
        return True

    def _stop_training(self) -> None:
        if self.is_in_step and self.made_steps == self.step + 1:
            self._tell_step()
        self.is_joining = False
        self.is_training = self.is_waiting = self.is_in_step = False

    def _report(self, generation: int) -> None:
        self.say(LeftGroup(generation, Report(self.applied, self.is_fresh)))


class World:
    """Processes that come and go, and the coordinator that they talk to."""

    def __init__(self, seed: int, stages: int, pipelines: int, steps: int) -> None:
        self.chance = random.Random(seed)
        self.steps = steps
        self.book = PlanBook(fake_bundle(stages, pipelines, [[], fewest(stages, pipelines)]))
        self.rows: list[StepRow] = []
        self.generations: list[int] = []
        self.written: dict[int, tuple[Worker, ...]] = {}
        """Who works in a generation, as the journal has it."""
        self.groups: dict[int, list[Member]] = {}
        """Who has been sent into it; joiners are there too."""
        self.begun: dict[int, dict[Member, int]] = {}
        """In every generation, who has begun it, and the step each is in or before."""
        self.dismissed: dict[Member, bool] = {}
        self.error: str | None = None
        self.is_over = False
        self.wanted_plans: list[tuple[Worker, ...]] = []
        self.failures: list[Worker] = []
        """Not told to the coordinator yet."""
        self.processes: dict[Worker, Process] = {}
        self.returning: set[Member] = set()
        """Whom a new coordinator waits for."""
        self.coordinator = self._new_coordinator()
        for place in self.book.grid:
            self.start(place)

    # What members see of each other.

    def has_left(self, member: Member, generation: int) -> bool:
        """Whether its sockets of that generation are closed."""
        process = self.processes.get(member.worker)
        if process is None:
            return True
        if process.generation > generation:
            return True
        return (
            process.generation == generation
            and not process.is_training
            and member in self.begun.get(generation, {})
        )

    def is_before(self, member: Member, generation: int, step: int) -> bool:
        """Whether it has not begun a step."""
        process = self.processes[member.worker]
        return process.generation == generation and process.step == step and not process.is_in_step

    def _new_coordinator(self) -> StateMachine:
        return StateMachine(self.book, 1, self.steps, set(self.book.grid), now=1.0)

    def happen(self, *events: Event) -> None:
        """As the service does: handle them in turn, and carry out what is ordered."""
        for event in events:
            for order in self.coordinator.handle(event, now=1.0):
                match order:
                    case Send(member, message):
                        self.order(member, message)
                    case Fence(member, why):
                        process = self.processes.pop(member.worker, None)
                        assert process is None, f"{member} lives, and is killed: {why}"
                    case TellRow(row):
                        self.rows.append(row)
                    case BeginGeneration(number, _, assignment):
                        self.generations.append(number)
                        self.written[number] = tuple(sorted(assignment.roles))
                    case WantPlan(live):
                        self.wanted_plans.append(live)
                    case EndJob(error):
                        assert not self.is_over, "it has ended twice"
                        self.is_over, self.error = True, error
                    case _:
                        pass

    # What can happen.

    def restart(self) -> None:
        """The coordinator dies, and another reads what it has written down."""
        self.coordinator = self._new_coordinator()
        self.wanted_plans.clear()
        for process in self.processes.values():
            process.break_connection()
        if self.generations:
            number = self.generations[-1]
            places = self.written[number]
            self.coordinator.remember(Remembered(number, 0, places, len(self.rows), ()))
            self.returning = {Member(place, 0) for place in places}

    def start(self, place: Worker) -> None:
        self.processes[place] = Process(self, Member(place, 0))

    def kill(self, place: Worker) -> None:
        process = self.processes.pop(place)
        # What it has said arrives, for the coordinator reads it before it believes the agent.
        while process.is_connected and process.outgoing:
            self.deliver(process)
        self.failures.append(place)

    def deliver(self, process: Process) -> None:
        """One message to the coordinator."""
        message, member = process.outgoing.popleft(), process.member
        if isinstance(message, Join):
            self._join(member, message)
        else:
            self.happen(Said(member, message))

    def _join(self, member: Member, message: Join) -> None:
        """As the service does."""
        coordinator, generation = self.coordinator, message.generation
        recall = Recall(coordinator.rows.next)
        if member in self.returning:
            is_training = message.is_training and generation == coordinator.number
            self.order(member, recall)
            self.happen(Returned(member, is_training, message.asked))
            self._returned(member)
        elif member in coordinator.roster:
            self.order(member, recall)
            self.happen(Reconnected(member, generation, message.is_training))
        else:
            self.happen(Joined(member, has_trained=generation > 0, asked=message.asked))

    def _returned(self, member: Member) -> None:
        self.returning.discard(member)
        if not self.returning:
            self.happen(AllReturned())

    def tell_loss(self) -> None:
        place = self.failures.pop(0)
        self.happen(WorkerFailed(place, "failed"))
        if Member(place, 0) in self.returning:
            self._returned(Member(place, 0))

    def give_up_waiting(self) -> None:
        """For those who will not come back."""
        for member in sorted(self.returning):
            self.happen(WorkerFailed(member.worker, "did not come back"))
        self.returning.clear()
        self.happen(AllReturned())

    def make_plan(self) -> None:
        live = self.wanted_plans.pop(0)
        failed = [worker for worker in self.book.grid if worker not in live]
        self.book.add(fake_bundle(self.book.stages, self.book.pipelines, [failed]))
        self.happen(PlanMade())

    def moves(self) -> list[Any]:
        """Everything that can happen now without a fault."""
        found: list[Any] = []
        for process in self.processes.values():
            if process.outgoing:
                found.append(lambda process=process: self.deliver(process))
            if process.incoming:
                found.append(process.hear)
            if not process.is_connected:
                found.append(process.connect)
            found.append(process.act)
        if self.failures:
            found.append(self.tell_loss)
        elif self.returning and not any(member.worker in self.processes for member in self.returning):
            found.append(self.give_up_waiting)
        if self.wanted_plans:
            found.append(self.make_plan)
        return found

    def run_to_the_end(self, most: int = 20_000) -> None:
        """Without more faults, in any order that is fair."""
        for _ in range(most):
            if self.is_over and not any(process.incoming for process in self.processes.values()):
                return
            self.chance.choice(self.moves())()
        raise AssertionError("it does not end")

    def order(self, member: Member, message: ToWorker) -> None:
        if isinstance(message, Go):
            self.groups.setdefault(message.generation, []).append(member)
        process = self.processes.get(member.worker)
        if process is not None and process.is_connected:
            process.incoming.append(message)
