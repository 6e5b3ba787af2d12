"""The loop of an agent: orders from the coordinator, ends of processes, heartbeats.

Workers are forked from this process, which has loaded torch and nothing else, so a new one is there in
milliseconds. There is one thread, and it never waits for a worker.
"""

import logging
import os
import secrets
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from recycle_runtime.agent.process_signs import exit_of
from recycle_runtime.agent.process_table import PROCESSES, ProcessTable, Row
from recycle_runtime.agent.processes import KernelProcesses, Processes
from recycle_runtime.agent.relay import Relay
from recycle_runtime.agent.search import Search
from recycle_runtime.agent.watch import Ended, ProcessWatch, WatchClock, WatchLimits
from recycle_runtime.files import take_folder
from recycle_runtime.options.run import RunOptions
from recycle_runtime.plan.worker_ids import worker_text
from recycle_runtime.program.user_frames import frames_text, user_frames
from recycle_runtime.protocol.access import Token
from recycle_runtime.protocol.address import address_now, term_now
from recycle_runtime.protocol.codec import ProtocolError, UnreachableError, WireError
from recycle_runtime.protocol.heartbeat_board import Board
from recycle_runtime.protocol.identity import node_number, process_number
from recycle_runtime.protocol.job_over import is_over_beside
from recycle_runtime.protocol.lifeline import hold_on
from recycle_runtime.protocol.messages.agents import (
    ENDED_WELL,
    AgentJoin,
    Heartbeat,
    JobEnding,
    JobOver,
    KillProcess,
    ProcessEnded,
    RenameProcess,
    RunningProcess,
    StartProcess,
    UseRelay,
)
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.wire import Message, ToWorkers
from recycle_runtime.protocol.near import near_name
from recycle_runtime.protocol.parent import die_with_parent
from recycle_runtime.protocol.surroundings import Line, Machine, Surroundings, completed

_LOGGER = logging.getLogger(__name__)
_ASK_TO_LEAVE = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_LOOK_EVERY = 0.1
_EXITS_EVERY = 0.02
_DEVICE_SECONDS = 30.0
"""The longest wait of a new worker for a process before it to let go of its device."""
_HEARTBEAT_EVERY = 0.5
_FOLLOW_EVERY = 2.0
_TAKEN_OUT = "was taken out"
"""End of a process that the coordinator wants to end."""
_GRACE = 5.0
"""Seconds that an agent that has to stop waits for word that the whole job ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions(RunOptions):
    """Options of an agent: those of the run, and where it finds itself."""

    host: str
    port: int
    token: Token
    state: Path = Path()
    """A folder for the board, and for what a restarted agent has to know."""
    limits: WatchLimits
    address_file: str | None = None
    """File with the coordinator's address, which is read again if it may change."""
    memory: str = ""
    """The number of the node's memory: see `node_memory`."""
    sees_exits: bool = False
    """A worker has failed as soon as the kernel begins to take it apart. Not where workers share a
    GPU: what one has queued there may still be written into the memory of the others."""


def _no_exit(_: int) -> None:
    return None


class _AskedToGoError(WireError):
    """There is no coordinator to connect to, and this process has to stop."""


class JobOverError(WireError):
    """There is nobody to connect to, and nothing to do."""


Work = Callable[[StartProcess, int, Board], int]
"""Work of a worker process, for its options and its line of the board; returns the exit status."""


