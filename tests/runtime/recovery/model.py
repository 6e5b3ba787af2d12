"""Members of a job as little state machines around a job's real state machine: time is a list of choices.

Messages in both directions stay in order, and take as long as chance wants. A member that trains can finish a
step only when everybody in its generation has begun it, as with real sums. In a job in layers, a member knows
which layers it holds, and under a cut that asks for others it must have been sent them.
"""

import random
from collections import deque
from typing import Any

from recycle_runtime.coordinator.events import (
    AllReturned,
    BeginGeneration,
    EndJob,
    EndMove,
    Event,
    Fence,
    Joined,
    Note,
    Order,
    PlanMade,
    Reconnected,
    RecutWanted,
    Returned,
    Said,
    Send,
    TellRow,
    WantPlan,
    WorkerFailed,
)
from recycle_runtime.coordinator.journal import JournalLine, Lines
from recycle_runtime.coordinator.last_generation import Remembered, RunningPlan
from recycle_runtime.coordinator.layer_move import LayerMove
from recycle_runtime.coordinator.state_machine import StateMachine
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.plan_book import PlanBook
from recycle_runtime.plan.recut import HoldersGoneError, layout_text, least_bytes, stage_ranges
from recycle_runtime.protocol.messages.generations import (
    AtBoundary,
    Began,
    CaughtUp,
    Copied,
    End,
    Go,
    GroupBroken,
    HeldState,
    Hold,
    Holding,
    Join,
    Leave,
    LeftGroup,
)
from recycle_runtime.protocol.messages.layer_moves import (
    DropLayers,
    LayersArrived,
    LayersLost,
    LayersToMove,
    MoveLayers,
)
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.steps import LossShare, Recall, StepDone, StepRow
from recycle_runtime.protocol.messages.wire import ToWorker
from tests.runtime.recovery.plans_for_tests import fake_bundle, fewest

Spoken = (
    LeftGroup
    | LossShare
    | StepDone
    | Began
    | Holding
    | AtBoundary
    | CaughtUp
    | GroupBroken
    | LayersArrived
    | LayersLost
)
"""What the processes of this model say once they have joined."""


