"""Connections of simulated worker processes to the agent of their node; see `protocol.near`.

What a process has said on one is with its agent at once, as the kernel of a machine has it: also when the
process ends. Who comes while the agent answers nobody waits, and gives up after a time.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from recycle_runtime.protocol.codec import UnreachableError, WireError
from recycle_runtime.protocol.messages.wire import Message
from tests.runtime.world.loop import Loop, Pending
from tests.runtime.world.network import (
    End,
    Network,
    Pipe,
    SimulatedLine,
)


class NearPipe(Pipe):
    """Nobody can cut it, and it takes no time."""

    def __init__(self, loop: Loop, network: Network, worker: End, agent: End) -> None:
        super().__init__(network, worker, agent)
        self._loop = loop

    def send(self, end: End, message: Any) -> None:
        if not end.is_open:
            return
        if end is self.one:
            self._deliver(self.other, message)
        else:
            self._loop.soon(self.one.process, self._deliver, self.one, message)

    def hold(self) -> None: ...

    def flow(self) -> None: ...


class NearConnection:
    """The agent's end; see `protocol.server.Connection`."""

    address = "this node"

    def __init__(self, server: "SimulatedNearServer", pid: int) -> None:
        self._server, self.pid = server, pid
        self.end = End(server.agent, server.agent.node, self._arrived, self._broken)
        self.pipe: Pipe | None = None
        self.waiting: deque[Message | None] = deque()
        """What has come and has not been heard; None: its end."""

    def send(self, message: Message) -> None:
        if self.pipe is not None:
            self.pipe.send(self.end, message)

    def close(self) -> None:
        if self.pipe is not None:
            self.pipe.close(self.end)
        self._server.drop(self)

    def drain(self) -> None:
        self._server.hear(self)

    def _arrived(self, message: Message) -> None:
        self.waiting.append(message)
        self._server.wake()

    def _broken(self) -> None:
        self.waiting.append(None)
        self._server.wake()


class SimulatedNearServer:
    """The server that worker processes of a node connect to; see `agent.relay.NearServer`."""

    def __init__(self, agent: Any, served: Any, descriptor: int, end: Callable[[], None]) -> None:
        """`end` is called when nobody listens here any more."""
        self.agent, self._served, self._descriptor, self._end = agent, served, descriptor, end
        self._connections: dict[NearConnection, None] = {}
        self._coming: deque[tuple[Any, Pending]] = deque()
        self.on_arrival: Callable[[], None] = lambda: None

    @property
    def is_readable(self) -> bool:
        return bool(self._coming) or any(each.waiting for each in self._connections)

    def fileno(self) -> int:
        return self._descriptor

    def turn(self, seconds: float) -> None:
        while self._coming:
            process, pending = self._coming.popleft()
            if process.is_alive and not pending.is_done:
                pending.give(self._accept(process))
        for connection in list(self._connections):
            self.hear(connection)

    def hear(self, connection: NearConnection) -> None:
        while connection.waiting and connection in self._connections:
            message = connection.waiting.popleft()
            if message is None:
                self.drop(connection)
            else:
                self._served.message(connection, message)

    def drop(self, connection: NearConnection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._served.closed(connection)

    def wake(self) -> None:
        self.agent.loop.soon(self.agent, self._call)

    def _call(self) -> None:
        self.on_arrival()

    def abandon(self) -> None: ...

    def close(self) -> None:
        for connection in list(self._connections):
            connection.close()
        self._end()

    async def connect(self, process: Any, descriptor: int, seconds: float) -> SimulatedLine:
        """Of this process; WireError if nobody answers in time."""
        pending, loop = Pending(), process.loop
        self._coming.append((process, pending))
        self.wake()
        loop.at(loop.now + seconds, process, pending.give)
        # Whoever is gone closes what waits to be taken in.
        self.agent.on_end.append(lambda: loop.soon(process, pending.give))
        connection: NearConnection | None = await pending
        if connection is None:
            raise WireError("the agent does not answer")
        line = SimulatedLine(descriptor)
        near = End(process, process.node, line.arrived, line.broken)
        line.pipe, line.end = NearPipe(loop, process.kernel.network, near, connection.end), near
        if self.agent.is_alive and connection in self._connections:
            process.kernel.network.add(line.pipe)
            connection.pipe = line.pipe
        else:
            line.broken()
        return line

    def _accept(self, process: Any) -> NearConnection:
        connection = NearConnection(self, process.pid)
        self._connections[connection] = None
        return connection


class NearPlaces:
    """Names at which agents listen."""

    def __init__(self) -> None:
        self._servers: dict[str, SimulatedNearServer] = {}

    def serve(self, agent: Any, name: str, served: Any, descriptor: int) -> SimulatedNearServer:
        server = SimulatedNearServer(agent, served, descriptor, lambda: self._forget(name, server))
        self._servers[name] = server
        agent.on_end.append(lambda: self._forget(name, server))
        return server

    def server(self, name: str) -> SimulatedNearServer:
        """UnreachableError if nobody listens there."""
        found = self._servers.get(name)
        if found is None:
            raise UnreachableError(f"no agent at {name}")
        return found

    def _forget(self, name: str, server: SimulatedNearServer) -> None:
        if self._servers.get(name) is server:
            del self._servers[name]
