"""The coordinator as a process: sockets, timers, files and processes around the job's state machine.

Four kinds of clients connect: members (worker processes), their store connections, agents, and observers, who
are told everything. What a client is follows from the first thing it says. What happens becomes an event of
the state machine; what that orders is carried out here. Standard library only.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from recycle_runtime import logs
from recycle_runtime.checkpoint.manifest import origin_of, shape_of
from recycle_runtime.checkpoint.script_state import ScriptState
from recycle_runtime.checkpoint.shelf import Beginning, is_copy
from recycle_runtime.coordinator.adaptation import Adaptation, AdaptationOptions
from recycle_runtime.coordinator.agents import Agents
from recycle_runtime.coordinator.checkpoint_files import CheckpointFiles, open_checkpoints
from recycle_runtime.coordinator.checkpoints import NoCheckpoints
from recycle_runtime.coordinator.connections import Connections, Kind, Line
from recycle_runtime.coordinator.events import (
    AllReturned,
    BeginCheckpoint,
    BeginGathering,
    BeginGeneration,
    BeginLastSave,
    BeginMove,
    BeginsAnew,
    BeginSave,
    CompleteCheckpoint,
    CompleteSave,
    CopyBegun,
    DropCheckpoint,
    DropSave,
    EndJob,
    EndMove,
    EndWanted,
    Event,
    Fence,
    FinishRecovery,
    GivenUp,
    Joined,
    Order,
    PruneCheckpoints,
    Reconnected,
    Rename,
    Returned,
    Said,
    Send,
    Tell,
    TellEvaluation,
    TellRow,
    TellSaved,
    TellSettled,
    TimePassed,
    WantPlan,
    WorkerFailed,
    WorkerStuck,
)
from recycle_runtime.coordinator.hooks import Hooks
from recycle_runtime.coordinator.journal import (
    FILE,
    JournalError,
    Remembered,
    check_fits,
    check_job,
    prepared,
    read,
    rows_since,
    told_since,
)
from recycle_runtime.coordinator.kept_plans import plans_of
from recycle_runtime.coordinator.layer_move import LayerMove
from recycle_runtime.coordinator.lost_starts import LostStarts
from recycle_runtime.coordinator.membership import name_of
from recycle_runtime.coordinator.neighbour_copies import CompleteCopy, Group, NeighbourCopies
from recycle_runtime.coordinator.outside import Outside
from recycle_runtime.coordinator.patience import AttentiveClock, Patience
from recycle_runtime.coordinator.peer_digests import CHECK_PEERS
from recycle_runtime.coordinator.plans import PlanFiles, PlanGoneError, PlansOnDemand
from recycle_runtime.coordinator.programs import Programs
from recycle_runtime.coordinator.reach import Reachability
from recycle_runtime.coordinator.refill import Refill, host_of
from recycle_runtime.coordinator.relays import RelayedLine, Relays
from recycle_runtime.coordinator.replanning import Replanner
from recycle_runtime.coordinator.save_files import SaveFiles
from recycle_runtime.coordinator.skipped_steps import MAX_SKIPPED
from recycle_runtime.coordinator.state_machine import ENDLESS, Phase, StateMachine
from recycle_runtime.files import lock_checkpoints, take_folder
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import digest_of
from recycle_runtime.plan.node_layout import even_share, placement_order
from recycle_runtime.plan.plan_book import PlanBook, plan_name
from recycle_runtime.plan.recut import size_text
from recycle_runtime.protocol.access import Token
from recycle_runtime.protocol.codec import ProtocolError
from recycle_runtime.protocol.identity import node_of
from recycle_runtime.protocol.messages.agents import ENDED_WELL, AgentJoin, Heartbeat, ProcessEnded, UseRelay
from recycle_runtime.protocol.messages.checkpoints import (
    CheckpointFailed,
    CheckpointMissed,
    CheckpointPath,
    CheckpointWritten,
)
from recycle_runtime.protocol.messages.generations import (
    AtBoundary,
    Began,
    BundleData,
    BundleRequest,
    CaughtUp,
    Done,
    End,
    Failed,
    FaultInjected,
    GroupBroken,
    Holding,
    Join,
    LeftGroup,
    Reach,
    Trace,
)
from recycle_runtime.protocol.messages.layer_moves import LayersArrived, LayersLost
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.neighbour_copies import (
    CopyFailed,
    CopyHeld,
    CopyKept,
    CopyMissed,
    CopyReply,
)
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
from recycle_runtime.protocol.messages.scripts import ScriptRequest
from recycle_runtime.protocol.messages.steps import (
    FirstGradients,
    LossShare,
    Parameters,
    PeerDigest,
    Recall,
    Settled,
    StepDone,
    StepRow,
)
from recycle_runtime.protocol.messages.store import StoreOpen, StoreRequest
from recycle_runtime.protocol.messages.wire import FromWorkers, Handlers, Message
from recycle_runtime.protocol.store_table import StoreTable

_LOGGER = logging.getLogger(__name__)
_TURN = 0.05
_LOOK_AHEAD_EVERY = 0.25
_TICK = 0.02
"""Seconds from one look at all workers to the next, at least."""
_RETURN_SECONDS = 5.0
"""How long a restarted coordinator waits for the processes of the journal."""
_LAST_RETURN_SECONDS = 30.0
"""The same for those without which the job would end: they look for it so long, and may be cut off."""
_REMEMBERED_ROWS = 64
"""A script asks for that of the step that it has just made."""
_SCRIPT_STEPS = 2
"""Steps after which a script has said what it has kept before, if it ever does."""
_NODES_SECONDS = 30.0
"""How long the next of the nodes that were announced may take to arrive."""
_AGENTS_SECONDS = 60.0
"""For the agents of a job that had ended before it was started again: they load torch before they ask."""
_UNHEARD_SECONDS = 0.5
"""For workers whose agent is gone to connect themselves while the others wait: it takes them milliseconds."""
_WITH_ITS_NODE = "was on a node that is gone"
_LINGER = 2.0
_LINGER_TO_GO_ON = 15.0
"""For all workers to be gone, before the job goes on from a checkpoint."""
_LINGER_AFTER_ALL = 30.0
"""After the end: how long workers may take to leave; if all went well, they may have more to do."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a coordinator is told when it starts."""

    bundle: str
    steps: int
    failed: tuple[Worker, ...]
    host: str
    port: int
    token: Token
    state: Path
    """A folder for what must outlive the process."""
    hooks: Hooks = field(default_factory=Hooks)
    start_seconds: float = 300.0
    """How long the first workers may take to arrive."""
    checkpoint: str | None = None
    """The folder for checkpoints; None: none are taken."""
    every: int = 100
    """Steps from one checkpoint to the next."""
    resume: bool = False
    """Begin with the newest checkpoint."""
    accepts_changes: bool = False
    """Also with one whose steps have taken other data than those of this job would."""
    max_resumes: int = 0
    """How often the job may go on from its newest checkpoint by itself."""
    is_continued: bool = False
    """Whether it has done so: all steps may be made then, and what is left is to save them."""
    adaptation: AdaptationOptions = field(default_factory=AdaptationOptions)
    check_peers: int = CHECK_PEERS
    """Steps from one comparison of peers to the next; 0: never."""
    heartbeat_timeout: float = 3.0
    """Seconds without a heartbeat of its agent after which a node has failed."""
    patience: Patience = field(default_factory=Patience)
    max_skipped: int = MAX_SKIPPED
    """Steps in a row that may be left out because a gradient is not finite."""
    stop_timeout: float = 60.0
    """Seconds that a last checkpoint may take when the job is asked to end."""
    restarts_workers: bool = True
    """Whether failed workers are started again where there is room."""
    neighbour_copies: int = 0
    """Steps from one copy of every stage in the memory of nodes to the next; 0: none are made."""
    nodes: int | None = None
    """How many there will be, if that is known: they get equally many workers."""
    takes_over: bool = False
    """Whether a coordinator before this one may still hold locks; see `leadership`."""
    is_over: bool = False
    """Whether a job in this folder had ended, and its agents had been told; see `job_over`."""
    relay: bool = False
    """Whether worker processes speak through the agents of their nodes."""


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
            remembered = read(self._journal_path)
            check_job(options.state, remembered, self._job_digest)
            plans, bundle = plans_of((options.bundle, bundle), options.state, remembered)
            copied = prepared(self._journal_path) if remembered is None else remembered.copied
        except JournalError:
            os.close(self._lock)
            raise
        if remembered is None:
            outside.keep_plans(options.bundle, options.state)
        self._book, self._tensor = PlanBook(bundle), bundle.tensor
        begins = _beginning(remembered, copied)
        self._journal = outside.journal(self._journal_path)
        if begins is not None and remembered is None:
            self._journal.write(begins=[begins.checkpoint, begins.step, begins.item])
        checkpoints = NoCheckpoints(begins)
        self._checkpoint_files: CheckpointFiles | None = None
        if options.checkpoint is not None:
            # Two jobs would delete each other's.
            lock_checkpoints(Path(options.checkpoint), takes_over=options.takes_over)
            takes_long = options.resume and remembered is None and begins is None
            with outside.reading() if takes_long else nullcontext():
                checkpoints = open_checkpoints(
                    options.checkpoint, bundle, options.steps, options.every, remembered, self._journal,
                    resume=options.resume, begins=begins, accepts_changes=options.accepts_changes,
                    may_be_finished=options.is_continued,
                )  # fmt: skip
            self._checkpoint_files = CheckpointFiles(options.checkpoint, outside.file_thread("checkpoints"))
        expected = set(self._book.grid) - set(options.failed)
        self._job = StateMachine(
            self._book,
            bundle.tensor,
            options.steps,
            expected,
            now,
            checkpoints,
            options.check_peers,
            options.patience,
            options.max_skipped,
        )
        self._copies: NeighbourCopies | None = None
        if options.neighbour_copies:
            self._copies = NeighbourCopies(
                options.neighbour_copies, shape_of(bundle), options.steps, self._job.checkpoints.begins,
                options.max_resumes, has_scripts=options.steps >= ENDLESS,
            )  # fmt: skip
            self._copies.recall(copied)
        self._resume_scripts(copied)
        self._save_files = SaveFiles(
            # Workers write there, wherever they are.
            (options.state / "saves").absolute(),
            shape_of(bundle),
            self._job.checkpoints.begins,
            options.checkpoint,
            outside.file_thread("saves"),
            origin_of(bundle),
        )
        self._opening = self._job.checkpoints.begins.words
        """For the first observer."""
        self._store, self._connections = StoreTable(), Connections()
        self._programs = Programs(digest_of(bundle), None if remembered is None else remembered.setup)
        share = None if options.nodes is None else even_share(len(self._book.grid), options.nodes)
        self._relays = Relays(self.closed)
        self._agents = Agents(bundle.tensor, options.heartbeat_timeout, now, share)
        self._refill = Refill()
        self._lost_starts = LostStarts(options.heartbeat_timeout)
        self._to_start = placement_order(expected)[::-1]
        """Of the workers that the job begins with, those that no agent has been told of, from the last on."""
        self._ticked = self._looked_ahead = float("-inf")
        self._away = set(options.failed)
        """Workers that the user wants to do without, until a node arrives while the others train."""
        self._node_at = now
        """When the last one arrived."""
        self._reach = Reachability()
        self._plan_files = PlanFiles(plans, self._book, self._journal, options.state)
        self._adaptation = Adaptation(
            self._book, options.adaptation, Replanner(options.state), self._plan_files
        )
        self._plans = PlansOnDemand(self._plan_files, outside.planner(bundle.job_source, options.state))
        self._events: deque[Event] = deque()
        """That have not been handled yet; not empty only while one is being handled."""
        self._is_handling = False
        self._deadline = now + options.start_seconds
        """For those who are waited for."""
        self._returns_by = now + _LAST_RETURN_SECONDS
        self._moved_in: dict[Worker, Worker] = {}
        """By place: who had another before and has taken it."""
        self._doubtful: dict[Member, tuple[str, float]] = {}
        """Processes without which the job would end and which have no connection: how they were lost, and
        until when they are waited for."""
        self._refused: set[int] = set()
        """Processes that were sent away when they came, by their numbers, until they have ended."""
        self._unheard: dict[Member, float] = {}
        """Processes whose agent is gone, and which may be about to connect themselves: since when."""
        self._returning: set[Member] = set()
        """Processes of the journal that have not come back to this coordinator yet."""
        self._pids_before: Mapping[Member, int] = {}
        """Which processes they are, as far as the coordinator before this one has written it down."""
        self._recut: LayerMove | None = None
        """That has led to the generation under way, until that is told."""
        self._end: JobEnded | None = None
        self.goes_on = False
        """Whether the job has ended only to go on from its newest checkpoint, or from a copy in memory."""
        self.goes_on_from: CompleteCopy | None = None
        """That copy."""
        self._noted_copy = "" if copied is None else copied.name
        self._closes_at = float("inf")
        self._agents_awaited = 0
        """How many should hear of the end before this coordinator leaves."""
        self._stop: Callable[[], str | None] = lambda: None
        self.has_begun = remembered is not None
        """Whether a generation has been ordered."""
        self.was_observed = False
        self._is_ending = False
        """Whether an observer reports to the user."""
        self._expect_messages()
        self._order_handlers: Mapping[type[object], Callable[[Any], None]] = {
            Send: lambda order: self._connections.send(order.member, order.message),
            Fence: self._fence,
            Rename: self._rename,
            TellRow: self._tell_row,
            TellEvaluation: self._tell_evaluation,
            TellSaved: self._tell_saved,
            TellSettled: self._tell_settled,
            Tell: lambda order: self._tell(order.text),
            BeginGathering: self._begin_gathering,
            BeginGeneration: self._begin_generation,
            BeginLastSave: lambda order: self._journal.write(last_save=order.last_save),
            BeginMove: self._begin_move,
            EndMove: self._end_move,
            FinishRecovery: self._finish_recovery,
            WantPlan: lambda order: self._plans.want(order.live, self._job.book, is_needed=order.is_needed),
            BeginCheckpoint: self._begin_checkpoint,
            CompleteCheckpoint: self._complete_checkpoint,
            PruneCheckpoints: self._prune_checkpoints,
            DropCheckpoint: self._drop_checkpoint,
            BeginSave: self._begin_save,
            CompleteSave: lambda order: self._save_files.complete(order),
            DropSave: lambda order: self._save_files.drop(order.path),
            EndJob: self._end_job,
        }
        self._server = outside.serve(options.host, options.port, options.token, self)
        if remembered is None:
            assignment = self._book.assign(expected)
            if assignment is None or not assignment.is_exact:
                self._plans.want(tuple(expected), self._book)
        else:
            self._remember(remembered)

    def _resume_scripts(self, copied: CompleteCopy | None) -> None:
        """What the checkpoint that the run begins with holds of them."""
        begins, folder = self._job.checkpoints.begins, self._options.checkpoint
        if begins.checkpoint is None:
            return
        if is_copy(begins.checkpoint):
            state = None if copied is None or copied.name != begins.checkpoint else copied.script
        else:
            state = None if folder is None else ScriptState.read(Path(folder) / begins.checkpoint)
        if state is None:
            # Made by a run with a program file: the loss of its last step is not known here.
            state = ScriptState(b"", StepRow(begins.step - 1, None, 0.0, 0, ""))
        self._job.scripts.resume(begins.step, *state)

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def newest_checkpoint(self) -> CheckpointPath | None:
        return self._job.checkpoints.newest

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
        """Whether the job was over, and everybody had been told, before this coordinator was started."""
        return self._options.is_over and self._agents_awaited > 0

    @property
    def ended(self) -> JobEnded | None:
        """How the job has."""
        return self._end

    @property
    def job(self) -> StateMachine:
        """To be read."""
        return self._job

    @property
    def standing(self) -> str:
        """Where the job stands, in a few words."""
        job = self._job
        return f"generation {job.number} is {job.phase.value}, the next step is {job.rows.next}"

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, and its workers have left or had time to."""
        if self._end is None:
            return False
        is_left = self._agents.has_processes if self.goes_on else self._connections.has_members
        is_awaited = is_left or bool(self._returning) or self._agents_awaited > self._agents.count
        return not is_awaited or self._clock.now() >= self._closes_at

    def close(self) -> None:
        """Let go of everything outside this object."""
        self._plans.stop()
        self._adaptation.stop()
        if self._checkpoint_files is not None:
            self._checkpoint_files.close()
        self._save_files.close()
        if self._end is not None:
            self._sweep()
        self._server.close()
        self.let_go()

    def let_go(self) -> None:
        """Of files: all that a process that is killed does."""
        self._journal.close()
        os.close(self._lock)

    def _sweep(self) -> None:
        """What workers have begun to write and nobody will complete."""
        if self._checkpoint_files is not None:
            self._checkpoint_files.sweep()
        self._save_files.sweep()

    def _remember(self, remembered: Remembered) -> None:
        """Go on as the coordinator before this one."""
        try:
            self._recall_plans(remembered)
        except PlanGoneError:
            if remembered.ended is None:
                raise
            # Nobody runs it any more.
            remembered = remembered._replace(plan=None, places=self._book.grid, cells={}, joiners={})
        self._job.remember(remembered)
        self._job.saves.remember(remembered.saved)
        self._save_files.remember(remembered.saving)
        self._job.scripts.remember(
            remembered.evaluated, rows_since(self._journal_path, remembered.next_row - _REMEMBERED_ROWS)
        )
        self._adaptation.recall(remembered.layer_bytes)
        assert self._job.assignment is not None
        cells = {worker: remembered.cells.get(worker, worker) for worker in remembered.places}
        self._adaptation.generation(self._job.assignment, cells)
        workers = (*remembered.places, *remembered.joiners)
        self._returning = {Member(worker, rank) for worker in workers for rank in range(self._tensor)}
        self._returning -= {member for member, _ in remembered.done}
        self._pids_before = remembered.pids
        self._deadline = self._clock.now() + _RETURN_SECONDS
        if remembered.last_save is not None:
            self._job.remember_last_save(remembered.last_save, remembered.done)
        if remembered.ended is not None:
            # Whoever has not heard of it comes back for it.
            self._end, self._closes_at = remembered.ended, self._deadline
            self._job.remember_end(self._end.error)
            if self._options.is_over:
                self._await_agents()
        self._hooks.resume(remembered.next_row, remembered.places)
        logs.note(generation=remembered.generation, step=remembered.next_row)
        _LOGGER.info("restarted: %d processes are expected back", len(self._returning))

    def _recall_plans(self, remembered: Remembered) -> None:
        running = 0 if remembered.plan is None else remembered.plan.bundle
        self._plan_files.recall(
            remembered.bundles,
            remembered.standby,
            remembered.made_for,
            remembered.fitted,
            running if running < len(self._book.bundles) + len(remembered.bundles) else 0,
        )
        check_fits(self._journal_path, remembered, self._book)

    def _await_agents(self) -> None:
        """The job was over for good, and somebody has started it once more: its agents are sent away."""
        self._returning.clear()
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
        """What is to be told, and what is to happen."""
        for wish in wishes:
            if isinstance(wish, JobEvent):
                _LOGGER.info("%s", wish.text)
                self._connections.publish(wish)
            else:
                self._happen(wish)

    # What clients say: the server calls these.

    def message(self, connection: Line, message: Message) -> None:
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
        """Who handles which message, by who sends it."""
        first = self._first = Handlers[Line]()
        first.on(Join, self._join)
        first.on(AgentJoin, self._agent_joins)
        first.on(Observe, self._observe)
        first.on(StoreOpen, lambda connection, _: self._connections.become(connection, Kind.STORE))
        agents = self._from_agents = Handlers[Line]()
        agents.on(Heartbeat, lambda connection, _: self._agents.heard(connection, self._clock.now()))
        agents.on(ProcessEnded, self._process_ended)
        agents.on(FromWorkers, self._hear_relayed)
        workers = self._from_workers = Handlers[Member]()
        for kind in (
            LayersLost,
            LossShare,
            Holding,
            AtBoundary,
            CaughtUp,
            GroupBroken,
            PeerDigest,
            Parameters,
            FirstGradients,
            Failed,
        ):
            workers.on(kind, lambda member, said: self._happen(Said(member, said)))
        for reply in (CheckpointWritten, CheckpointMissed, CheckpointFailed):
            workers.on(reply, lambda member, said: self._happen(Said(member, said)))
        for request in get_args(ScriptRequest):
            workers.on(request, lambda member, said: self._happen(Said(member, said)))
        for reply in (CopyKept, CopyHeld, CopyMissed, CopyFailed):
            workers.on(reply, self._hear_copy)
        workers.on(StepDone, self._step_done)
        workers.on(Settled, lambda member, said: self._happen(Said(member, said)))
        workers.on(Began, self._began)
        workers.on(LeftGroup, self._left_group)
        workers.on(LayersArrived, self._layers_arrived)
        workers.on(FaultInjected, self._fault_injected)
        workers.on(BundleRequest, self._bundle_wanted)
        workers.on(
            Trace, lambda member, said: self._connections.publish(WorkerTrace(member.worker, said.events))
        )
        workers.on(Reach, self._hear_reach)
        workers.on(Done, self._done)

    def _join(self, connection: Line, message: Join) -> None:
        member, pid = message.member, message.pid
        if not self._book.has(member.worker) or member.tp_rank >= self._tensor:
            raise ProtocolError(f"the job has no worker {name_of(member.worker)} with rank {member.tp_rank}")
        is_same = member in self._job.roster and self._connections.pid_of(member) == pid
        is_taken = member in self._job.roster or bool(self._end) or self._is_apart(member, pid)
        if member in self._returning and self._pids_before.get(member, pid) != pid:
            # Started in the place of one that may still come back, it comes again until that is known.
            connection.close()
            return
        if not is_same and member not in self._returning and is_taken:
            _LOGGER.info("a second process for %s is refused", _called(member))
            self._refused.add(pid)
            connection.send(End(ok=False))
            connection.close()
            return
        self._refused.discard(pid)
        self._connections.accept(connection, member, pid)
        _LOGGER.info("%s joins from %s", _called(member), connection.address)
        if is_same:
            # The same process, whose connection broke.
            self._give_copy_up()
            connection.send(Recall(self._job.rows.next))
            self._happen(_reconnected(message))
        elif member in self._returning and self._end is not None:
            self._happen(_reconnected(message))
        elif member in self._returning:
            # One that never heard of the last generation is none of those who train in it.
            is_training = message.is_training and message.generation == self._job.number
            connection.send(Recall(self._job.rows.next))
            self._happen(Returned(member, is_training, message.asked, message.saves))
            self._is_back(member)
        else:
            self._happen(Joined(member, message.generation > 0, message.asked))

    def _is_apart(self, member: Member, pid: int) -> bool:
        """Whether another rank of the same worker has come from another node, where the rest of it may be."""
        others = (Member(member.worker, rank) for rank in range(self._tensor) if rank != member.tp_rank)
        known = (self._connections.pid_of(other) for other in others if other in self._job.roster)
        return any(other is not None and node_of(other) != node_of(pid) for other in known)

    def _is_back(self, member: Member) -> None:
        """Or known to have failed."""
        self._returning.discard(member)
        if not self._returning:
            self._deadline = float("inf")
            self._happen(AllReturned())

    def _done(self, member: Member, message: Done) -> None:
        self._connections.finish(member)
        self._hear_last_words(member, message)

    def _hear_last_words(self, member: Member, message: Done) -> None:
        """They are said once: a coordinator that comes after this one has to know them."""
        if self._job.phase is Phase.SAVING:
            self._journal.write(done=member, error=message.error)
        self._happen(Said(member, message))

    def _step_done(self, member: Member, message: StepDone) -> None:
        self._adaptation.measured(member, message.times)
        self._happen(Said(member, message))

    def _began(self, member: Member, message: Began) -> None:
        self._adaptation.began(member, message)
        self._happen(Said(member, message))

    def _left_group(self, member: Member, message: LeftGroup) -> None:
        if (mistake := self._programs.mistake(member, message, self._host)) is not None:
            self._happen(Said(member, Failed(0, mistake, is_injected=False, is_hopeless=False)))
        else:
            self._happen(Said(member, message))

    def _host(self, worker: Worker) -> str:
        """Where it runs; nothing if no agent says so."""
        node = self._agents.nodes().get(worker, "")
        return node and host_of(node)

    def _layers_arrived(self, member: Member, message: LayersArrived) -> None:
        self._adaptation.layers_arrived(message.copied)
        self._happen(Said(member, message))

    def _fault_injected(self, member: Member, message: FaultInjected) -> None:
        """It does now what it was told to do to itself."""
        self._hooks.injected(member.worker, message.fault)
        text = f"injected fault: {message.fault.kind} of {name_of(member.worker)}"
        self._publish([JobEvent(text, fault=message.fault)])

    def _bundle_wanted(self, member: Member, message: BundleRequest) -> None:
        if message.number >= len(self._plan_files.paths):
            raise ProtocolError(f"there are no plans with the number {message.number}")
        data = self._plan_files.paths[message.number].read_bytes()
        self._connections.send(member, BundleData(message.number, data))

    def _trace(self, member: Member, message: Trace) -> None:
        self._connections.publish(WorkerTrace(member.worker, message.events))

    def _hear_relayed(self, connection: Line, message: FromWorkers) -> None:
        """What workers of a node say, each on its own line: who makes no sense is hung up on alone."""
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

    def _hear_reach(self, member: Member, message: Reach) -> None:
        self._reach.hear(member.worker, message.here, message.unanswered, self._clock.now())

    def _agent_joins(self, connection: Line, message: AgentJoin) -> None:
        _LOGGER.info(
            "an agent joins from %s: room for %d processes, %d run",
            connection.address,
            message.processes,
            len(message.running),
        )
        self._connections.become(connection, Kind.AGENT)
        if (before := self._agents.arrive(connection, message, self._clock.now())) is not None:
            before.close()
        if self._options.relay:
            self._relays.begin(connection)
        if self._options.relay or message.relays:
            connection.send(UseRelay(self._options.relay))
        for ended in message.ended:
            self._process_ended(connection, ended)
        self._node_at = self._clock.now()
        if not message.running and self._job.phase is not Phase.FORMING:
            self._away.clear()
            self._refill.new_node()
            self._restart_workers()
        self._start_expected()

    def _start_expected(self) -> None:
        """Those that the job begins with."""
        started = 0
        while self._to_start:
            worker = self._to_start[-1]
            is_wanted = worker in self._job.expected and not self._agents.runs(worker)
            if is_wanted and not self._agents.start(worker, self._hooks.faults(worker)):
                # The same holds for all others: there is no room.
                break
            self._to_start.pop()
            started += is_wanted
        if self._job.phase is Phase.FORMING and started:
            self._say_start(f"{started} workers start: they read the program and build their layers")

    def _restart_workers(self) -> None:
        """Failed ones, where there is room by now."""
        if self._job.phase not in (Phase.RUNNING, Phase.GATHERING) or self._returning:
            return
        if not self._agents.has_room():
            return
        now, names = self._clock.now(), self._agents.names()
        missing = set(self._book.grid) - set(self._job.roster.whole()) - self._away
        for worker in placement_order(self._refill.due(missing, now)):
            avoided = self._refill.avoided(worker, names)
            node = self._agents.replace(worker, self._hooks.faults(worker), avoided)
            if node is not None:
                self._refill.started(worker, node, now)
                self._tell(f"{name_of(worker)} is started again on {host_of(node)}")

    def _start_lost(self, now: float) -> None:
        """Those that an agent was told to start, if they have not come and nobody knows of them any more."""
        self._lost_starts.note(self._agents.unsure(), now)
        if self._returning:
            return
        for worker in self._lost_starts.due(now):
            if not self._is_wanted(worker) or self._starts_again(worker, now):
                self._lost_starts.forget(worker)

    def _is_wanted(self, worker: Worker) -> bool:
        """Whether it has not come, and should."""
        job = self._job
        if job.phase is Phase.FORMING:
            return worker in job.expected
        is_absent = not job.roster.is_whole(worker) and worker not in self._away
        return is_absent and self._options.restarts_workers and job.phase in (Phase.RUNNING, Phase.GATHERING)

    def _starts_again(self, worker: Worker, now: float) -> bool:
        """Or has been; False if there is no room, and it may come by itself."""
        ranks = [Member(worker, rank) for rank in range(self._tensor)]
        here = [member for member in ranks if self._agents.has(member)]
        come = [member for member in ranks if member in self._job.roster]
        absent = [member for member in ranks if member not in here and member not in come]
        faults = self._hooks.faults(worker)
        if not absent:
            return True
        if here:
            node = self._agents.complete(absent, faults)
            if node is None:
                return False
            self._refill.started(worker, node, now)
        elif come and not self._agents.has_room():
            return False
        else:
            if come:
                self._end_half(worker, come)
            if self._job.phase is not Phase.FORMING:
                # It is started with those that have failed.
                return True
            if not self._agents.start(worker, faults):
                return False
        self._tell(f"{name_of(worker)} is started again: its agent was gone before it had come")
        return True

    def _end_half(self, worker: Worker, come: list[Member]) -> None:
        """Of a worker some ranks have come from a node without an agent, so nobody can start its others
        there. Before the first step that is no failure: those of its node may be on their way here from a
        coordinator before this one."""
        why = "has some of its ranks only"
        for member in come:
            self._connections.send(member, End(ok=False))
        if self._job.phase is not Phase.FORMING:
            self._fail(come[0], why)
            return
        # When an agent says that they have ended, that is no failure either.
        self._refused.update(pid for member in come if (pid := self._connections.pid_of(member)) is not None)
        self._happen(BeginsAnew(worker, f"{name_of(worker)} {why}"))

    def _process_ended(self, connection: Line, message: ProcessEnded) -> None:
        self._agents.heard(connection, self._clock.now())
        if message.pid in self._refused:
            self._refused_ended(connection, message)
            return
        node = self._agents.name_of(connection)
        member, pid = self._connections.now(message.member, message.pid), message.pid
        if self._connections.pid_of(member) == pid:
            self._connections.drain(member)
        if not self._was_expected(connection, member, pid):
            return
        _LOGGER.info("%s %s", _called(member), message.how)
        if (said := self._refill.ended(member.worker, node, self._clock.now())) is not None:
            _LOGGER.warning("%s", said)
        if self._end is None:
            fault_at = message.fault_at / 1e9 - self._clock.stopped if message.fault_at else None
            name = name_of(member.worker)
            name = name if self._tensor == 1 else f"rank {member.tp_rank} of worker {name}"
            failed = WorkerFailed(member.worker, f"{name} {message.how}", fault_at)
            if message.how == ENDED_WELL and self._job.phase is Phase.SAVING:
                # What it has said may not have been heard, if a coordinator ended meanwhile.
                self._hear_last_words(member, Done(None))
            elif message.stuck_in is not None and fault_at is None:
                where = f":\n{message.where}" if message.where else ""
                self._happen(WorkerStuck(failed, message.stuck_in, f"worker {failed.cause}{where}"))
            else:
                self._happen(failed)
        # Not before: another process of this name is none that has failed.
        self._connections.forget(member)
        if member in self._returning:
            self._is_back(member)

    def _refused_ended(self, connection: Line, message: ProcessEnded) -> None:
        """A process that was one too many: its worker has not failed, and others may have its room."""
        member = message.member
        self._refused.discard(message.pid)
        if self._agents.gone(connection, member, message.pid) and self._end is None:
            self._refill.lost(member.worker, self._clock.now())
            self._agents.doubt(member.worker)
            self._start_expected()

    def _was_expected(self, connection: Line, member: Member, pid: int) -> bool:
        """Whether the end of this process is the end of a worker process, told for the first time."""
        was_watched = self._agents.gone(connection, member, pid)
        known = self._process_of(member)
        if known is not None:
            # Otherwise a second process for a place that is taken.
            return known == pid
        if was_watched:
            return True
        # An agent may also tell of one that had this place before.
        return member in self._returning and not self._agents.has(member)

    def _process_of(self, member: Member) -> int | None:
        """The one that has this place, or is expected back there, as far as that is known."""
        before = self._pids_before.get(member) if member in self._returning else None
        return self._connections.pid_of(member) or before

    def _observe(self, connection: Line, message: Observe) -> None:
        """Tell an observer what it has missed."""
        self._connections.become(connection, Kind.OBSERVER)
        connection.send(Hello(self._options.steps, self._job.rows.next))
        self.was_observed = True
        if self._opening:
            connection.send(JobEvent(self._opening))
            self._opening = ""
        if message.next is not None:
            for told in told_since(self._journal_path, message.next):
                connection.send(told)
        if self._end is not None:
            connection.send(self._end)

    def watch(self, take: Callable[[ToObserver], None]) -> None:
        """Tell an observer in this process what happens; it does not report to the user how the job ends."""
        take(Hello(self._options.steps, self._job.rows.next))
        if self._opening:
            take(JobEvent(self._opening))
        self._connections.watch(take)

    def closed(self, connection: Line) -> None:
        kind = self._connections.closed(connection)
        self._store.forget(connection.send)
        if kind is Kind.AGENT:
            _LOGGER.info("the agent at %s has disconnected", connection.address)
            # Before the agent is forgotten: none of its workers has disconnected by itself.
            self._relays.end(connection)
            for member in self._agents.leave(connection):
                # With a node, its workers may go before their agent, who cannot say it any more.
                if member not in self._connections and self._connections.pid_of(member) is not None:
                    self._miss(member)
        elif isinstance(kind, Member) and not self._agents.has(kind):
            # Its agent would report what became of it, if it still had one.
            self._lose(kind, "disconnected")

    def _miss(self, member: Member) -> None:
        """Its agent is gone and it has no connection; if that went through the agent, it makes another."""
        if self._options.relay:
            self._unheard[member] = self._clock.now()
        else:
            self._lose(member, _WITH_ITS_NODE)

    def _look_at_unheard(self, now: float) -> None:
        timeout = self._options.heartbeat_timeout
        # When others have lost a connection too it is the node that is gone, and all wait for its workers.
        limit = min(_UNHEARD_SECONDS, timeout) if self._job.phase is Phase.GATHERING else timeout
        for member, since in list(self._unheard.items()):
            is_back = member in self._connections or member not in self._job.roster
            if is_back or self._agents.has(member):
                # Or there is an agent again, which says what becomes of it.
                del self._unheard[member]
            elif now - since > limit:
                del self._unheard[member]
                self._lose(member, _WITH_ITS_NODE)

    def _lose(self, member: Member, how: str) -> None:
        """It is gone, for all that is known; one without which the job would end may be on its way back."""
        now = self._clock.now()
        if self._can_go_on_without({member.worker} | self._agents.silent(now)):
            self._fail(member, how)
        else:
            self._doubtful[member] = how, now + _LAST_RETURN_SECONDS

    def _look_at_doubtful(self, now: float) -> None:
        for member, (how, until) in list(self._doubtful.items()):
            if member in self._connections or member not in self._job.roster:
                del self._doubtful[member]
            elif now > until or self._can_go_on_without(self._agents.silent(now)):
                del self._doubtful[member]
                self._fail(member, how)

    def _fail(self, member: Member, how: str) -> None:
        if self._end is None:
            self._refill.lost(member.worker, self._clock.now())
            self._happen(WorkerFailed(member.worker, f"{name_of(member.worker)} {how}"))

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
        self._publish(self._adaptation.turn(self._job, now, is_planning=self._plans.is_awaited))
        if self._checkpoint_files is not None:
            self._happen(*self._checkpoint_files.take())
        self._happen(*self._save_files.take())
        if now > self._deadline:
            self._deadline = float("inf")
            self._give_up_missing_members(now)
        self._look_at_network(now)
        self._look_at_nodes(now)
        self._look_at_unheard(now)
        self._look_at_doubtful(now)
        self._start_missing(now)
        self._copy_if_due()

    def _look_ahead(self, now: float) -> None:
        if now - self._looked_ahead >= _LOOK_AHEAD_EVERY:
            self._looked_ahead = now
            nodes = self._agents.workers_by_node()
            self._plans.look_ahead(self._job, may_recut=self._adaptation.may_recut, nodes=nodes)

    def _start_missing(self, now: float) -> None:
        """Workers that should run and do not."""
        self._start_lost(now)
        if self._options.restarts_workers:
            self._restart_workers()
        if self._job.phase is Phase.FORMING and now - self._node_at > _NODES_SECONDS:
            # Fewer nodes have come than were announced.
            self._agents.share_no_more()
            self._start_expected()
        for worker in self._hooks.due_to_join(self._job.rows.next):
            node = self._agents.replace(worker, self._hooks.faults(worker), ())
            if node is not None:
                self._refill.started(worker, node, now)
                self._tell(f"{name_of(worker)} is restarted")
            elif worker in self._moved_in and self._agents.runs(worker):
                mover = name_of(self._moved_in[worker])
                self._tell(f"{name_of(worker)} is not restarted: {mover} has taken its place")
            else:
                continue
            self._moved_in.pop(worker, None)
            self._hooks.started(worker)

    def _give_up_missing_members(self, now: float) -> None:
        is_early = self._returning and now < self._returns_by
        if is_early and not self._can_go_on_without(self._agents.silent(now)):
            self._deadline = now + _TURN
        elif self._returning:
            for member in sorted(self._returning):
                self._fail(member, "did not come back")
            # If the job has ended by that, nobody is waited for any more.
            self._returning.clear()
        elif self._job.phase is Phase.FORMING and self._job.expected:
            names = ", ".join(map(name_of, sorted(self._job.expected)))
            self._happen(GivenUp(f"these workers have not arrived: {names}"))

    def _look_at_network(self, now: float) -> None:
        verdict = self._reach.decide(self._job.roster.whole(), self._can_go_on_without, now)
        if verdict is None:
            return
        for worker, why in verdict.failed:
            self._agents.shun(Member(worker, 0))
            self._happen(WorkerFailed(worker, why))
        if verdict.error is not None:
            self._happen(GivenUp(verdict.error))

    def _look_at_nodes(self, now: float) -> None:
        for connection, members in self._agents.timed_out(self._can_go_on_without, now):
            # If it was asleep, it has to say again what runs there.
            connection.close()
            for member in members:
                self._fail(member, "is on a node without a heartbeat")

    def _can_go_on_without(self, workers: set[Worker]) -> bool:
        """Whether every stage has a worker left; one that may never be heard of again is none."""
        job = self._job
        unsure = (*self._returning, *self._doubtful, *self._unheard)
        without = workers | {member.worker for member in unsure}
        holders = (worker for worker in job.roster.whole() if worker not in without and job.has_state(worker))
        stages = {stage for worker in holders if (stage := job.cells.stage(worker)) is not None}
        return len(stages) == job.book.stages or job.book.alone(stages) is not None

    # Orders.

    def _carry_out(self, orders: Iterable[Order]) -> None:
        for order in orders:
            self._order_handlers[type(order)](order)

    def _fence(self, order: Fence) -> None:
        _LOGGER.info("%s", order.why, extra={"worker": name_of(order.member.worker)})
        self._agents.kill(order.member, self._process_of(order.member) or 0)
        self._connections.hang_up(order.member)
        if order.member in self._returning:
            # If it comes back all the same, it is as new.
            self._is_back(order.member)

    def _rename(self, order: Rename) -> None:
        self._moved_in[order.target.worker] = order.member.worker
        self._connections.rename(order.member, order.target)
        self._agents.rename(order.member, order.target)
        self._adaptation.moved(order.member.worker, order.target.worker)
        _LOGGER.info("%s is %s from now on", _called(order.member), _called(order.target))

    def _tell_settled(self, order: TellSettled) -> None:
        self._journal.write(settled=order.settled)
        self._connections.publish(order.settled)

    def _tell_row(self, order: TellRow) -> None:
        row = order.row
        self._journal.write(row=row.step, told=row)
        # Whoever hears of a step knows whether it may be forgotten.
        self._publish(self._journal.news())
        self._connections.publish(row)
        self._adaptation.row(row)
        logs.note(step=row.step)
        _LOGGER.debug("step %d: loss %s, %.3f s, %d workers", row.step, row.loss, row.seconds, row.live)
        self._copy_if_due()

    # Copies in memory.

    def _copy_if_due(self) -> None:
        """All workers have made another step, or begin with a generation."""
        copies, job = self._copies, self._job
        if copies is None or job.phase is not Phase.RUNNING or self._returning:
            return
        self._carry_out(copies.late(job.rows.next))
        step = copies.waits_for_scripts
        state = None if step is None else job.script_state(step)
        # What became of the last step is known one step later.
        if step is not None and state is not None and (state.settled or job.rows.next > step + 1):
            self._carry_out(copies.hear_scripts(state))
            self._note_copy()
        elif step is not None and job.rows.next > step + _SCRIPT_STEPS:
            # They were asked too late.
            copies.regroup()
        if (step := copies.progress(job.rows.next, has_begun=job.recovery.going > 0)) is not None:
            self._carry_out(copies.begin(step, self._group()))
            self._happen(CopyBegun(step))

    def _hear_copy(self, member: Member, message: CopyReply) -> None:
        if self._copies is not None and self._end is None:
            self._carry_out(self._copies.hear(member, message, self._group()))
            self._note_copy()

    def _note_copy(self) -> None:
        """For a coordinator that is started after this one."""
        newest = None if self._copies is None else self._copies.newest
        if newest is not None and newest.name != self._noted_copy:
            self._noted_copy = newest.name
            self._journal.write(copied=newest)
            _LOGGER.debug("%s is complete", newest.name)

    def _give_copy_up(self) -> None:
        if self._copies is not None:
            self._copies.regroup()

    def _group(self) -> Group:
        entries, cells = self._job.roster.entries, self._job.cells
        stages = {
            member.worker: stage for member in entries if (stage := cells.stage(member.worker)) is not None
        }
        members = [
            member
            for member, entry in entries.items()
            if entry.is_active and not entry.is_joining and member.worker in stages
        ]
        return Group(self._job.number, members, stages, self._agents.nodes(), self._job.book.once)

    def _usable_copy(self) -> tuple[CompleteCopy | None, str]:
        """One that every stage can go on from; or why there is none, in words that end a sentence."""
        if self._copies is None:
            return None, ""
        newest = self._copies.newest
        if newest is None:
            return None, "; no copy in memory is complete yet"
        if self._job.has_bad_copy:
            return None, "; the copy in memory cannot be used"
        if missing := newest.missing(self._agents.memories()):
            return None, f"; of the copy in memory the node that had {missing[0]} is gone"
        checkpoint = self.newest_checkpoint
        if checkpoint is not None and checkpoint.step > newest.step:
            return None, f"; the copy in memory is older, of step {newest.step}"
        return newest, ""

    def _tell_evaluation(self, order: TellEvaluation) -> None:
        result = order.result
        self._journal.write(evaluated=result)
        self._tell(f"evaluation {result.number} after {result.step} steps: loss {result.loss:.6f}")

    def _begin_save(self, order: BeginSave) -> None:
        begun = self._save_files.begin(order)
        if begun.why is None:
            self._journal.write(saving=begun.path)
        self._happen(begun)

    def _tell_saved(self, order: TellSaved) -> None:
        result = order.result
        self._journal.write(saved=result)
        said = f"not saved after {result.step} steps: {result.error}"
        self._tell(f"saved after {result.step} steps: {result.path}" if result.error is None else said)

    def _begin_gathering(self, order: BeginGathering) -> None:
        self._store.begin(order.number)
        self._give_copy_up()
        logs.note(generation=order.number)
        causes = ", ".join(self._job.recovery.causes)
        _LOGGER.info("regroup for generation %d: %s", order.number, causes)

    def _pids(self, workers: Iterable[Worker]) -> list[tuple[Member, int]]:
        """Of all their processes, as far as they are known."""
        members = (Member(worker, rank) for worker in workers for rank in range(self._tensor))
        known = ((member, self._connections.pid_of(member)) for member in members)
        return sorted((member, pid) for member, pid in known if pid is not None)

    def _begin_generation(self, order: BeginGeneration) -> None:
        assignment = order.assignment
        self._store.begin(order.number)
        # What was ordered before the workers are told to begin is forgotten by them.
        self._give_copy_up()
        self._adaptation.generation(assignment, order.cells)
        self._recut = order.recut
        workers = sorted(order.cells)
        cells = [order.cells[worker] for worker in workers]
        self._journal.write(
            generation=order.number,
            step=order.step,
            places=workers,
            job=self._job_digest,
            setup=self._programs.first,
            plan=[assignment.bundle, assignment.plan, assignment.standbys, int(assignment.on_purpose)],
            roles=[assignment.roles[cell] for cell in cells],
            **({} if cells == workers else {"cells": cells}),
            **({"joiners": sorted(order.joiners.items())} if order.joiners else {}),
            pids=self._pids((*workers, *order.joiners)),
        )
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
        """What the user waits for, until there is a first step."""
        _LOGGER.info("%s", what)
        self._connections.publish(Starting(what))

    def _finish_recovery(self, order: FinishRecovery) -> None:
        self._deadline = float("inf")
        if self._job.checkpoints.begins.step:
            self._journal.write(restored=True)
        told = order.recovery.told()
        if told.causes == ("start",):
            self._say_start("training begins; the first step may take longer")
        _LOGGER.info("generation %d runs after %.3f s", told.generation, told.total)
        self._connections.publish(told)
        self._tell_recut(told.total)
        self._adaptation.recovered(order.recovery, self._clock.now())

    def _begin_move(self, order: BeginMove) -> None:
        move = order.move
        self._journal.write(move=move.layout)
        joiners = len({transfer.joiner for transfer in move.recut.transfers})
        self._tell(f"re-cut begins: {size_text(move.recut.size)} of layers for {joiners} workers")

    def _end_move(self, order: EndMove) -> None:
        self._journal.write(move=None)
        self._adaptation.move_ended(order.why)
        if order.why is not None:
            self._tell(f"re-cut to {order.move.layout} given up: {order.why}")

    def _tell_recut(self, pause: float) -> None:
        """What it has cost, once every worker runs under the new cut."""
        move, self._recut = self._recut, None
        if move is not None:
            moved = f"{size_text(move.received)} moved in {move.arrived - move.began:.3g} s"
            self._tell(f"re-cut to {move.layout}: {moved}, a pause of {pause:.3f} s")

    def _begin_checkpoint(self, order: BeginCheckpoint) -> None:
        assert self._checkpoint_files is not None
        self._happen(*self._checkpoint_files.begin(order.name))

    def _complete_checkpoint(self, order: CompleteCheckpoint) -> None:
        assert self._checkpoint_files is not None
        self._checkpoint_files.complete(order.name, order.manifest, order.script)

    def _drop_checkpoint(self, order: DropCheckpoint) -> None:
        assert self._checkpoint_files is not None
        self._checkpoint_files.drop(order.name)

    def _prune_checkpoints(self, order: PruneCheckpoints) -> None:
        assert self._checkpoint_files is not None
        self._checkpoint_files.prune(order.name)

    def _end_job(self, order: EndJob) -> None:
        """Worker processes save what they should; agents end when all of them have."""
        if self._checkpoint_files is not None:
            for closed in self._checkpoint_files.finish():
                self._carry_out(self._job.handle(closed, self._clock.now()))
            # Not before that: a checkpoint that is complete now makes older ones go.
            self._checkpoint_files.close()
        self._end = JobEnded(order.error, order.no_plan, self.newest_checkpoint, self._job.steps)
        self._closes_at = self._clock.now() + (_LINGER_AFTER_ALL if order.error is None else _LINGER)
        if order.is_lost and self._options.max_resumes > 0 and self._goes_on(str(order.error)):
            self._closes_at = self._clock.now() + _LINGER_TO_GO_ON
            self._agents.kill_all()
            return
        self._journal.write(ended=self._end)
        self._publish(self._journal.news())
        _LOGGER.info("the job has ended: %s", order.error or "all steps are made")
        self._connections.publish(self._end)

    def _goes_on(self, error: str) -> bool:
        """Whether the job can, from the copy in memory or from the newest checkpoint; says so."""
        copy, why = self._usable_copy()
        checkpoint = self.newest_checkpoint
        if copy is not None:
            self._tell(f"{error}; the job goes on from copies in memory with step {copy.step}")
        elif checkpoint is not None:
            self._tell(f"{error}{why}; the job goes on from {checkpoint.path} with step {checkpoint.step}")
        elif why:
            self._tell(f"{error}{why}, and there is no checkpoint")
        self.goes_on, self.goes_on_from = copy is not None or checkpoint is not None, copy
        return self.goes_on


def _beginning(remembered: Remembered | None, copied: CompleteCopy | None) -> Beginning | None:
    """Where the journal says that this run begins."""
    if remembered is not None:
        return Beginning(remembered.restore, remembered.first_step, remembered.first_item)
    if copied is None:
        return None
    words = f"resuming with step {copied.step} from copies in the memory of nodes"
    return Beginning(copied.name, copied.step, copied.item, words=words)


def _reconnected(message: Join) -> Reconnected:
    return Reconnected(message.member, message.generation, message.is_training, message.asked, message.saves)


def _called(member: Member) -> str:
    return f"{name_of(member.worker)} rank {member.tp_rank}"
