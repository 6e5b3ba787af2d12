"""Cost of a coordinator at size: `python -m bench.control_plane [SIZE ...]`, 256 to 4,096 by default.

A real coordinator, in a process of its own, against simulated processes on loopback: agents for eight workers
each, and workers that say and ask for what real ones do, over connections of their own, but train nothing.
All arrive and meet; make a few steps; one worker is killed; the others leave, report, are told to go on, and
meet again. CPU seconds are those of the coordinator's process alone, from the kernel's clock of it, so that
little depends on what else runs; bytes are those of all its connections.

Each size is measured twice: with connections of the workers' own, and through agents that relay. What the
workers of a node say at the same moment then travels together; `--one-by-one` has every word travel alone, as
it would if no two of them ever spoke in the same turn of their agent.

All simulated processes share one, so everything takes longer than it would: heartbeats are left out while
something is measured, and what they cost is measured by itself.
"""

import argparse
import hashlib
import math
import os
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from bench.report import Section
from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.frontend.load import parse_job_text
from recycle_compiler.planner.compile import compile_job
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.worker_ids import workers_in
from recycle_runtime.protocol.framing import (
    FramingSession,
    Response,
    frame_handshake,
    new_nonce,
    new_token,
    proof,
    unframe_challenge,
    unframe_verdict,
)
from recycle_runtime.protocol.messages.agents import AgentJoin, Heartbeat, ProcessEnded, StartProcess
from recycle_runtime.protocol.messages.generations import Began, Go, HeldState, Join, Leave, LeftGroup
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.observers import Observe, Recovered
from recycle_runtime.protocol.messages.steps import LossShare, StepDone, StepRow
from recycle_runtime.protocol.messages.store import (
    StoreGather,
    StoreOpen,
    StoreRefusal,
    StoreSet,
    StoreValues,
)
from recycle_runtime.protocol.messages.wire import VERSION, FromWorkers, Message, Passed, Relayed, ToWorkers
from recycle_runtime.transport.choose import neighbours_of
from recycle_runtime.transport.interface import Grid, grid_of
from recycle_runtime.transport.sparse_group import met_by

TITLE = "The coordinator at size"
SIZES = (256, 512, 1024, 2048, 4096)
STAGES = 32
PER_NODE = 8
STEPS = 4
REST = 4.0
"""Seconds of heartbeats and nothing else."""
_ADDRESS_LENGTH = 208
"""Letters of an address of gloo's, in base64."""
_PATIENCE = 600.0
_AT_ONCE = 64
"""Connections that are made together."""
_JOB = """\
job size {{
  parallel {{ pipeline = {stages}  data = {pipelines} }}
  batch    {{ microbatches = 2 }}
  profile  {{ forward = 1  backward_input = 1  backward_weight = 1  optimizer = 1 }}
  tolerate {{ failures = 1 }}
}}
"""


class Figures(NamedTuple):
    """Of one size; CPU seconds of the coordinator, and megabytes."""

    size: int
    how: str
    """Workers connect: `direct`, or `relay`."""
    arrive: float
    """Until all are told to begin."""
    meeting: float
    """From there until all train."""
    step: float
    """Of one step of all."""
    rest: float
    """Of a second in which nothing happens: heartbeats of all agents, twice, and a look at everybody."""
    failure_to_go: float
    """From the end of a worker until all others are told to go on."""
    second_meeting: float
    through: float
    """Bytes through the coordinator in the second meeting, 1e6."""
    memory: float
    """The most it held, 1e6 bytes."""
    files: int
    """That it had open in the end."""
    wall: float
    """Seconds from the end of the worker until all others train."""