class Agent:
    """The processes of one node."""

    def __init__(
        self,
        options: AgentOptions,
        work: Work,
        surroundings: Surroundings | None = None,
        processes: Processes | None = None,
        board: Board | None = None,
        name: str = "",
        relay: Relay | None = None,
    ) -> None:
        """FolderTakenError if another agent has the folder. All but the first two arguments are for tests."""
        self._options, self._work = options, work
        self._around, self._kernel = surroundings or Machine(), processes or KernelProcesses()
        self._lock = take_folder(options.state, "agent")
        self._node = node_number(options.state)
        self._name = name or f"{socket.gethostname()}/{secrets.token_hex(8)}"
        """So that the coordinator knows this agent when its connection is a new one, and the log the node."""
        self._board = board or Board(options.state / "board", options.workers_per_node)
        self._relay = relay or Relay(near_name(options.state), options.token)
        clock = WatchClock(self._around.now)
        exits = exit_of if options.sees_exits else _no_exit
        self._watch = ProcessWatch(self._board, options.limits, clock, processes=self._kernel, exit_of=exits)
        self._table = ProcessTable(options.state / PROCESSES, options.workers_per_node)
        self._ended: dict[Member, ProcessEnded] = {}
        """Ends of the last processes: a new coordinator may not know what the one before it has received."""
        self._is_over = False
        self._asked_to_go: int | None = None
        """By which signal."""
        self._leaves_at = float("inf")
        self._stays_until = 0.0
        """As long as the job ends in order."""
        self._looked = self._heartbeat_at = self._followed = 0.0
        self._where = options.host, options.port
        """At which the coordinator was found."""
        self._term = 0
        """The newest of a coordinator of which this agent knows."""
        self._adopt()
        self._line: Line | None = None

    def run(self) -> int:
        """Until the coordinator says that the job is over, or is gone for good."""
        completed(self.join())
        # What is ignored, as under nohup, stays ignored.
        for number in _ASK_TO_LEAVE:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._leave)
        try:
            completed(self.live())
        except _AskedToGoError:
            pass
        finally:
            for number in _ASK_TO_LEAVE:
                signal.signal(number, signal.SIG_IGN)
            self.end()
        return 0 if self._is_over else 128 + (self._asked_to_go or 0)

    async def join(self) -> None:
        """Tell the coordinator what there is room for; WireError if it does not answer for long."""
        self._line = await self._connect()

    async def live(self) -> None:
        """From then on, but for what concerns the whole process."""
        line = self._line
        assert line is not None
        while not (self._is_over or self._has_to_go):
            seconds = _EXITS_EVERY if self._options.sees_exits else _LOOK_EVERY
            ready = await self._kernel.ready(line, self._watch.descriptors, seconds, self._relay.server)
            if line.fileno() in ready:
                line = await self._listen(line)
            self._relay.turn()
            for ended in self._watch.ended(ready):
                # What it has said last is heard before its end is.
                self._relay.drain(ended.pid)
                self._pass_on()
                self._tell_end(ended)
            self._pass_on()
            self._look(self._around.now())
            if self._has_moved(self._around.now()):
                line = await self._reconnect(line)

    def _leave(self, number: int, _: object) -> None:
        """A signal asks this process to go. Whoever ends a whole job may tell all its processes at once, as
        Slurm does: then the coordinator says so, and workers are needed for a last checkpoint."""
        if self._asked_to_go is not None and number == signal.SIGINT:
            raise SystemExit(128 + number)
        if self._asked_to_go is None:
            self._asked_to_go, self._leaves_at = number, self._around.now() + _GRACE

    @property
    def _has_to_go(self) -> bool:
        return self._asked_to_go is not None and self._around.now() > max(self._leaves_at, self._stays_until)

    def let_go(self) -> None:
        """Of the folder, as any process does that ends."""
        os.close(self._lock)

    def end(self) -> None:
        """No worker outlives the job on this node."""
        for line in list(self._watch.processes):
            self._watch.kill(line, "the job is over")
        self._relay.close()
        self._table.forget()

    # What the loop does.

    async def _listen(self, line: Line) -> Line:
        """Obey what has come; the line to go on with."""
        try:
            line.fill()
            while (message := line.waiting()) is not None:
                self._obey(message)
        except WireError as error:
            if not self._is_over:
                _LOGGER.info("reconnects to the coordinator: %s", error)
                line = await self._reconnect(line)
        return line

    async def _reconnect(self, line: Line) -> Line:
        line.close()
        # They say again what may not have been heard, and look for the coordinator themselves if need be.
        self._relay.hang_up()
        self._line = await self._connect()
        return self._line

    def _pass_on(self) -> None:
        """Send messages of workers on. If that fails the connection is broken, and workers notice that."""
        with suppress(WireError):
            if self._line is not None:
                self._relay.pass_on(self._line.send)

    def _look(self, now: float) -> None:
        """Now and then: kill what hangs, and send a heartbeat."""
        if now - self._looked <= _LOOK_EVERY:
            return
        self._looked = now
        self._watch.look()
        if now - self._heartbeat_at > _HEARTBEAT_EVERY:
            self._heartbeat_at = now
            self._say(Heartbeat())

    def _has_moved(self, now: float) -> bool:
        """True if another coordinator has taken over: one that is paused does not close its connections."""
        if self._options.address_file is None or self._is_over or now - self._followed < _FOLLOW_EVERY:
            return False
        self._followed = now
        return address_now(self._options) != self._where

    def _tell_end(self, ended: Ended) -> None:
        member = self._table.remove(ended.line)
        if member is not None:
            _LOGGER.info("process %d: %s", ended.pid, ended.how, extra=_of(member))
            if ended.how not in (_TAKEN_OUT, ENDED_WELL):
                self._table.failed(ended.line)
            where = frames_text(user_frames(ended.frames))
            number = process_number(self._node, ended.pid)
            said = ProcessEnded(member, number, ended.how, ended.fault_at, ended.stuck_in, where)
            self._remember_end(said)
            self._say(said)

    def _remember_end(self, ended: ProcessEnded) -> None:
        """As many as could belong to one generation."""
        self._ended.pop(ended.member, None)
        self._ended[ended.member] = ended
        while len(self._ended) > self._options.workers_per_node:
            del self._ended[next(iter(self._ended))]

    def _obey(self, message: Message) -> None:
        match message:
            case StartProcess() as order:
                self._start(order)
            case KillProcess(member, pid):
                row = self._table.row_of(member)
                if row is not None and pid in (0, process_number(self._node, row.pid)):
                    self._watch.kill(row.line, _TAKEN_OUT)
            case RenameProcess(member, to):
                self._table.rename(member, to)
            case ToWorkers(told):
                self._relay.tell(told)
            case UseRelay(is_on):
                (self._relay.open if is_on else self._relay.close)()
            case JobEnding(seconds):
                self._stays_until = self._around.now() + seconds + _GRACE
            case JobOver():
                self._is_over = True
            case _:
                raise ProtocolError(f"{type(message).__name__} is no order to an agent")

    # Processes.

    def _start(self, order: StartProcess) -> None:
        member, line = order.member, self._table.free_line()
        if line is None:
            self._say(ProcessEnded(member, 0, "could not start: its node is full", 0))
            return
        self._board.clear(line)
        sys.stdout.flush()
        sys.stderr.flush()
        agent = os.getpid()
        pid = self._kernel.start(lambda: self._become_worker(order, line, agent), member, line)
        _LOGGER.info("process %d: starts as tensor-parallel rank %d", pid, member.tp_rank, extra=_of(member))
        self._watch.add(line, pid)
        self._table.add(Row(member, line, pid))

    def _become_worker(self, order: StartProcess, line: int, agent: int) -> None:
        status = 1
        try:
            hold_on()
            if self._options.end_with_parent:
                # No handler and no held interpreter lock is in the way of this one.
                die_with_parent(agent)
            # Such a signal may reach all processes of a job; it is for the first of them to end the others.
            for number in _ASK_TO_LEAVE:
                signal.signal(number, _stay if number == signal.SIGTERM else signal.SIG_IGN)
            # Processes that the user's code starts are ended by it.
            os.register_at_fork(after_in_child=_go_as_others_do)
            for descriptor in self._watch.ending:
                # The device of this process may be that one's, which has its memory still.
                select.select([descriptor], [], [], _DEVICE_SECONDS)
            for descriptor in self._watch.descriptors:
                os.close(descriptor)
            self._relay.abandon()
            if self._line is not None:
                os.close(self._line.fileno())
            status = self._work(order, line, self._board)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _adopt(self) -> None:
        """Watch the workers of the agent before this one, if there was one."""
        for row in self._table.written():
            if self._kernel.is_ours(row.pid):
                self._watch.add(row.line, row.pid)
                self._table.add(row)
                _LOGGER.info("process %d: adopted", row.pid, extra=_of(row.member))
                if self._options.end_with_parent:
                    # It would outlive this agent.
                    self._watch.kill(row.line, "its agent has ended")
            else:
                number = process_number(self._node, row.pid)
                self._remember_end(ProcessEnded(row.member, number, "ended while its agent was down", 0))

    # The coordinator.

    def _say(self, message: Heartbeat | ProcessEnded) -> None:
        """Send a message, if connected. Ended processes are reported again on the next connection: that this
        one has taken the message does not mean that the coordinator has received it."""
        with suppress(WireError):
            if self._line is not None:
                self._line.send(message)

    async def _connect(self) -> Line:
        """WireError when the coordinator has not answered for long, or has answered and refused, or is not
        there because the job has ended."""
        options, search = self._options, Search(self._options.coordinator_timeout, self._around.now())
        while True:
            try:
                self._where = address_now(options)
                self._term = max(self._term, term_now(options))
                line = await self._around.connect(*self._where, options.token)
                line.send(self._hello())
                return line
            except WireError as error:
                if isinstance(error, UnreachableError) and is_over_beside(options.address_file):
                    raise JobOverError("the job has ended, and no coordinator is there any more") from None
                pause = search.failed(error, self._around.now())
                if self._has_to_go:
                    raise _AskedToGoError(str(error)) from None
                if pause is None:
                    raise
                await self._around.sleep(pause)

    def _hello(self) -> AgentJoin:
        rows = [row for row in self._table.rows if row.line in self._watch.processes]
        running = {row.member: process_number(self._node, row.pid) for row in rows}
        return AgentJoin(
            self._name,
            self._options.workers_per_node,
            tuple(RunningProcess(*process) for process in running.items()),
            self._term,
            self._options.memory,
            self._relay.is_open,
            tuple(self._ended.values()),
        )


def _of(member: Member) -> dict[str, str]:
    """The worker that a log line is about."""
    return {"worker": worker_text(member.worker)}


def _stay(number: int, _: object) -> None:
    """Not ignored: what is, a process that is started from here would ignore too."""


def _go_as_others_do() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
