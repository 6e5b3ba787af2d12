"""A job without processes: members that only count steps, a clock that tests move, and what is told.

Orders are delivered one by one, so that a test may let somebody die between any two of them.
"""

from collections import deque
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.frontend.load import parse_job_text
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.planner.compile import compile_job, plan_failed
from recycle_runtime.coordinator.events import (
    BeginGeneration,
    EndJob,
    EndMove,
    Event,
    Fence,
    FinishRecovery,
    Joined,
    Order,
    PlanMade,
    PlanningFailed,
    Rename,
    Said,
    Send,
    TellRow,
    WantPlan,
    WorkerFailed,
)
from recycle_runtime.coordinator.participant import Asked
from recycle_runtime.coordinator.patience import Patience
from recycle_runtime.coordinator.plans import PlanFiles
from recycle_runtime.coordinator.reconfiguration import Reconfiguration
from recycle_runtime.coordinator.replanning import Replanner
from recycle_runtime.coordinator.state_machine import Phase, StateMachine
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.plan_book import Assignment, PlanBook
from recycle_runtime.protocol.messages.generations import (
    AtBoundary,
    Began,
    CaughtUp,
    Copied,
    Go,
    HeldState,
    Hold,
    Holding,
    LayerExperts,
    Leave,
    LeftGroup,
    Move,
)
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.observers import JobEvent
from recycle_runtime.protocol.messages.steps import StepDone
from recycle_runtime.protocol.messages.wire import ToWorker

HEAVY = """\
job heavy {
  parallel { pipeline = 3  data = 3 }
  batch    { microbatches = 4 }
  profile  {
    forward = [1, 3, 3]  backward_input = [1, 3, 3]  backward_weight = [1, 3, 3]
    optimizer = 1
  }
  tolerate { failures = 3 }
}
"""
"""A loss on stage 0 costs nothing, so plans have it there."""
SLOT = 0.01
STATE_BYTES = 1_000_000
ORDER_SECONDS = 0.3


@cache
def heavy_bundle() -> Bundle:
    job = parse_job_text(HEAVY, "heavy.job")
    return Bundle.parse(bundle_bytes(source=HEAVY, plans=compile_job(job)))


@cache
def planned(failed: tuple[Worker, ...]) -> Bundle:
    job = parse_job_text(HEAVY, "heavy.job")
    return Bundle.parse(bundle_bytes(source=HEAVY, plans=[plan_failed(job, failure_set(failed))]))


class FakeMember:
    """State of one simulated process."""

    def __init__(self) -> None:
        self.applied: int | None = 0
        self.is_fresh = True
        self.generation = 0
        self.is_training = False
        self.hold = 0
        self.experts: tuple[LayerExperts, ...] = ()