class Process:
    """A worker process: its line to the coordinator, and what its main thread does."""

    def __init__(self, world: "World", member: Member) -> None:
        self.world, self.member = world, member
        self.is_connected = True
        self.incoming: deque[ToWorker] = deque()
        self.outgoing: deque[Join | Spoken] = deque()
        self.orders: deque[ToWorker] = deque()
        self.made: list[LossShare | StepDone] = []
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
        self.donor: Worker | None = None
        """Who gives it that."""
        self.made_steps = 0
        """Up to now, whether or not it has a state."""
        self.layers: range | None = None
        """That it holds; None for those it was built with."""
        self.layer_order: MoveLayers | DropLayers | None = None
        self.move = 0
        """The move that it takes part in, by its number; 0 if in none."""
        self.takes: tuple[LayersToMove, ...] = ()
        self.taken: int | None = None
        """Steps that the layers have seen that it takes, once they are there."""
        self.say(self._hello())

    def say(self, message: Join | Spoken) -> None:
        if isinstance(message, LossShare | StepDone):
            self.made.append(message)
        if self.is_connected:
            self.outgoing.append(message)

    def hear(self) -> None:
        """The listening thread's reaction to one message."""
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
            case MoveLayers() | DropLayers():
                self.layer_order = message
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
        if self.is_joining and self._is_given() and self.world.chance.random() < 0.1:
            self.is_joining, self.applied = False, self.made_steps
            self.say(CaughtUp(self.generation))
        self._move_layers(self.generation)
        if self.step >= self.hold_at:
            self.is_waiting = True
            if self.taken is not None:
                self.taken = self.step
            self.say(AtBoundary(self.step))
        else:
            self.is_in_step = True
            self.say(LossShare(self.step, 1.0))
        return True

    def _is_given(self) -> bool:
        """True if its donor is there."""
        donor = None if self.donor is None else self.world.processes.get(self.donor)
        return donor is not None and donor.is_training and donor.generation == self.generation

    def _move_layers(self, generation: int) -> None:
        """Between two steps: begin or end, or see that the layers have arrived."""
        order, self.layer_order = self.layer_order, None
        if order is not None and order.generation == generation:
            self.taken = None
            self.takes, self.move = (order.takes, order.move) if isinstance(order, MoveLayers) else ((), 0)
        elif self.takes and self.taken is None and self.world.chance.random() < 0.3:
            self._take_layers(generation)

    def _take_layers(self, generation: int) -> None:
        """They arrive once the donors take part in the same move, and never if one is in the next."""
        donors = [self.world.processes.get(taken.worker) for taken in self.takes]
        moves = [donor.move for donor in donors if donor is not None and donor.generation == generation]
        if moves == [self.move] * len(donors):
            self.taken = self.made_steps
            self.say(LayersArrived(generation, self.move, Copied(1, 1.0)))
        elif any(move > self.move for move in moves):
            self.takes = ()
            self.say(LayersLost(generation, self.move, "the donor sends no more"))

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
        self._move_layers(self.asked)
        if not self.orders:
            return False
        order = self.orders.popleft()
        match order:
            case Leave(generation):
                self._report(generation)
            case Go() if order.generation >= self.asked:
                self._begin(order)
            case Hold(step) if self.taken is not None:
                # It waits outside, for the layers of the next cut.
                self.taken = step
                self.say(AtBoundary(step))
            case End(ok):
                self.world.dismissed[self.member] = ok
            case _:
                pass
        return True

    def _begin(self, order: Go) -> None:
        step = order.step
        self.generation = order.generation
        self._change_cut(order)
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
        self.made_steps, self.donor, self.is_joining = step, order.donor, order.donor is not None
        assert self.is_joining or self.applied == step, f"{self.member} has {self.applied} steps, not {step}"
        self.is_fresh = False
        self.made = [row for row in self.made if row.step < step]
        self.step, self.is_training, self.is_waiting, self.is_in_step = step, True, False, False
        self.world.begun.setdefault(self.generation, {})[self.member] = step
        self.say(Began(self.generation, 0, None))

    def _change_cut(self, order: Go) -> None:
        """Hold the layers of its role: of a donor, as built, or made of what is here."""
        cut = self.world.book.bundles[order.bundle].cut
        wanted = range(*stage_ranges(cut)[order.role[1]]) if cut else None
        has_donor = order.copy_from is not None or order.donor is not None
        if (
            wanted is not None
            and not has_donor
            and order.step > 0
            and (self.is_fresh or wanted != self.layers)
        ):
            here = set() if self.is_fresh or self.layers is None else set(self.layers)
            if self.taken == order.step:
                here |= {layer for taken in self.takes for layer in range(taken.first, taken.last)}
            assert here >= set(wanted), f"{self.member} lacks layers of {wanted}"
            if self.is_fresh:
                self.applied = order.step
        self.layers, self.takes, self.taken, self.move = wanted, (), None, 0

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
            if self.taken is not None and self.world.chance.random() < 0.5:
                self.taken = self.made_steps
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
        self.say(LeftGroup(generation, HeldState(self.applied, self.is_fresh, layers_applied=self.taken)))


