"""The coordinator as a process: sockets, timers, files and processes around the job's state machine.

Four kinds of clients connect: members (worker processes), their store connections, agents, and observers, who
get all events. What a client is follows from the first thing it says. What happens becomes an event of
the state machine; what that orders is carried out here. Needs no torch.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from recycle_runtime import logs
from recycle_runtime.checkpoint.manifest import origin_of, shape_of
from recycle_runtime.coordinator.agents import Agents
from recycle_runtime.coordinator.attendance import Attendance
from recycle_runtime.coordinator.checkpoint_files import begin_run
from recycle_runtime.coordinator.connections import ClientLine, Connections, Kind
from recycle_runtime.coordinator.events import (
    BeginGathering,
    BeginGeneration,
    EndJob,
    EndMove,
    EndWanted,
    Event,
    Fence,
    FinishRecovery,
    Note,
    Order,
    Rename,
    Said,
    Send,
    Tell,
    TellRow,
    TellSettled,
    TimePassed,
    WantPlan,
)
from recycle_runtime.coordinator.hooks import CoordinatorHooks
from recycle_runtime.coordinator.journal import FILE, JournalError, Lines
from recycle_runtime.coordinator.kept_plans import request_plans
from recycle_runtime.coordinator.last_generation import (
    Remembered,
    check_fits,
    check_job,
    end_written_down,
    remembered,
    written_down,
)
from recycle_runtime.coordinator.neighbour_copies import CompleteCopy, newest_copy, script_state
from recycle_runtime.coordinator.outlives import read_journal
from recycle_runtime.coordinator.outside import Outside
from recycle_runtime.coordinator.participant import Asked
from recycle_runtime.coordinator.patience import AttentiveClock, Patience
from recycle_runtime.coordinator.plans import PlanFiles, PlanGoneError
from recycle_runtime.coordinator.programs import Programs
from recycle_runtime.coordinator.reconfiguration import Reconfiguration
from recycle_runtime.coordinator.relays import RelayedLine, Relays
from recycle_runtime.coordinator.replanning import Replanner
from recycle_runtime.coordinator.state_machine import ENDLESS, StateMachine
from recycle_runtime.coordinator.step_rows import told_since
from recycle_runtime.files import lock_checkpoints, take_folder, unlock_checkpoints
from recycle_runtime.options.run import RunOptions
from recycle_runtime.plan.bundle import digest_of
from recycle_runtime.plan.node_layout import even_share
from recycle_runtime.plan.plan_book import PlanBook, plan_name
from recycle_runtime.plan.worker_ids import worker_text
from recycle_runtime.protocol.access import Token
from recycle_runtime.protocol.codec import ProtocolError
from recycle_runtime.protocol.messages.agents import AgentJoin, Heartbeat, ProcessEnded
from recycle_runtime.protocol.messages.checkpoints import (
    CheckpointPath,
)
from recycle_runtime.protocol.messages.generations import (
    BundleData,
    BundleRequest,
    Done,
    FaultInjected,
    Join,
    Reach,
    Trace,
)
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.observers import (
    Generation,
    Hello,
    JobEnded,
    JobEvent,
    Observe,
    Starting,
    StopJob,
    ToObserver,
    WorkerTrace,
)
from recycle_runtime.protocol.messages.store import StoreOpen, StoreRequest
from recycle_runtime.protocol.messages.wire import FromWorkers, Handlers, Message
from recycle_runtime.protocol.store_table import StoreTable

_LOGGER = logging.getLogger(__name__)
_TURN = 0.05
_LOOK_AHEAD_EVERY = 0.25
_TICK = 0.02
"""Seconds from one look at all workers to the next, at least."""
_AGENTS_SECONDS = 60.0
"""For the agents of a job that had ended before it was started again: they load torch before they ask."""
_LINGER = 2.0
_LINGER_TO_GO_ON = 15.0
"""For all workers to be gone, before the job goes on from a checkpoint."""
_LINGER_AFTER_ALL = 30.0
"""After the end: how long workers may take to leave; if all went well, they may have more to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions(RunOptions):
    """Options of a coordinator: those of the run, and where it finds itself."""

    steps: int = ENDLESS
    host: str
    port: int
    token: Token
    state: Path = Path()
    """A folder for what must outlive the process."""
    restarts_workers: bool = True
    relay: bool = False
    """True if worker processes speak through the agents of their nodes."""
    hooks: CoordinatorHooks = field(default_factory=CoordinatorHooks)
    start_seconds: float = 300.0
    """Seconds that the first workers may take to arrive."""
    is_continued: bool = False
    """True if the job has gone on from its newest checkpoint by itself: all steps may be made then, and what
    is left is to save them."""
    patience: Patience = field(default_factory=Patience)
    takes_over: bool = False
    """True if a coordinator before this one may still hold locks; see `leadership`."""
    is_over: bool = False
    """True if a job in this folder had ended, and its agents had been notified; see `job_over`."""
    is_observed: bool = False
    """True if the process that has started this one wants to hear how the job ends."""