class Client:
    """One connection, from the handshake on."""

    def __init__(self, loop: "Loop", hear: Callable[[Message], None], first: Message) -> None:
        self._loop, self._hear, self._first = loop, hear, first
        self._socket = socket.create_connection(loop.address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._session: FramingSession | None = None
        self._nonces: tuple[str, str] | None = None
        loop.selector.register(self._socket, selectors.EVENT_READ, self)

    @property
    def stands(self) -> bool:
        """True if both ends have proved themselves."""
        return self._session is not None

    def send(self, message: Message) -> None:
        assert self._session is not None
        self._send(self._session.frame(message))

    def close(self) -> None:
        self._loop.selector.unregister(self._socket)
        self._socket.close()

    def read(self) -> None:
        data = self._socket.recv(1 << 18)
        assert data, "the coordinator has hung up"
        self._loop.bytes += len(data)
        self._buffer += data
        while self._session is None:
            if not self._shake_hands():
                return
        while (message := self._session.unframe(self._buffer)) is not None:
            self._hear(message)

    def _shake_hands(self) -> bool:
        token = self._loop.token
        if self._nonces is None:
            challenge = unframe_challenge(self._buffer)
            if challenge is None:
                return False
            servers, clients = self._nonces = challenge.nonce, new_nonce()
            mine = proof(token, "client", VERSION, servers, clients)
            self._send(frame_handshake(Response(VERSION, clients, mine)))
        if unframe_verdict(self._buffer) is None:
            return False
        self._session = FramingSession(token, "client", *self._nonces)
        self.send(self._first)
        return True

    def _send(self, data: bytes) -> None:
        self._loop.bytes += len(data)
        self._socket.sendall(data)


class Node:
    """An agent, which may speak for its workers."""

    def __init__(self, fleet: "Fleet", number: int, *, one_by_one: bool) -> None:
        self._fleet, self._one_by_one = fleet, one_by_one
        self._lines: dict[int, Callable[[Message], None]] = {}
        self._newest = 0
        self._said: list[Passed] = []
        self.client = Client(fleet.loop, self._obey, AgentJoin(f"node{number}/x", PER_NODE, ()))

    def _obey(self, message: Message) -> None:
        match message:
            case StartProcess(member):
                self._fleet.nodes[member] = self
                self._fleet.workers[member] = Worker(self._fleet, member, self)
            case ToWorkers(told):
                for lines, said in told.passed:
                    for line in lines:
                        if said is not None and line in self._lines:
                            self._lines[line](said)
            case _:
                pass

    def open(self, hear: Callable[[Message], None]) -> int:
        self._newest += 1
        self._lines[self._newest] = hear
        return self._newest

    def say(self, line: int, message: Message | None) -> None:
        self._said.append(Passed((line,), message))
        if self._one_by_one:
            self.pass_on()

    def pass_on(self) -> None:
        said, self._said = self._said, []
        if said:
            self.client.send(FromWorkers(Relayed(tuple(said))))


class NearClient:
    """A connection to an agent that relays."""

    stands = True

    def __init__(self, node: Node, hear: Callable[[Message], None], first: Message) -> None:
        self._node, self._line = node, node.open(hear)
        node.say(self._line, first)

    def send(self, message: Message) -> None:
        self._node.say(self._line, message)

    def close(self) -> None:
        self._node.say(self._line, None)


class Loop:
    """All connections of the simulated processes."""

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self.address, self.token = address, token
        self.selector = selectors.DefaultSelector()
        self.bytes = 0
        self.often: Callable[[], None] = lambda: None

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not is_so():
            for key, _ in self.selector.select(0.05):
                key.data.read()
            self.often()
            if time.monotonic() > deadline:
                raise SystemExit(f"waited in vain for this: {what}")


class Worker:
    """A worker process that trains nothing."""

    def __init__(self, fleet: "Fleet", member: Member, node: Node) -> None:
        self._fleet, self.member, self.pid, self._node = fleet, member, 1 + len(fleet.workers), node
        self.generation = 0
        self.step = 0
        self._store: Client | NearClient | None = None
        self._asked: list[tuple[str, tuple[str, ...]]] = []
        self._order: Go | None = None
        join = Join(member, self.pid, generation=0, asked=0, is_training=False)
        self.line = self._connect(self._hear, join)

    def _connect(self, hear: Callable[[Message], None], first: Message) -> Client | NearClient:
        if self._fleet.relays:
            return NearClient(self._node, hear, first)
        return Client(self._fleet.loop, hear, first)

    def _hear(self, message: Message) -> None:
        match message:
            case Leave(generation):
                report = HeldState(self.step, is_fresh=self.step == 0)
                self.line.send(LeftGroup(generation, report))
            case Go():
                self._order = message
                self.generation, self.step = message.generation, message.step
                self._fleet.told += 1
            case _:
                pass

    def go(self) -> None:
        """As it was told to; all begin when all were told, so that both can be measured apart."""
        assert self._order is not None
        self._asked = self._fleet.meetings(self._order)
        if self._store is None:
            self._store = self._connect(self._answered, StoreOpen())
        self._meet()

    def _meet(self) -> None:
        """The next group, or the end of the meeting."""
        if not self._asked:
            assert self._order is not None
            self.line.send(Began(self._order.generation, 1 << 20, None))
            return
        self._fleet.waiting.append(self)

    def ask(self) -> None:
        """Time at which its connection to the store stands."""
        assert self._store is not None
        # No two have the same.
        address = hashlib.sha512(str(self.pid).encode()).hexdigest() * 2
        self._store.send(StoreSet(self._asked[0][0], address[:_ADDRESS_LENGTH]))
        self._store.send(StoreGather(self._asked[0][1]))

    def _answered(self, message: Message) -> None:
        assert self._store is not None
        match message:
            case StoreValues():
                del self._asked[0]
                self._meet()
            case StoreRefusal():
                self._asked = []
            case _:
                raise AssertionError(message)

    def make_step(self) -> None:
        if self.member.worker[1] == STAGES - 1:
            self.line.send(LossShare(self.step, 0.5))
        times = {"F": 0.01, "I": 0.01, "W": 0.01, "O": 0.001, "R": 0.001}
        self.line.send(StepDone(self.step, 0.5, 0.1, 0, times))
        self.step += 1

    def end(self) -> None:
        self.line.close()
        if self._store is not None:
            self._store.close()
            self._store = None

    @property
    def store_stands(self) -> bool:
        return self._store is not None and self._store.stands


class Fleet:
    """All simulated processes of a job."""

    def __init__(self, bundle: Bundle, loop: Loop, *, relays: bool, one_by_one: bool) -> None:
        self.bundle, self.loop, self.relays, self._one_by_one = bundle, loop, relays, one_by_one
        self.workers: dict[Member, Worker] = {}
        self.agents: list[Node] = []
        self.nodes: dict[Member, Node] = {}
        self.told = 0
        self.waiting: list[Worker] = []
        loop.often = self._often
        self.begun = self.row = -1
        """As observers hear: the last generation that all have begun, and the last step that all made."""
        self.observer = Client(loop, self._observe, Observe(None))
        self.has_heartbeats = False
        self._heartbeat_at = 0.0
        self._grid = 0, Grid((), 1, 0)

    def start(self, nodes: int) -> None:
        for number in range(nodes):
            self.agents.append(Node(self, number, one_by_one=self._one_by_one))
            if number % _AT_ONCE == 0:
                # Real ones try again when too many come at the same moment.
                self.loop.until(lambda: all(each.client.stands for each in self.agents), "agents are let in")

    def _observe(self, message: Message) -> None:
        match message:
            case Recovered():
                self.begun = message.generation
            case StepRow():
                self.row = message.step
            case _:
                pass

    def meet(self) -> None:
        """Until the coordinator knows that all train."""
        workers = list(self.workers.values())
        for first in range(0, len(workers), _AT_ONCE):
            some = workers[first : first + _AT_ONCE]
            for worker in some:
                worker.go()
            # All share one process: those that have to wait for their turn too long would be strangers.
            self.loop.until(lambda some=some: all(worker.store_stands for worker in some), "all are let in")
        (generation,) = {worker.generation for worker in self.workers.values()}
        self.loop.until(lambda: self.begun == generation, "all train")

    def meetings(self, order: Go) -> list[tuple[str, tuple[str, ...]]]:
        """Of each group: where this process leaves its address, and those that it reads."""
        grid, bundle = self._grid_of(order), self.bundle
        role = order.role
        stream = bundle.stream(order.plan, role) if role in bundle.workers(order.plan) else ()
        me = grid.rank(role, 0)
        neighbours = {grid.rank(other, 0) for other in neighbours_of(stream, role, bundle.pipelines)}
        peers = grid.sum_groups(role, 0)[0].ranks
        folders = [
            (f"g{order.generation}/first/all/0", me, met_by(me, grid.size, neighbours)),
            (f"g{order.generation}/first/holders/{role[1]}/0/0", peers.index(me),
             met_by(peers.index(me), len(peers), ())),
        ]  # fmt: skip
        return [
            (f"{folder}/{rank}", tuple(f"{folder}/{other}" for other in others))
            for folder, rank, others in folders
        ]

    def _grid_of(self, order: Go) -> Grid:
        """The same for all workers of a generation."""
        if self._grid[0] != order.generation:
            self._grid = order.generation, grid_of(self.bundle, workers_in(order.grid))
        return self._grid[1]

    def _often(self) -> None:
        for agent in self.agents:
            agent.pass_on()
        waiting, self.waiting = self.waiting, []
        for worker in waiting:
            if worker.store_stands:
                worker.ask()
            else:
                self.waiting.append(worker)
        now = time.monotonic()
        if self.has_heartbeats and now - self._heartbeat_at > 0.5:
            self._heartbeat_at = now
            for agent in self.agents:
                if agent.client.stands:
                    agent.client.send(Heartbeat())


class Coordinator:
    """The real one."""

    def __init__(self, plan: Path, state: Path, token: str, relay: str) -> None:
        command = [sys.executable, "-m", "recycle_runtime.cli", "coordinator", str(plan), "--steps", "1000"]
        command += ["--listen", "127.0.0.1:0", "--state", str(state), "--restart-workers", "off"]
        command += ["--plan-ahead", "off", "--replan", "off", "--recut", "off", "--heartbeat-timeout", "600"]
        command += ["--relay", relay]
        self._process = subprocess.Popen(command, env=os.environ | {"RECYCLE_TOKEN": token})
        deadline = time.monotonic() + _PATIENCE
        while not (state / "address").exists():
            assert self._process.poll() is None and time.monotonic() < deadline, "no coordinator"
            time.sleep(0.05)
        host, _, port = (state / "address").read_text().rpartition(":")
        self.address = host, int(port)

    def cpu(self) -> float:
        """Seconds so far, of all its threads and of no process that it has started."""
        # As clock_getcpuclockid() makes it.
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def memory(self) -> float:
        """The most it has held, in bytes."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return 1024 * next(float(line.split()[1]) for line in lines if line.startswith("VmHWM"))

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def measure(size: int, folder: Path, *, relays: bool, one_by_one: bool = False) -> Figures:
    """One job of this size, from its first process to the meeting after a failure."""
    source = _JOB.format(stages=STAGES, pipelines=size // STAGES)
    plan = folder / "size.plan"
    plan.write_bytes(bundle_bytes(source=source, plans=compile_job(parse_job_text(source, "size.job"))))
    token = new_token()
    coordinator = Coordinator(plan, folder / "state", token, "on" if relays else "off")
    try:
        loop = Loop(coordinator.address, token)
        fleet = Fleet(Bundle.read(str(plan)), loop, relays=relays, one_by_one=one_by_one)
        return _measure(size, coordinator, fleet)
    finally:
        coordinator.end()


def _measure(size: int, coordinator: Coordinator, fleet: Fleet) -> Figures:
    loop, cpu = fleet.loop, [coordinator.cpu()]
    fleet.start(size // PER_NODE)
    loop.until(lambda: fleet.told == size, "all are told to begin")
    cpu.append(coordinator.cpu())
    fleet.meet()
    cpu.append(coordinator.cpu())
    for _ in range(STEPS):
        for worker in fleet.workers.values():
            worker.make_step()
    loop.until(lambda: fleet.row == STEPS - 1, "all have made their steps")
    cpu.append(coordinator.cpu())
    fleet.has_heartbeats = True
    _pass(loop, REST)
    fleet.has_heartbeats = False
    cpu.append(coordinator.cpu())
    # On the stage for which there is a plan, so that nobody waits for one.
    (failed,) = fleet.bundle.plans[1].failed
    lost = fleet.workers.pop(Member((0, failed[1]), 0))
    fleet.told = 0
    began = time.monotonic()
    lost.end()
    node = fleet.nodes[lost.member]
    # What it has said last comes before its end.
    node.pass_on()
    node.client.send(ProcessEnded(lost.member, lost.pid, "was killed by signal 9", 0))
    loop.until(lambda: fleet.told == size - 1, "all others are told to go on")
    cpu.append(coordinator.cpu())
    sent = loop.bytes
    fleet.meet()
    wall = time.monotonic() - began
    cpu.append(coordinator.cpu())
    through, memory, files = (loop.bytes - sent) / 1e6, coordinator.memory() / 1e6, coordinator.files()
    arrive, meeting, steps, rest, go, again = (later - earlier for earlier, later in pairwise(cpu))
    how = "relay" if fleet.relays else "direct"
    return Figures(
        size, how, arrive, meeting, steps / STEPS, rest / REST, go, again, through, memory, files, wall
    )


def _pass(loop: Loop, seconds: float) -> None:
    until = time.monotonic() + seconds
    loop.until(lambda: time.monotonic() > until, "some time")


def exponent(sizes: Sequence[int], figures: Sequence[float]) -> float:
    """Of the power of N that fits best: least squares of logarithms."""
    across, up = [math.log(size) for size in sizes], [math.log(figure) for figure in figures]
    middle, height = sum(across) / len(across), sum(up) / len(up)
    products = sum((x - middle) * (y - height) for x, y in zip(across, up, strict=True))
    return products / sum((x - middle) ** 2 for x in across)


def section(sizes: Sequence[int] = SIZES, *, one_by_one: bool = False) -> Section:
    """Two rows for each size, and two for how each figure grows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found: list[Figures] = []
    for size in sizes:
        for relays in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                found.append(measure(size, Path(folder), relays=relays, one_by_one=one_by_one))
            print("  ".join(_cells(found[-1])), flush=True)
    words = (
        f"A real coordinator against simulated processes on loopback, {STAGES} stages, {PER_NODE} workers a "
        "node; one worker fails. Workers have connections of their own (direct), or speak through their "
        "agents (relay). CPU seconds of the coordinator's process alone: till all are told to begin; "
        "the meeting, until all train; a step of all; a second of rest, with two heartbeats of every node; "
        'from the end of a worker until all others are told to go on ("go"); the meeting after that, and '
        "the megabytes through it. Then the most that it held, the files it had open, and the seconds by "
        "the clock from the end of the worker until all others train, most of which the simulated processes "
        "take: they share one."
    )
    rows = [_cells(one) for one in found]
    if len(sizes) > 1:
        n_log_n = exponent(sizes, [size * math.log(size) for size in sizes])
        for how in ("direct", "relay"):
            columns = list(zip(*(one for one in found if one.how == how), strict=True))[2:]
            powers = (exponent(sizes, column) for column in columns)
            rows.append(("grows as N to the", how, *(f"{power:.2f}" for power in powers)))
        both = exponent(sizes, [size * math.log(size * size / STAGES) for size in sizes])
        words += (
            f" The last rows are the power of N that fits best; for N log N it would be {n_log_n:.2f}, and "
            f"for N log N + N log (N / {STAGES}), the two groups that every process meets, {both:.2f}."
        )
    return Section(
        title=TITLE,
        command="python -m bench.control_plane",
        words=words,
        columns=(
            "processes", "workers", "all arrive", "meeting", "a step", "a second of rest", 'failure to "go"',
            "meeting after it", "MB through it", "MB held", "files open", "clock",
        ),
        rows=tuple(rows),
    )  # fmt: skip


def _cells(figures: Figures) -> tuple[str, ...]:
    size, how, *seconds, through, memory, files, wall = figures
    cpu = (f"{each:.3f}" for each in seconds)
    return f"{size:,}", how, *cpu, f"{through:.1f}", f"{memory:.0f}", f"{files:,}", f"{wall:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="what a coordinator costs at size")
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES, metavar="SIZE")
    parser.add_argument("--one-by-one", action="store_true", help="agents pass every word on by itself")
    arguments = parser.parse_args()
    print(section(arguments.sizes, one_by_one=arguments.one_by_one).text())


if __name__ == "__main__":
    main()