class FakeJob:
    """All of a job but its processes."""

    def __init__(
        self,
        steps: int,
        options: AdaptationOptions,
        replanner: Replanner | None = None,
        failed: tuple[Worker, ...] = (),
        bundle: Bundle | None = None,
        max_skipped: int | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.now = 0.0
        self.events: list[str] = []
        self.book = PlanBook(bundle or heavy_bundle())
        expected = set(self.book.grid) - set(failed)
        asked = Asked(steps, max_skipped=max_skipped)
        self.coordinator = StateMachine(self.book, 1, steps, expected, self.now, asked, patience=patience)
        self.files = PlanFiles("first", self.book, self, Path("nowhere"))
        helper = replanner or Replanner(Path("nowhere"))
        self.can_plan = True
        self.started: set[Worker] = set()
        """Workers that agents start."""
        self.reconfiguration = Reconfiguration(
            self.coordinator, options, helper, self.files, self.started.__contains__
        )
        self.members: dict[Member, FakeMember] = {}
        self.mail: deque[tuple[Member, ToWorker]] = deque()
        self.moves: list[tuple[Worker, Worker]] = []
        self.rows: list[int] = []
        self.wanted: tuple[Worker, ...] | None = None
        self.result: tuple[str | None] | None = None
        self.slow: dict[Worker, float] = {}
        self.stage_factors: Mapping[int, float] = {}
        for place in sorted(expected):
            self.join(place)
        self.deliver()

    def join(self, place: Worker) -> None:
        member = Member(place, 0)
        self.members[member] = FakeMember()
        self.happen(Joined(member))

    def kill(self, place: Worker) -> None:
        self.happen(WorkerFailed(place, f"{place[0]}:{place[1]} was killed", self.now))

    def run(self, steps: int) -> None:
        """So many steps of everybody, if the job lasts as long; the rest of the mail in between."""
        for _ in range(steps):
            self.deliver()
            if self.result is None:
                self.step()
        self.deliver()

    def deliver(self) -> None:
        while self.mail or self.wanted:
            self.deliver_one()

    def deliver_one(self) -> None:
        if self.mail:
            member, order = self.mail.popleft()
            if member in self.members:
                self.now += ORDER_SECONDS
                self.obey(member, self.members[member], order)
        elif self.wanted is not None:
            failed, self.wanted = self.wanted, None
            if not self.can_plan:
                self.happen(
                    PlanningFailed("there is no plan for these failures: recyclec is not installed here")
                )
                return
            self.files.add(Path(str(failed)), planned(failed))
            self.happen(PlanMade())
        self._adapt()

    def step(self) -> None:
        """One for everybody who trains, or has to stop first."""
        assignment = self.coordinator.assignment
        if self.coordinator.phase is not Phase.RUNNING or assignment is None:
            return
        seconds = assignment.period / 1000 * SLOT
        self.now += seconds
        for member, fake in list(self.members.items()):
            if not fake.is_training or fake.applied is None:
                continue
            if fake.applied >= fake.hold:
                self.happen(Said(member, AtBoundary(fake.applied)))
                continue
            fake.applied += 1
            has_loss = self.coordinator.cells.stage(member.worker) in self.coordinator.book.loss_stages
            loss = 0.0 if has_loss else None
            times = self.times(member.worker, assignment)
            done = StepDone(fake.applied - 1, loss, seconds, 0, times)
            self.reconfiguration.hear(member, done)
            self.happen(Said(member, done))
        self._adapt()

    def times(self, place: Worker, assignment: Assignment) -> dict[str, float]:
        slots = dict.fromkeys("FIW", (1, 3, 3)[place[1]])
        entry = self.book.bundles[assignment.bundle].plans[assignment.plan]
        role = assignment.roles.get(place)
        if role is None or role in entry.failed:
            slots = {}
        factor = SLOT * self.slow.get(place, 1.0)
        work = {kind: count * factor * self.stage_factors.get(place[1], 1.0) for kind, count in slots.items()}
        return {**work, "O": factor, "R": 1e-4}

    def obey(self, member: Member, fake: FakeMember, order: ToWorker) -> None:
        match order:
            case Leave(generation):
                fake.is_training, fake.generation = False, generation
                report = HeldState(fake.applied, fake.is_fresh, layers_applied=fake.applied)
                self.happen(Said(member, LeftGroup(generation, report, experts=fake.experts)))
            case Move():
                fake.applied, fake.is_fresh = None, False
            case Go() if order.generation >= fake.generation:
                self._go(member, fake, order)
            case Hold(step, request):
                fake.hold = step
                self.happen(Said(member, Holding(request, fake.applied or 0)))
            case _:
                pass

    def _go(self, member: Member, fake: FakeMember, order: Go) -> None:
        step, copied = order.step, None
        if order.copy_from is not None:
            donor = self.members.get(Member(order.copy_from, 0))
            fake.applied = None
            if donor is None or donor.generation > order.generation:
                # Its group breaks; the order to leave is on its way.
                return
            assert donor.applied in (step, step + 1), "who lends has what is lent"
            copied = Copied(STATE_BYTES, STATE_BYTES / 1e8)
        elif order.donor is None:
            assert fake.applied in (step, step + 1), "who goes on stands where it goes on"
        fake.applied, fake.is_fresh, fake.is_training = step, False, True
        fake.hold = order.until
        began = self.began(member, order, copied)
        self.reconfiguration.hear(member, began)
        self.happen(Said(member, began))
        if order.donor is not None:
            # Its state is there at once.
            self.happen(Said(member, CaughtUp(order.generation)))

    def began(self, member: Member, order: Go, copied: Copied | None) -> Began:
        return Began(order.generation, STATE_BYTES, copied)

    # What the service does.

    def happen(self, *events: Event) -> None:
        for event in events:
            for order in self.coordinator.handle(event, self.now):
                self._carry_out(order)

    def _adapt(self) -> None:
        for wish in self.reconfiguration.decide(self.now, is_planning=self.wanted is not None):
            if isinstance(wish, JobEvent):
                self.events.append(wish.text)
            else:
                self.happen(wish)

    def _carry_out(self, order: Order) -> None:
        match order:
            case Send(member, message):
                self.order(member, message)
            case Fence(member):
                self.members.pop(member, None)
            case Rename(member, target):
                self._rename(member, target)
            case TellRow(row):
                self.rows.append(row.step)
                self.reconfiguration.row(row)
            case BeginGeneration(_, _, assignment, cells):
                self.reconfiguration.generation(assignment, cells)
            case EndMove(why):
                self.reconfiguration.move_ended(why)
            case FinishRecovery(recovery):
                self.reconfiguration.recovered(recovery, self.now)
            case WantPlan(live):
                self.wanted = tuple(sorted(set(self.book.grid) - set(live)))
            case EndJob(error):
                self.result = (error,)
            case _:
                pass

    def order(self, member: Member, message: ToWorker) -> None:
        self.mail.append((member, message))

    def _rename(self, member: Member, target: Member) -> None:
        self.members[target] = self.members.pop(member)
        self.mail = deque((target if to == member else to, order) for to, order in self.mail)
        self.moves.append((member.worker, target.worker))
        self.reconfiguration.moved(member.worker, target.worker)

    def write(self, **fields: Any) -> None:
        """In place of a journal."""