class Service:
    """Turns messages, time and files into events, and orders into messages, files and processes."""

    def __init__(self, options: JobOptions, outside: Outside | None = None) -> None:
        """`outside` is for tests."""
        self._options, self._hooks = options, options.hooks
        outside = outside or Outside()
        self._clock = AttentiveClock(outside.clock)
        now = self._clock.now()
        bundle = outside.read_bundle(options.bundle)
        self._lock = take_folder(options.state, "coordinator", takes_over=options.takes_over)
        self._journal_path = options.state / FILE
        self._job_digest = origin_of(bundle).job
        try:
            lines = read_journal(self._journal_path)
            before = remembered(lines)
            check_job(options.state, before, self._job_digest)
            plans, bundle = request_plans((options.bundle, bundle), options.state, before)
        except JournalError:
            os.close(self._lock)
            raise
        if before is None:
            outside.keep_plans(options.bundle, options.state)
        self._book, self._tensor = PlanBook(bundle), bundle.tensor
        self._journal = outside.journal(self._journal_path)
        copied = newest_copy(lines)
        if options.checkpoint is not None:
            # Two jobs would delete each other's.
            lock_checkpoints(Path(options.checkpoint), takes_over=options.takes_over)
        takes_long = options.resume and options.checkpoint is not None and before is None and copied is None
        with outside.reading() if takes_long else nullcontext():
            begins = begin_run(
                options.checkpoint, bundle, options.steps, before,
                None if copied is None else copied.begins, self._journal, resume=options.resume,
                accepts_changes=options.accepts_changes, may_be_finished=options.is_continued,
            )  # fmt: skip
        share = None if options.nodes is None else even_share(bundle.present, options.nodes)
        self._agents = Agents(bundle.tensor, options.node_timeout, now, share)
        # Nobody comes for vacant cells, as if their workers had failed.
        missing = (*options.failed, *(cell for cell in bundle.vacant if cell not in options.failed))
        expected = set(self._book.grid) - set(missing)
        self._job = StateMachine(
            self._book,
            bundle.tensor,
            options.steps,
            expected,
            now,
            Asked(
                options.steps,
                has_scripts=options.steps >= ENDLESS,
                begins=begins,
                journal=lines,
                script=script_state(begins, options.checkpoint, copied),
                is_under_way=before is not None or copied is not None,
                max_skipped=options.max_skipped,
                shape=shape_of(bundle),
                origin=origin_of(bundle),
                checkpoints=options.checkpoint,
                every=options.checkpoint_every,
                # Workers write there, wherever they are.
                saves=(options.state / "saves").absolute(),
                copies=options.neighbour_copies,
                run=options.max_resumes,
                nodes=self._agents.nodes,
                file_thread=outside.file_thread,
            ),
            options.check_peers,
            options.patience,
        )
        self._opening = begins.words
        """For the first observer."""
        self._store, self._connections = StoreTable(), Connections()
        self._relays = Relays(self.closed)
        self._ticked = self._looked_ahead = float("-inf")
        self._plan_files = PlanFiles(plans, self._book, self._journal, options.state)
        self._reconfiguration = Reconfiguration(
            self._job, options.adaptation, Replanner(options.state), self._plan_files, self._agents.runs
        )
        self._plans = outside.plans(self._plan_files, bundle.job_source, options.state)
        self._events: deque[Event] = deque()
        """That have not been handled yet; not empty only while one is being handled."""
        self._is_handling = False
        self._attendance = Attendance(
            self._job,
            self._tensor,
            self._clock,
            self._connections,
            self._agents,
            Programs(digest_of(bundle), None if before is None else before.setup),
            options.hooks,
            self._happen,
            self._tell,
            self._say_start,
            failed=missing,
            start_seconds=options.start_seconds,
            timeout=options.node_timeout,
            has_relays=options.relay,
            restarts_workers=options.restarts_workers,
            has_recuts=options.adaptation.recut != "off" and len(self._book.family) > 1,
        )
        self._end: JobEnded | None = None
        self.goes_on = False
        """True if the job has ended only to go on from its newest checkpoint, or from a copy in memory."""
        self.goes_on_from: CompleteCopy | None = None
        """That copy."""
        self._closes_at = float("inf")
        self._agents_awaited = 0
        """Number of agents that should be notified of the end before this coordinator leaves."""
        self._stop: Callable[[], str | None] = lambda: None
        self.has_begun = before is not None
        """True if a generation has been ordered."""
        self.was_observed = False
        """True if an observer reports to the user."""
        self._is_ending = False
        self._expect_messages()
        self._order_handlers: dict[type[object], Callable[[Any], None]] = {
            Send: lambda order: self._connections.send(order.member, order.message),
            Fence: self._attendance.fence,
            Rename: self._rename,
            TellRow: self._tell_row,
            TellSettled: lambda order: self._connections.publish(order.settled),
            Note: lambda order: self._journal.write(**order.fields),
            Tell: lambda order: self._tell(order.text),
            BeginGathering: self._begin_gathering,
            BeginGeneration: self._begin_generation,
            EndMove: lambda order: self._reconfiguration.move_ended(order.why),
            FinishRecovery: self._finish_recovery,
            WantPlan: lambda order: self._plans.want(order.live, self._job.book, is_needed=order.is_needed),
            EndJob: self._end_job,
        }
        for participant in self._job.participants:
            for kind, do in participant.does().items():
                self._order_handlers[kind] = partial(self._have_done, do)
        self._server = outside.serve(options.host, options.port, options.token, self)
        if before is None:
            assignment = self._book.assign(expected)
            if assignment is None or not assignment.is_exact:
                self._plans.want(tuple(expected), self._book)
        else:
            self._remember(before, lines)

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def newest_checkpoint(self) -> CheckpointPath | None:
        return self._job.participants.newest_checkpoint

    def run(self, stop: Callable[[], str | None] = lambda: None) -> JobEnded:
        """Until the job has ended; how it did. `stop` says in a word why it should, once it should."""
        self._stop = stop
        try:
            while not self.is_over:
                self._server.turn(_TURN)
            if not self.goes_on:
                self.dismiss()
            self._server.turn(0)
        finally:
            self.close()
        assert self._end is not None
        return self._end

    def dismiss(self) -> None:
        """Agents have nothing more to do."""
        self.flush()
        self._agents.dismiss()

    @property
    def had_ended(self) -> bool:
        """True if the job was over, and everybody had been notified, before this coordinator was started."""
        return self._options.is_over and self._agents_awaited > 0

    @property
    def ended(self) -> JobEnded | None:
        """Outcome of the job; None while it runs."""
        return self._end

    @property
    def job(self) -> StateMachine:
        """To be read."""
        return self._job

    @property
    def standing(self) -> str:
        """State of the job, in a few words."""
        job = self._job
        return f"generation {job.number} is {job.phase.value}, the next step is {job.participants.rows.next}"

    @property
    def is_over(self) -> bool:
        """True if the job has ended, and its workers have left or had time to."""
        if self._end is None:
            return False
        is_left = self._agents.has_processes if self.goes_on else self._connections.has_members
        is_awaited = is_left or self._attendance.awaits_some or self._agents_awaited > self._agents.count
        # One that is started again may come to the end before its observer has found it.
        is_awaited |= self._options.is_observed and not self.was_observed
        return not is_awaited or self._clock.now() >= self._closes_at

    def close(self) -> None:
        """Let go of everything outside this object."""
        self._plans.stop()
        self._reconfiguration.stop()
        for participant in self._job.participants:
            participant.close()
            if self._end is not None:
                participant.sweep()
        self._server.close()
        self.let_go()

    def let_go(self) -> None:
        """Of files: all that a process that is killed does."""
        self._journal.close()
        if self._options.checkpoint is not None:
            unlock_checkpoints(Path(self._options.checkpoint))
        os.close(self._lock)

    def _remember(self, remembered: Remembered, lines: Lines) -> None:
        """Go on as the coordinator before this one."""
        try:
            self._plan_files.recall(lines, 0 if remembered.plan is None else remembered.plan.bundle)
            check_fits(lines, remembered, self._book)
        except PlanGoneError:
            if remembered.ended is None:
                raise
            # Nobody runs it any more.
            remembered = remembered._replace(plan=None, places=self._book.grid, cells={}, joiners={})
        self._job.remember(remembered, lines)
        self._reconfiguration.recall(lines)
        assert self._job.assignment is not None
        cells = {worker: remembered.cells.get(worker, worker) for worker in remembered.places}
        self._reconfiguration.generation(self._job.assignment, cells)
        self._attendance.remember(remembered, lines)
        if remembered.ended is not None:
            # Whoever has not heard of it comes back for it.
            self._end, self._closes_at = remembered.ended, self._attendance.deadline
            self._job.remember_end(self._end.error)
            if self._options.is_over:
                self._await_agents()
        self._hooks.resume(self._job.participants.rows.next, remembered.places)
        logs.note(generation=remembered.generation, step=self._job.participants.rows.next)

    def _await_agents(self) -> None:
        """The job was over for good, and somebody has started it once more: its agents are sent away."""
        self._attendance.await_nobody()
        if self._options.nodes is not None and not self._options.takes_over:
            self._agents_awaited = self._options.nodes
            self._closes_at = self._clock.now() + _AGENTS_SECONDS
        else:
            # Where coordinators share a folder, agents look there.
            self._agents_awaited = 1

    # Events.

    def _happen(self, *events: Event) -> None:
        """Have the state machine handle them in turn, and carry out what it orders."""
        self._events.extend(events)
        if self._is_handling:
            # An order that is being carried out has led to this; it comes after the rest of the orders.
            return
        self._is_handling = True
        try:
            while self._events:
                self._carry_out(self._job.handle(self._events.popleft(), self._clock.now()))
        finally:
            self._is_handling = False

    def _tell(self, text: str) -> None:
        """Observers, and the log."""
        self._publish([JobEvent(text)])

    def _publish(self, wishes: Iterable[Event | JobEvent]) -> None:
        """Publish job events, and feed the other events to the state machine."""
        for wish in wishes:
            if isinstance(wish, JobEvent):
                _LOGGER.info("%s", wish.text)
                self._connections.publish(wish)
            else:
                self._happen(wish)

    # What clients say: the server calls these.

    def message(self, connection: ClientLine, message: Message) -> None:
        match self._connections.kind_of(connection):
            case None:
                self._first.handle(connection, message)
            case Member() as member:
                self._from_workers.handle(member, message)
            case Kind.AGENT:
                self._from_agents.handle(connection, message)
            case Kind.OBSERVER if isinstance(message, StopJob):
                self._end_wanted(message.why)
            case Kind.STORE if isinstance(message, StoreRequest):
                self._store.request(message, connection.send)
            case Kind.DONE:
                # What a worker says on its way out is of no use to anybody.
                pass
            case kind:
                raise ProtocolError(
                    f"{type(message).__name__} is not expected of a connection of {kind.value}"
                )

    def _expect_messages(self) -> None:
        """Register the handlers of messages, by who sends them."""
        first = self._first = Handlers[ClientLine]()
        first.on(Join, self._attendance.join)
        first.on(AgentJoin, self._agent_joins)
        first.on(Observe, self._observe)
        first.on(StoreOpen, lambda connection, _: self._connections.become(connection, Kind.STORE))
        agents = self._from_agents = Handlers[ClientLine]()
        agents.on(Heartbeat, lambda connection, _: self._agents.heard(connection, self._clock.now()))
        agents.on(ProcessEnded, self._attendance.process_ended)
        agents.on(FromWorkers, self._hear_relayed)
        workers = self._from_workers = Handlers[Member]()
        for kind in self._job.messages.kinds:
            workers.on(kind, self._hear)
        workers.on(FaultInjected, self._fault_injected)
        workers.on(BundleRequest, self._bundle_wanted)
        workers.on(Trace, self._trace)
        workers.on(Reach, self._attendance.hear_reach)

    def _hear(self, member: Member, message: Any) -> None:
        """A message for the state machine, or for one of its participants."""
        if isinstance(message, Done):
            self._connections.finish(member)
        message = self._attendance.checked(member, message)
        self._reconfiguration.hear(member, message)
        self._happen(Said(member, message))

    def _fault_injected(self, member: Member, message: FaultInjected) -> None:
        """A process injects a fault into itself now."""
        self._hooks.injected(member.worker, message.fault)
        text = f"injected fault: {message.fault.kind} of {worker_text(member.worker)}"
        self._publish([JobEvent(text, fault=message.fault)])

    def _bundle_wanted(self, member: Member, message: BundleRequest) -> None:
        if message.number >= len(self._plan_files.paths):
            raise ProtocolError(f"there are no plans with the number {message.number}")
        data = self._plan_files.paths[message.number].read_bytes()
        self._connections.send(member, BundleData(message.number, data))

    def _trace(self, member: Member, message: Trace) -> None:
        self._connections.publish(WorkerTrace(member.worker, message.events))

    def _hear_relayed(self, connection: ClientLine, message: FromWorkers) -> None:
        """Handle messages of a node's workers by line; an invalid one closes its own line alone."""
        carrier = self._relays.carrier(connection)
        carrier.is_heard = True
        try:
            for lines, said in message.said.passed:
                for line in filter(None, map(carrier.line, lines)):
                    if said is None:
                        line.end()
                    else:
                        self._hear_on(line, said)
        finally:
            carrier.is_heard = False

    def _hear_on(self, line: RelayedLine, said: Message) -> None:
        try:
            self.message(line, said)
        except ProtocolError as error:
            _LOGGER.warning("refused a client at %s: %s", line.address, error)
            line.close()

    def _agent_joins(self, connection: ClientLine, message: AgentJoin) -> None:
        self._connections.become(connection, Kind.AGENT)
        if self._options.relay:
            self._relays.begin(connection)
        self._attendance.agent_joins(connection, message)

    def _observe(self, connection: ClientLine, message: Observe) -> None:
        """Tell an observer what it has missed."""
        self._connections.become(connection, Kind.OBSERVER)
        connection.send(Hello(self._options.steps, self._job.participants.rows.next))
        self.was_observed = True
        if self._opening:
            connection.send(JobEvent(self._opening))
            self._opening = ""
        if message.next is not None:
            for told in told_since(read_journal(self._journal_path), message.next):
                connection.send(told)
        if self._end is not None:
            connection.send(self._end)

    def watch(self, take: Callable[[ToObserver], None]) -> None:
        """Tell an observer in this process what happens; it does not report to the user how the job ends."""
        take(Hello(self._options.steps, self._job.participants.rows.next))
        if self._opening:
            take(JobEvent(self._opening))
        self._connections.watch(take)

    def closed(self, connection: ClientLine) -> None:
        kind = self._connections.closed(connection)
        self._store.forget(connection.send)
        if kind is Kind.AGENT:
            _LOGGER.info("the agent at %s has disconnected", connection.address)
            # Before the agent is forgotten: none of its workers has disconnected by itself.
            self._relays.end(connection)
            self._attendance.lose_agent(connection)
        elif isinstance(kind, Member):
            self._attendance.lose_connection(kind)

    def _end_wanted(self, why: str) -> None:
        self._happen(EndWanted(why, self._options.stop_timeout))
        if self._end is None and not self._is_ending:
            self._is_ending = True
            self._agents.announce_end(self._options.stop_timeout)

    # Time: the server calls this often.

    def tick(self) -> None:
        if self._end is None:
            self._look()
        self.flush()

    def flush(self) -> None:
        """Send what waits for the end of a turn."""
        self._relays.flush()

    def _look(self) -> None:
        self._clock.turn()
        now = self._clock.now()
        if 0 <= now - self._ticked < _TICK:
            # While much arrives, looking at everybody after each part of it would take longer than the rest.
            return
        self._ticked = now
        if (why := self._stop()) is not None:
            self._end_wanted(why)
        self._publish([*self._journal.news(), *self._plans.take()])
        if self._options.adaptation.ahead:
            self._look_ahead(now)
        self._happen(TimePassed())
        self._publish(self._reconfiguration.decide(now, is_planning=self._plans.is_awaited))
        for participant in self._job.participants:
            self._happen(*participant.take())
        self._attendance.look(now)

    def _look_ahead(self, now: float) -> None:
        if now - self._looked_ahead >= _LOOK_AHEAD_EVERY:
            self._looked_ahead = now
            nodes = self._agents.workers_by_node()
            request = None if self._plans.is_busy else self._reconfiguration.next_plan(nodes)
            if request is not None:
                self._plans.ask(request, is_ahead=True)

    # Orders.

    def _carry_out(self, orders: Iterable[Order]) -> None:
        for order in orders:
            self._order_handlers[type(order)](order)

    def _have_done(self, do: Callable[[Any], Iterable[Event] | None], order: Order) -> None:
        """By the participant whose order it is."""
        self._happen(*(do(order) or ()))

    def _rename(self, order: Rename) -> None:
        self._attendance.rename(order)
        self._reconfiguration.moved(order.member.worker, order.target.worker)

    def _tell_row(self, order: TellRow) -> None:
        row = order.row
        # Whoever hears of a step knows whether it may be forgotten.
        self._publish(self._journal.news())
        self._connections.publish(row)
        self._reconfiguration.row(row)
        logs.note(step=row.step)
        _LOGGER.debug("step %d: loss %s, %.3f s, %d workers", row.step, row.loss, row.seconds, row.live)

    def _begin_gathering(self, order: BeginGathering) -> None:
        self._store.begin(order.number)
        logs.note(generation=order.number)
        causes = ", ".join(self._job.recovery.causes)
        _LOGGER.info("regroup for generation %d: %s", order.number, causes)

    def _begin_generation(self, order: BeginGeneration) -> None:
        assignment = order.assignment
        self._store.begin(order.number)
        self._reconfiguration.generation(assignment, order.cells)
        workers = sorted(order.cells)
        cells = [order.cells[worker] for worker in workers]
        pids = self._attendance.pids((*workers, *order.joiners))
        self._carry_out([written_down(order, self._job_digest, self._attendance.programs.first, pids)])
        plan = plan_name(self._job.book, assignment)
        if not self.has_begun:
            self._say_start(f"all {len(workers)} workers are ready: they meet")
        self.has_begun = True
        logs.note(generation=order.number, step=order.step)
        _LOGGER.info(
            "generation %d continues with step %d: %d workers, %d of them standbys, plan %s",
            order.number, order.step, len(workers), assignment.standbys, plan,
        )  # fmt: skip
        self._connections.publish(
            Generation(
                number=order.number,
                step=order.step,
                plan=plan,
                workers=tuple(workers),
                standbys=assignment.standbys,
                period=assignment.period,
                roles=tuple(assignment.roles[cell] for cell in cells),
            )
        )

    def _say_start(self, what: str) -> None:
        """Report what the user waits for, until there is a first step."""
        _LOGGER.info("%s", what)
        self._connections.publish(Starting(what))

    def _finish_recovery(self, order: FinishRecovery) -> None:
        self._attendance.deadline = float("inf")
        told = order.recovery.told()
        if told.causes == ("start",):
            self._say_start("training begins; the first step may take longer")
        _LOGGER.info("generation %d runs after %.3f s", told.generation, told.total)
        self._connections.publish(told)
        self._reconfiguration.recovered(order.recovery, self._clock.now())

    def _end_job(self, order: EndJob) -> None:
        """Worker processes save what they should; agents end when all of them have."""
        for participant in self._job.participants:
            for event in participant.finish():
                self._carry_out(self._job.handle(event, self._clock.now()))
        self._end = JobEnded(order.error, order.no_plan, self.newest_checkpoint, self._job.steps)
        self._closes_at = self._clock.now() + (_LINGER_AFTER_ALL if order.error is None else _LINGER)
        if order.is_lost and self._options.max_resumes > 0 and self._goes_on(str(order.error)):
            self._closes_at = self._clock.now() + _LINGER_TO_GO_ON
            self._agents.kill_all()
            return
        self._carry_out([end_written_down(self._end)])
        self._publish(self._journal.news())
        _LOGGER.info("the job has ended: %s", order.error or "all steps are made")
        self._connections.publish(self._end)

    def _goes_on(self, error: str) -> bool:
        """True if the job can, from the copy in memory or from the newest checkpoint; says so."""
        checkpoint = self.newest_checkpoint
        copy, why = self._job.participants.usable_copy(
            self._agents.memories(), is_bad=self._job.members.has_bad_copy
        )
        if copy is not None:
            self._tell(f"{error}; the job goes on from copies in memory with step {copy.step}")
        elif checkpoint is not None:
            self._tell(f"{error}{why}; the job goes on from {checkpoint.path} with step {checkpoint.step}")
        elif why:
            self._tell(f"{error}{why}, and there is no checkpoint")
        self.goes_on, self.goes_on_from = copy is not None or checkpoint is not None, copy
        return self.goes_on
