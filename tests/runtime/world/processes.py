"""Simulated processes and the kernel that runs them: started, stopped, killed, and seen to end."""

import signal
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NoReturn

from recycle_runtime.agent.process_signs import Signs
from recycle_runtime.protocol.access import Token, access_of
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.heartbeat_board import Board, BoardLine
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.transport.sockets import Ends
from tests.runtime.world.loop import (
    Loop,
    LoopProcess,
    Pending,
    SimulatedQueue,
    SimulatedSignal,
    TaskEnded,
)
from tests.runtime.world.near import NearPlaces
from tests.runtime.world.network import (
    CONNECT_SECONDS,
    HANDSHAKE_SECONDS,
    End,
    Network,
    Node,
    Pipe,
    SimulatedLine,
)

Accept = Callable[["SimulatedProcess", str], "End | None"]
"""True if the coordinator listens: its end of a new connection from this process, which knows this token."""


class SimulatedProcess(LoopProcess):
    """One process, with the surroundings that the real code asks for."""

    def __init__(self, kernel: "Kernel", name: str, node: Node, pid: int, token: str) -> None:
        super().__init__(kernel.loop, name)
        self.kernel, self.node, self.pid, self.token = kernel, node, pid, token
        self.number = pid
        self.how = "ended with status 0"
        self.lines: list[SimulatedLine] = []
        self.on_end: list[Callable[[], None]] = []
        self.echoes_until = self.echo_seconds = 0.0
        """Until when what it says is heard more than once, and how much later."""
        self.is_forgetful = False
        """Its transport does not tell who waits that a connection broke."""

    # As `protocol.surroundings.Surroundings`.

    def now(self) -> float:
        return self.loop.now + self.node.offset

    async def sleep(self, seconds: float) -> None:
        await self.loop.sleep(self, seconds)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str = "") -> None:
        super().start(work)

    start_thread = start

    def thread(self) -> int:
        return 0 if self.running is None else self.running.number

    def stay(self) -> NoReturn:
        raise TaskEnded

    def queue(self) -> SimulatedQueue:
        return SimulatedQueue(self)

    def signal(self) -> SimulatedSignal:
        return SimulatedSignal(self)

    async def connect(self, host: str, port: int, token: Token) -> SimulatedLine:
        return await self.kernel.connect(self, access_of(token).tokens()[0])

    async def connect_near(self, name: str, token: Token, seconds: float) -> SimulatedLine:
        if access_of(token).tokens()[0] != self.token:
            raise WireError("the agent does not accept the token")
        kernel = self.kernel
        line = await kernel.near.server(name).connect(self, kernel.descriptor(), seconds)
        self.lines.append(line)
        return line

    def ends(self) -> Ends:
        """Nodes that do not answer this process; only one that is in a group looks."""
        others = [node for node in self.kernel.nodes if node is not self.node and node.is_on]
        missed = [node.name for node in others if not self.kernel.network.reaches(self.node, node)]
        return Ends(frozenset({self.node.name}), frozenset(missed))

    # Its end.

    def crashed(self, error: Exception) -> None:
        self.kernel.on_crash(self, error)
        self.exit("ended with status 1")

    def exit(self, how: str = "ended with status 0") -> None:
        """By itself, or by a signal; its connections are closed."""
        if not self.is_alive:
            return
        self.how = how
        self.lines.clear()
        self.end()
        self.kernel.network.close_all(self)
        for call in self.on_end:
            call()


