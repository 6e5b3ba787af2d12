"""The coordinator as a process: sockets, the store, the journal, plans on demand. Standard library only.

Four kinds of clients connect: members (worker processes), their store connections, agents, and observers, who
are told everything. What a client is follows from the first thing it says.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

from recycle_runtime.coordinator.adaptation import Adaptation, AdaptationOptions
from recycle_runtime.coordinator.agents import Agents
from recycle_runtime.coordinator.coordinator import Coordinator, Phase
from recycle_runtime.coordinator.journal import Journal, read, rows_since
from recycle_runtime.coordinator.opening import begin_job
from recycle_runtime.coordinator.plan_files import PlanFiles
from recycle_runtime.coordinator.plans_on_demand import PlansOnDemand
from recycle_runtime.coordinator.reach import Reachability
from recycle_runtime.coordinator.recoveries import Recovery
from recycle_runtime.coordinator.replanning import Replanner
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.node_layout import placement_order
from recycle_runtime.plan.plan_book import Assignment, PlanBook, plan_name
from recycle_runtime.protocol.codec import ProtocolError
from recycle_runtime.protocol.messages import (
    AgentJoin,
    AtBoundary,
    Began,
    BundleData,
    BundleRequest,
    CaughtUp,
    CheckpointFailed,
    CheckpointMissed,
    CheckpointWritten,
    Done,
    End,
    Failed,
    FaultInjected,
    Generation,
    GroupBroken,
    Handlers,
    Heartbeat,
    Hello,
    Holding,
    JobEnded,
    JobEvent,
    Join,
    LeftGroup,
    LossShare,
    Member,
    Message,
    Observe,
    ProcessEnded,
    Reach,
    Recall,
    StepDone,
    StepRow,
    StoreOpen,
    StoreRequest,
    ToObserver,
    ToWorker,
    Trace,
    WorkerTrace,
)
from recycle_runtime.protocol.server import Connection, Server
from recycle_runtime.protocol.store_table import StoreTable
from recycle_runtime.testing.timetable import Timetable

_TURN = 0.05
_RETURN_SECONDS = 5.0
"""How long a coordinator that starts again waits for those who were there."""
_LINGER = 2.0


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a coordinator is told when it starts."""

    bundle: str
    steps: int
    failed: tuple[Worker, ...]
    host: str
    port: int
    token: str
    state: Path
    """A folder for what must outlive the process."""
    timetable: Timetable
    start_seconds: float = 300.0
    """How long the first workers may take to arrive."""
    checkpoint: str | None = None
    """The folder for checkpoints; None: none are taken."""
    every: int = 100
    """Steps from one checkpoint to the next."""
    resume: bool = False
    """Begin with the newest checkpoint."""
    adaptation: AdaptationOptions = field(default_factory=AdaptationOptions)
    silent: float = 3.0
    """Seconds without a word after which a node counts as lost."""