class World:
    """Processes that come and go, and the coordinator that they talk to."""

    def __init__(
        self, seed: int, stages: int, pipelines: int, steps: int, bundle: Bundle | None = None
    ) -> None:
        """`bundle`: that of a job in layers."""
        self.chance = random.Random(seed)
        self.steps = steps
        self.book = PlanBook(bundle or fake_bundle(stages, pipelines, [[], fewest(stages, pipelines)]))
        self.recuts = 0
        self.given_up = 0
        self.running: dict[int, tuple[RunningPlan, dict[Worker, Worker], dict[Worker, Worker]]] = {}
        self.moves_written: list[dict[str, str | None]] = []
        """Lines of the journal about layers that travel."""
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
        """True if its sockets of that generation are closed."""
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
        """True if it has not begun a step."""
        process = self.processes[member.worker]
        return process.generation == generation and process.step == step and not process.is_in_step

    def _new_coordinator(self) -> StateMachine:
        return StateMachine(self.book, 1, self.steps, set(self.book.grid), now=1.0)

    def happen(self, *events: Event) -> None:
        """As the service does: handle them in turn, and carry out what is ordered."""
        for event in events:
            self._carry_out(self.coordinator.handle(event, now=1.0))

    def _carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Send(member, message):
                    self.order(member, message)
                case Fence():
                    self._fence(order)
                case TellRow(row):
                    self.rows.append(row)
                case BeginGeneration() | Note() | EndMove():
                    self._write_down(order)
                case WantPlan(live):
                    self.wanted_plans.append(live)
                case EndJob():
                    self._end(order)
                case _:
                    pass

    def _fence(self, order: Fence) -> None:
        process = self.processes.pop(order.member.worker, None)
        assert process is None, f"{order.member} lives, and is killed: {order.why}"

    def _end(self, order: EndJob) -> None:
        assert not self.is_over, "it has ended twice"
        self.is_over, self.error = True, order.error

    def _write_down(self, order: BeginGeneration | Note | EndMove) -> None:
        """Write down the facts that another coordinator has to know."""
        match order:
            case BeginGeneration(number, _, assignment, cells, joiners):
                self.generations.append(number)
                self.written[number] = tuple(sorted(cells))
                roles = {worker: assignment.roles[cell] for worker, cell in cells.items()}
                plan = RunningPlan(assignment.bundle, assignment.plan, roles, assignment.standbys, False)
                self.running[number] = plan, dict(cells), dict(joiners)
            case Note(fields):
                self.moves_written += [{"move": fields["move"]}] if "move" in fields else []
            case EndMove(why):
                self.recuts += why is None
                self.given_up += why is not None

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
            plan, cells, joiners = self.running[number]
            state = Remembered(number, 0, places, plan=plan, cells=cells, joiners=joiners)
            fields = [*self.moves_written, *([{"row": len(self.rows) - 1}] if self.rows else [])]
            lines = (JournalLine(line, dict(each)) for line, each in enumerate(fields, 1))
            self.coordinator.remember(state, Lines("journal", tuple(lines)))
            self.moves_written.append({"move": None})
            self.returning = {Member(place, 0) for place in (*places, *joiners)}

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
        if member in self.returning:
            is_training = message.is_training and generation == coordinator.number
            self.happen(Returned(member, is_training, message.asked))
            self._returned(member)
        elif member in coordinator.roster:
            self.happen(Reconnected(member, generation, message.is_training, message.asked))
        else:
            self.happen(Joined(member, generation > 0, message.asked))

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
        book = self.coordinator.book
        failed = [worker for worker in book.grid if worker not in live]
        self.book.add(fake_bundle(book.stages, book.pipelines, [failed], book.cut))
        self.happen(PlanMade())

    def want_recut(self) -> None:
        """To any layout for as many workers as there are, or fewer."""
        coordinator = self.coordinator
        live = coordinator.roster.whole()
        layouts = [(book, counts) for book in self.book.family for counts, _ in book.layouts()]
        fitting = [(book, counts) for book, counts in layouts if sum(counts) <= len(live) and min(counts) > 1]
        if fitting:
            book, counts = self.chance.choice(fitting)
            try:
                recut = least_bytes(coordinator.cells.held(live), book.cut, counts, [1] * sum(book.cut))
            except HoldersGoneError:
                return
            self.happen(RecutWanted(LayerMove(book, recut, layout_text(book.cut, counts), 1.0)))

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
        if len(self.book.family) > 1 and self.coordinator.is_settled:
            found.append(self.want_recut)
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