class Kernel:
    """Of all nodes."""

    def __init__(
        self, loop: Loop, network: Network, on_crash: Callable[[SimulatedProcess, Exception], None]
    ) -> None:
        self.loop, self.network, self.on_crash = loop, network, on_crash
        self.nodes: list[Node] = []
        self.processes: list[SimulatedProcess] = []
        self.accept: Accept = lambda process, token: None
        self.on_kill: Callable[[SimulatedProcess], None] = lambda process: None
        """Called when an agent kills a process."""
        self.coordinators_node: Node | None = None
        self._descriptors = 100
        self.near = NearPlaces()

    def descriptor(self) -> int:
        """One that nobody else has."""
        self._descriptors += 1
        return self._descriptors

    def process(self, name: str, node: Node, token: str) -> SimulatedProcess:
        process = SimulatedProcess(self, name, node, 1000 + len(self.processes), token)
        self.processes.append(process)
        return process

    def alive(self, pid: int) -> bool:
        return self.processes[pid - 1000].is_alive

    async def connect(self, process: SimulatedProcess, token: str) -> SimulatedLine:
        """WireError if nobody is there, or who is there does not take the token."""
        network, node = self.network, self.coordinators_node
        assert node is not None
        if not network.reaches(process.node, node):
            await self.loop.sleep(process, CONNECT_SECONDS)
            raise WireError("no coordinator: timed out")
        await self.loop.sleep(process, 2 * network.delay(process.node, node))
        far = self.accept(process, token)
        if far is None:
            raise WireError("no coordinator: connection refused")
        if far.process.is_stopped:
            await self.loop.sleep(process, HANDSHAKE_SECONDS)
            raise WireError("what listens there is not the coordinator of a job: timed out")
        line = SimulatedLine(self.descriptor())
        near = End(process, process.node, line.arrived, line.broken)
        line.pipe, line.end = network.pipe(near, far), near
        self.join(far, line.pipe)
        process.lines.append(line)
        return line

    def join(self, far: End, pipe: Pipe) -> None:
        """The coordinator's end knows its connection."""


class NodeProcesses:
    """The kernel of one node, as its agent sees it; see `agent.processes.Processes`."""

    def __init__(self, agent: SimulatedProcess, start: Callable[[Member, int], SimulatedProcess]) -> None:
        self._agent, self._start = agent, start
        self._kernel = agent.kernel
        self._watched: dict[int, SimulatedProcess] = {}
        self._waiting: Pending | None = None

    def start(self, work: Callable[[], None], member: Member, line: int) -> int:
        return self._start(member, line).pid

    def open(self, pid: int) -> int:
        process = self._kernel.processes[pid - 1000]
        if not process.is_alive:
            raise ProcessLookupError
        self._watched[pid] = process
        process.on_end.append(self._wake)
        return pid

    def signal(self, descriptor: int, number: signal.Signals) -> None:
        process = self._watched.get(descriptor)
        if process is not None and process.is_alive and number == signal.SIGKILL:
            self._kernel.on_kill(process)
            process.exit("was killed by signal 9")

    def close(self, descriptor: int) -> None:
        self._watched.pop(descriptor, None)

    def how(self, pid: int) -> str:
        return self._kernel.processes[pid - 1000].how

    def reap(self, pid: int) -> None: ...

    def signs(self, pid: int) -> Signs | None:
        process = self._kernel.processes[pid - 1000]
        return Signs(process.is_stopped, False, 0.0) if process.is_alive else None

    def is_ours(self, pid: int) -> bool:
        return self._kernel.alive(pid)

    async def ready(
        self, line: Any, descriptors: Iterable[int], seconds: float, relay: Any = None
    ) -> set[int]:
        watched, lines = list(descriptors), [line] if relay is None else [line, relay]
        found = self._ready(lines, watched)
        if not found:
            waiting = self._waiting = Pending()
            for each in lines:
                each.on_arrival = self._wake
            loop = self._kernel.loop
            loop.at(loop.now + seconds, self._agent, waiting.give)
            await waiting
            found = self._ready(lines, watched)
        return found

    def _ready(self, lines: list[Any], descriptors: list[int]) -> set[int]:
        found = {each for each in descriptors if not self._kernel.alive(each)}
        return found | {line.fileno() for line in lines if line.is_readable}

    def _wake(self) -> None:
        if self._waiting is not None and self._agent.is_alive:
            waiting, self._waiting = self._waiting, None
            waiting.give()


class MemoryBoard(Board):
    """Without a file."""

    def __init__(self, lines: int) -> None:
        self._lines = [BoardLine(0, 0, 0, 0, 0, 0, 0) for _ in range(lines)]
        self.lines, self.path = lines, ""

    def read(self, number: int) -> BoardLine:
        return self._lines[number]

    def write(self, number: int, line: BoardLine) -> None:
        self._lines[number] = line

    def dump(self, number: int) -> str:
        return ""

    def clear_dump(self, number: int) -> None: ...

    def close(self) -> None: ...
