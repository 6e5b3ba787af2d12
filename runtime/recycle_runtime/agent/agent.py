"""The loop of an agent: orders from the coordinator, ends of processes, heartbeats.

Workers are forked from this process, which has loaded torch and nothing else, so a new one is there in
milliseconds. There is one thread, and it never waits for a worker.
"""

import json
import logging
import os
import secrets
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from recycle_runtime.agent.watch import Limits, Watch
from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.codec import ProtocolError, WireError
from recycle_runtime.protocol.heartbeat_board import Board
from recycle_runtime.protocol.identity import node_number, process_number
from recycle_runtime.protocol.messages import (
    AgentJoin,
    FromAgent,
    Heartbeat,
    InjectedFault,
    JobOver,
    KillProcess,
    Member,
    Message,
    ProcessEnded,
    RenameProcess,
    RunningProcess,
    StartProcess,
)

_LOGGER = logging.getLogger(__name__)
_LOOK_EVERY = 0.1
_HEARTBEAT_EVERY = 0.5
_KNOCK_EVERY = 0.1
_KNOCK_FOR = 30.0


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What an agent is told when it starts."""

    host: str
    port: int
    token: str
    workers_per_node: int
    """Worker processes that this node has room for."""
    state: Path
    """A folder for the board, and for what an agent that starts again has to know."""
    limits: Limits


Work = Callable[[Member, int, tuple[InjectedFault, ...], Board], int]
"""What a worker process does: its member, its line, its faults, the board; the exit status."""


class Agent:
    """The processes of one node."""

    def __init__(self, options: AgentOptions, work: Work) -> None:
        self._options, self._work = options, work
        options.state.mkdir(parents=True, exist_ok=True)
        self._node = node_number(options.state)
        self._name = secrets.token_hex(8)
        """So that the coordinator knows this agent when its connection is a new one."""
        self._board = Board(options.state / "board", options.workers_per_node)
        self._watch = Watch(self._board, options.limits)
        self._lines: dict[Member, int] = {}
        self._untold: list[ProcessEnded] = []
        """Ends of processes that the coordinator has not heard of."""
        self._is_over = False
        self._told = 0.0
        self._adopt()
        self._channel = self._connect()

    def run(self) -> int:
        """Until the coordinator says that the job is over, or is gone for good."""
        signal.signal(signal.SIGTERM, _leave)
        looked = 0.0
        try:
            while not self._is_over:
                ready = self._wait()
                if self._channel.fileno() in ready:
                    self._listen()
                self._bury(ready)
                if time.monotonic() - looked > _LOOK_EVERY:
                    looked = time.monotonic()
                    self._watch.look()
                    self._send_heartbeat(looked)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for line in list(self._watch.processes):
                self._watch.kill(line, "the job is over")
            self._forget()
        return 0

    def _send_heartbeat(self, now: float) -> None:
        if now - self._told > _HEARTBEAT_EVERY:
            self._told = now
            self._say(Heartbeat())

    def _wait(self) -> set[int]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            for process in self._watch.processes.values():
                if process.descriptor >= 0:
                    selector.register(process.descriptor, selectors.EVENT_READ)
            return {key.fd for key, _ in selector.select(_LOOK_EVERY)}

    def _listen(self) -> None:
        try:
            self._channel.fill()
            while (message := self._channel.waiting()) is not None:
                self._obey(message)
        except WireError as error:
            if not self._is_over:
                _LOGGER.info("connects to the coordinator again: %s", error)
                self._channel = self._connect()

    def _obey(self, message: Message) -> None:
        match message:
            case JobOver():
                self._is_over = True
            case StartProcess(member, faults):
                self._start(member, faults)
            case KillProcess(member):
                if member in self._lines:
                    self._watch.kill(self._lines[member], "was taken out")
            case RenameProcess(member, to):
                if member in self._lines:
                    self._lines[to] = self._lines.pop(member)
                    self._remember()
            case _:
                raise ProtocolError(f"{type(message).__name__} is no order to an agent")

    def _start(self, member: Member, faults: tuple[InjectedFault, ...]) -> None:
        taken = set(self._lines.values())
        line = next(number for number in range(self._options.workers_per_node) if number not in taken)
        self._board.clear(line)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._become_worker(member, line, faults)
        self._lines[member] = line
        self._watch.add(line, pid)
        self._remember()
        _LOGGER.info("process %d: starts as tensor-parallel rank %d", pid, member.tp_rank, extra=_of(member))

    def _become_worker(self, member: Member, line: int, faults: tuple[InjectedFault, ...]) -> None:
        status = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for process in self._watch.processes.values():
                if process.descriptor >= 0:
                    os.close(process.descriptor)
            os.close(self._channel.fileno())
            status = self._work(member, line, faults, self._board)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _bury(self, ready: set[int]) -> None:
        for ended in self._watch.ended(ready):
            member = next((key for key, line in self._lines.items() if line == ended.line), None)
            if member is None:
                continue
            del self._lines[member]
            self._remember()
            _LOGGER.info("process %d: %s", ended.pid, ended.how, extra=_of(member))
            self._say(self._gone(member, ended.pid, ended.how, ended.fault))

    def _say(self, message: FromAgent) -> None:
        try:
            self._channel.send(message)
        except WireError:
            if isinstance(message, ProcessEnded):
                self._untold.append(message)

    def _connect(self) -> Channel:
        deadline = time.monotonic() + _KNOCK_FOR
        while True:
            try:
                channel = Channel(self._options.host, self._options.port, self._options.token)
                running = tuple(
                    RunningProcess(member, self._number(self._watch.processes[line].pid))
                    for member, line in self._lines.items()
                    if line in self._watch.processes
                )
                channel.send(AgentJoin(self._name, self._options.workers_per_node, running))
                while self._untold:
                    channel.send(self._untold[0])
                    del self._untold[0]
                return channel
            except WireError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_KNOCK_EVERY)

    # What the next agent of this node has to know.

    def _remember(self) -> None:
        rows = [
            [list(member.worker), member.tp_rank, line, self._watch.processes[line].pid]
            for member, line in self._lines.items()
            if line in self._watch.processes
        ]
        aside = self._options.state / "processes.new"
        aside.write_text(json.dumps(rows), encoding="utf-8")
        aside.replace(self._options.state / "processes.json")

    def _adopt(self) -> None:
        """Watch the workers of the agent before this one, if there was one."""
        try:
            rows = json.loads((self._options.state / "processes.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return
        for place, tp_rank, line, pid in rows:
            member = Member((int(place[0]), int(place[1])), int(tp_rank))
            if _is_ours(int(pid)):
                self._lines[member] = int(line)
                self._watch.add(int(line), int(pid))
                _LOGGER.info("process %d: adopted", int(pid), extra=_of(member))
            else:
                self._untold.append(self._gone(member, int(pid), "ended unwatched", 0))

    def _forget(self) -> None:
        (self._options.state / "processes.json").unlink(missing_ok=True)

    def _number(self, pid: int) -> int:
        return process_number(self._node, pid)

    def _gone(self, member: Member, pid: int, how: str, fault: int) -> ProcessEnded:
        return ProcessEnded(member, self._number(pid), how, fault)


def _is_ours(pid: int) -> bool:
    """Whether a process is a worker of this job and no other that has got its number since."""
    try:
        started = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return started == Path("/proc/self/cmdline").read_bytes()


def _of(member: Member) -> dict[str, str]:
    """The worker that a log line is about."""
    return {"worker": "{}:{}".format(*member.worker)}


def _leave(*_: object) -> None:
    raise SystemExit(143)