class Service:
    """Connects the coordinator's decisions to sockets, files and processes."""

    def __init__(self, options: JobOptions) -> None:
        self._options = options
        bundle = Bundle.read(options.bundle)
        options.state.mkdir(parents=True, exist_ok=True)
        self._book = PlanBook(bundle)
        self._store = StoreTable()
        self._server = Server(options.host, options.port, options.token, self)
        self._members: dict[Member, Connection] = {}
        self._kinds: dict[Connection, Member | str] = {}
        self._pids: dict[Member, int] = {}
        self._moved_from: dict[tuple[Member, int], Member] = {}
        """For processes that have another place: from member and pid as they were."""
        self._agents = Agents(bundle.tensor, options.silent)
        self._reach = Reachability()
        expected = set(self._book.grid) - set(options.failed)
        self._journal_path = options.state / "journal.jsonl"
        remembered = read(self._journal_path)
        self._journal = Journal(self._journal_path)
        self.coordinator = Coordinator(self._book, bundle.tensor, options.steps, expected, self)
        replanner = Replanner(options.state)
        self._files = PlanFiles(options.bundle, self._book, self._journal)
        self._adaptation = Adaptation(
            self.coordinator, options.adaptation, replanner, self._files, self._tell_event
        )
        self._plans = PlansOnDemand(self.coordinator, self._files, options.state, self._tell)
        self._opening = ""
        if options.checkpoint is not None:
            self._opening = begin_job(
                self.coordinator, bundle, options.checkpoint, options.every, options.resume,
                remembered, self._journal, self.order, self._tell_event,
            )  # fmt: skip
        self._handlers()
        self._deadline = time.monotonic() + options.start_seconds
        self._returning: set[Member] = set()
        if remembered is not None:
            self._files.recall(remembered.bundles, remembered.standby, remembered.made_for, remembered.fitted)
            self.coordinator.remember(remembered)
            assert self.coordinator.assignment is not None
            self._adaptation.generation(self.coordinator.assignment)
            self._returning = {
                Member(place, part) for place in remembered.places for part in range(bundle.tensor)
            }
            self._deadline = time.monotonic() + _RETURN_SECONDS
            options.timetable.resume(remembered.next_row, remembered.places)
        assignment = self._book.assign(expected)
        if remembered is None and (assignment is None or not assignment.is_exact):
            self.plan_wanted(tuple(expected))
        self._timetable = options.timetable
        self._error: str | None = None
        self.has_no_plan = False
        """Whether that is why the job ended."""
        self._over: float | None = None

    @property
    def port(self) -> int:
        return self._server.port

    def run(self) -> str | None:
        """Until the job has ended; the error, if it was one."""
        try:
            while self._over is None or (self._members and time.monotonic() < self._over):
                self._server.turn(_TURN)
            self._agents.dismiss()
            self._server.turn(0)
        finally:
            self._plans.stop()
            self._adaptation.stop()
            self.coordinator.saving.close()
            self._journal.close()
            self._server.close()
        return self._error

    # Called by the server.

    def message(self, connection: Connection, message: Message) -> None:
        known = self._kinds.get(connection)
        if known is None:
            self._strangers.handle(connection, message)
        elif isinstance(known, Member):
            self._from_workers.handle(known, message)
        elif known == "agent":
            self._from_agents.handle(connection, message)
        elif known == "store" and isinstance(message, StoreRequest):
            self._store.request(message, connection.send)
        elif known == "done":
            # What a worker says on its way out is of no use to anybody.
            return
        else:
            raise ProtocolError(f"{type(message).__name__} is not expected of a connection of kind {known}")

    def _handlers(self) -> None:
        """Who handles which message, by who has sent it."""
        first = self._strangers = Handlers[Connection]()
        first.on(Join, self._join)
        first.on(AgentJoin, self._agent_joins)
        first.on(Observe, self._greet)
        first.on(StoreOpen, self._open_store)
        agents = self._from_agents = Handlers[Connection]()
        agents.on(Heartbeat, lambda connection, _: self._agents.heard(connection))
        agents.on(ProcessEnded, self._process_ended)
        job, workers = self.coordinator, Handlers[Member]()
        self._from_workers = workers
        workers.on(LeftGroup, lambda member, said: job.report(member, said.generation, said.report))
        workers.on(LossShare, lambda member, said: job.loss(member, said.step, said.loss))
        workers.on(StepDone, self._step)
        workers.on(Began, self._began)
        workers.on(Holding, lambda member, said: job.holding(said.request, said.step))
        workers.on(AtBoundary, lambda member, said: job.boundary(member, said.step))
        workers.on(CaughtUp, lambda member, said: job.caught_up(member, said.generation))
        workers.on(GroupBroken, lambda member, said: job.broken(member, said.generation, said.why))
        workers.on(Failed, self._failed)
        workers.on(FaultInjected, self._injected)
        for reply in (CheckpointWritten, CheckpointMissed, CheckpointFailed):
            workers.on(reply, job.saving.hear)
        workers.on(BundleRequest, self._send_bundle)
        workers.on(Trace, lambda member, said: self._tell(WorkerTrace(member.worker, said.events)))
        workers.on(Reach, lambda member, said: self._reach.hear(member.worker, said.here, said.unanswered))
        workers.on(Done, self._done)

    def closed(self, connection: Connection) -> None:
        kind = self._kinds.pop(connection, None)
        self._store.forget(connection.send)
        if kind == "agent":
            for member in self._agents.leave(connection):
                # With a node, its workers may go before their agent, who cannot say it any more.
                if self._over is None and member in self._pids and member not in self._members:
                    self.coordinator.lose(member.worker, f"{_name(member)} was on a node that is gone")
        if isinstance(kind, Member) and self._members.get(kind) is connection:
            # Its agent will say what became of it; if it has none any more, nobody can.
            del self._members[kind]
            if self._over is None and not self._agents.has(kind):
                self.coordinator.lose(kind.worker, f"{_name(kind)} hung up")

    def tick(self) -> None:
        if self._over is not None:
            return
        self._plans.take()
        if self._options.adaptation.ahead:
            self._plans.look_ahead()
        self.coordinator.look_at_progress()
        self._adaptation.turn(self._plans.is_awaited)
        self.coordinator.look_at_checkpoints()
        if time.monotonic() > self._deadline:
            self._deadline = float("inf")
            self._too_late()
        self._look_at_network()
        for connection, members in self._agents.silent(self._can_lose):
            # If it was asleep, it has to say again what runs there.
            connection.close()
            for member in members:
                self.coordinator.lose(member.worker, f"{_name(member)} is on a node that fell silent")
        for place in self._timetable.due_to_join(self.coordinator.rows.next):
            if self._agents.start(place, self._timetable.faults(place)):
                self._timetable.started(place)
                self._tell(JobEvent(f"{place[0]}:{place[1]} starts again"))

    # Called by the coordinator.

    def order(self, member: Member, message: ToWorker) -> None:
        if member in self._members:
            self._members[member].send(message)

    def fence(self, member: Member, why: str) -> None:
        self._agents.kill(member)
        connection = self._members.pop(member, None)
        if connection is not None:
            self._kinds.pop(connection, None)
            connection.close()

    def moved(self, member: Member, target: Member) -> None:
        if (connection := self._members.pop(member, None)) is not None:
            self._members[target] = connection
            self._kinds[connection] = target
        if (pid := self._pids.pop(member, None)) is not None:
            self._pids[target] = pid
            self._moved_from[member, pid] = target
        self._agents.rename(member, target)
        self._adaptation.moved(member.worker, target.worker)

    def row(self, row: StepRow) -> None:
        self._journal.write(row=row.step, told=row)
        self._tell(row)
        self._adaptation.row(row)

    def gathering(self, number: int) -> None:
        self._store.begin(number)

    def generation(self, number: int, step: int, assignment: Assignment) -> None:
        self._store.begin(number)
        self._adaptation.generation(assignment)
        places = sorted(assignment.roles)
        plan = [assignment.bundle, assignment.plan, assignment.standbys, int(assignment.on_purpose)]
        roles = [assignment.roles[place] for place in places]
        self._journal.write(generation=number, step=step, places=places, plan=plan, roles=roles)
        self._tell(
            Generation(
                number=number,
                step=step,
                plan=plan_name(self._book, assignment),
                workers=tuple(places),
                standbys=assignment.standbys,
                period=assignment.period,
            )
        )

    def recovered(self, recovery: Recovery) -> None:
        self._deadline = float("inf")
        if self.coordinator.first_step:
            self._journal.write(restored=True)
        self._tell(recovery.told())
        self._adaptation.recovered(recovery)

    def plan_wanted(self, live: tuple[Worker, ...]) -> None:
        self._plans.want(live)

    def ended(self, error: str | None, no_plan: bool) -> None:
        """Members save what they should; agents end when all of them have."""
        self._error = error
        self.has_no_plan = no_plan
        self._over = time.monotonic() + (30.0 if error is None else _LINGER)
        self.coordinator.saving.close()
        self._tell(self._last_words())

    # Inside.

    was_observed = False
    """Whether somebody else tells the user."""

    def _last_words(self) -> JobEnded:
        return JobEnded(self._error, self.has_no_plan, self.coordinator.saving.newest)

    def _agent_joins(self, connection: Connection, message: AgentJoin) -> None:
        self._kinds[connection] = "agent"
        if (before := self._agents.arrive(connection, message)) is not None:
            before.close()
        self._start_processes(is_new=not message.running)

    def _open_store(self, connection: Connection, message: StoreOpen) -> None:
        self._kinds[connection] = "store"

    def _join(self, connection: Connection, message: Join) -> None:
        member, pid = message.member, message.pid
        if member.worker not in self._book.grid or member.tp_rank >= self._book.bundles[0].tensor:
            raise ProtocolError(f"the job has no worker {_name(member)} with a rank {member.tp_rank}")
        if member in self.coordinator.roster and self._pids.get(member) == pid:
            # The same process, whose connection broke.
            if (old := self._members.pop(member, None)) is not None:
                self._kinds.pop(old, None)
                old.close()
            self._accept(connection, member)
            connection.send(Recall(self.coordinator.rows.next))
            self.coordinator.reconnect(member, message.generation, message.is_training)
            return
        if member in self._returning:
            # One that never heard of the last generation is none of those who train in it.
            is_training = message.is_training and message.generation == self.coordinator.number
            self._pids[member] = pid
            self._accept(connection, member)
            connection.send(Recall(self.coordinator.rows.next))
            self.coordinator.rejoin(member, is_training=is_training, asked=message.asked)
            self._returned(member)
            return
        if member in self.coordinator.roster or self._over is not None:
            connection.send(End(ok=False))
            connection.close()
            return
        self._pids[member] = pid
        self._accept(connection, member)
        self.coordinator.join(member, has_trained=message.generation > 0, asked=message.asked)

    def _returned(self, member: Member) -> None:
        """It is back, or known to be lost."""
        self._returning.discard(member)
        if not self._returning:
            self._deadline = float("inf")
            self.coordinator.all_are_back()

    def _accept(self, connection: Connection, member: Member) -> None:
        self._kinds[connection] = member
        self._members[member] = connection

    def _step(self, member: Member, message: StepDone) -> None:
        self._adaptation.measured(member, message.times)
        self.coordinator.step(member, message.step, message.loss, message.seconds)

    def _began(self, member: Member, message: Began) -> None:
        self._adaptation.began(member, message.state_bytes, message.copied)
        self.coordinator.began(member, message.generation)

    def _injected(self, member: Member, message: FaultInjected) -> None:
        """It does now what it was told to do to itself."""
        self._timetable.injected(member.worker, message.fault)
        self._tell(JobEvent(f"{message.fault.kind} of {_name(member)}", fault=message.fault))

    def _failed(self, member: Member, message: Failed) -> None:
        why = message.why
        self._tell_event(f"{_name(member)} failed: {why.partition(chr(10))[0]}")
        self.coordinator.failed(
            member, message.step, why, is_injected=message.is_injected, is_hopeless=message.is_hopeless
        )

    def _done(self, member: Member, message: Done) -> None:
        """It has saved what it should and leaves."""
        connection = self._members.pop(member, None)
        if connection is not None:
            self._kinds[connection] = "done"

    def _process_ended(self, connection: Connection, message: ProcessEnded) -> None:
        self._agents.heard(connection)
        member, pid = message.member, message.pid
        while (member, pid) in self._moved_from:
            # It has moved, and its agent had not heard of that yet.
            member = self._moved_from.pop((member, pid))
        if self._pids.get(member) == pid and member in self._members:
            self._members[member].drain()
        if not self._is_loss(connection, member, pid):
            return
        self._pids.pop(member, None)
        known = self._members.pop(member, None)
        if known is not None:
            self._kinds.pop(known, None)
            known.close()
        harmed = message.fault_at / 1e9 if message.fault_at else None
        if self._over is None:
            self.coordinator.lose(member.worker, f"{self._called(member)} {message.how}", harmed)
        if member in self._returning:
            self._returned(member)

    def _is_loss(self, connection: Connection, member: Member, pid: int) -> bool:
        """Whether the end of this process is the end of a member, told for the first time."""
        was_watched = self._agents.gone(connection, member)
        if member in self._pids:
            # Otherwise a second process for a place that is taken.
            return self._pids[member] == pid
        return was_watched or (member in self._returning and not self._agents.has(member))

    def _greet(self, connection: Connection, message: Observe) -> None:
        """Tell an observer what it has missed."""
        self._kinds[connection] = "observer"
        following = self.coordinator.rows.next
        connection.send(Hello(self._options.steps, following))
        self.was_observed = True
        if self._opening:
            connection.send(JobEvent(self._opening))
            self._opening = ""
        if message.next is not None:
            for row in rows_since(self._journal_path, message.next):
                connection.send(row)
        if self._over is not None:
            connection.send(self._last_words())

    def _start_processes(self, *, is_new: bool) -> None:
        """Those expected, or, on a new node, those that have failed."""
        wanted = set(self.coordinator.expected)
        if is_new and self.coordinator.phase in (Phase.RUNNING, Phase.GATHERING):
            wanted = set(self._book.grid) - set(self.coordinator.roster.whole())
        for place in placement_order(wanted):
            self._agents.start(place, self._timetable.faults(place))

    def _send_bundle(self, member: Member, message: BundleRequest) -> None:
        if message.number >= len(self._files.paths):
            raise ProtocolError(f"there are no plans with the number {message.number}")
        data = self._files.paths[message.number].read_bytes()
        self.order(member, BundleData(message.number, data))

    def _called(self, member: Member) -> str:
        name = _name(member)
        return name if self._book.bundles[0].tensor == 1 else f"part {member.tp_rank} of worker {name}"

    def _too_late(self) -> None:
        if self._returning:
            for member in sorted(self._returning):
                self.coordinator.lose(member.worker, f"{_name(member)} did not come back")
            self._returning.clear()
            self.coordinator.all_are_back()
        elif self.coordinator.phase is Phase.FORMING:
            missing = ", ".join(f"{p}:{s}" for p, s in sorted(self.coordinator.expected))
            self.coordinator.give_up(f"these workers have not arrived: {missing}")

    def _look_at_network(self) -> None:
        verdict = self._reach.decide(self.coordinator.roster.whole(), self._can_lose)
        if verdict is None:
            return
        for place, why in verdict.lost:
            self._agents.shun(Member(place, 0))
            self.coordinator.lose(place, why)
        if verdict.error is not None:
            self.coordinator.give_up(verdict.error)

    def _can_lose(self, places: set[Worker]) -> bool:
        """Whether every stage has a worker left without these."""
        left = {place[1] for place in self.coordinator.roster.whole() if place not in places}
        return len(left) == self._book.stages

    def _tell_event(self, words: str) -> None:
        self._tell(JobEvent(words))

    def _tell(self, message: ToObserver) -> None:
        for connection, kind in list(self._kinds.items()):
            if kind == "observer":
                connection.send(message)


def _name(member: Member) -> str:
    return f"{member.worker[0]}:{member.worker[1]}"
