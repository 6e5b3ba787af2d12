"""Messages between worker processes and the coordinator on the one connection of their agent.

A worker process connects to its agent as it would to the coordinator: with one connection for itself and one
for the store. The agent numbers these, and understands nothing of what is said on them. Whatever arrives in
one turn of its loop travels in one message; what the coordinator says to several is dealt out here.

An agent that loses the coordinator hangs up on all of them, so that they do as they would have done
themselves: come again, and say who they are. Until there is a coordinator nobody answers them. No torch.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from recycle_runtime.protocol.access import Token
from recycle_runtime.protocol.codec import ProtocolError
from recycle_runtime.protocol.messages.wire import FromWorkers, Message, Passed, Relayed
from recycle_runtime.protocol.near import process_of, serve_near
from recycle_runtime.protocol.server import Connection, Served

_log = logging.getLogger(__name__)


class NearServer(Protocol):
    """Server that worker processes of this node connect to: see `protocol.server.Server`."""

    def fileno(self) -> int: ...

    def turn(self, seconds: float) -> None: ...

    def abandon(self) -> None: ...

    def close(self) -> None: ...


Serve = Callable[[str, Token, Served], NearServer]
ProcessOf = Callable[[Connection], int]


class Relay:
    """Of one node. It may be closed, which is how it begins."""

    def __init__(
        self, name: str, token: Token, serve: Serve = serve_near, process_of: ProcessOf = process_of
    ) -> None:
        """`name` is that of the socket; nobody listens there before `open`. The rest is for tests."""
        self._name, self._token, self._serve, self._process_of = name, token, serve, process_of
        self._server: NearServer | None = None
        self._serves = False
        self._newest = 0
        self._lines: dict[Connection, int] = {}
        self._connections: dict[int, Connection] = {}
        self._pids: dict[Connection, int] = {}
        self._said: list[Passed] = []

    @property
    def is_open(self) -> bool:
        """True if worker processes may look for a connection here."""
        return self._server is not None

    @property
    def server(self) -> NearServer | None:
        """To be asked for a turn when it can be read; None while nobody is served."""
        return self._server if self._serves else None

    def open(self) -> None:
        """Serve worker processes from now on, if nobody else has taken the place."""
        try:
            self._server = self._server or self._serve(self._name, self._token, self)
            self._serves = True
        except OSError as error:
            _log.warning("workers of this node connect to the coordinator themselves: %s", error)

    def close(self) -> None:
        """Worker processes find nobody here any more."""
        self.hang_up()
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def hang_up(self) -> None:
        """On all; whoever comes again has to wait until `open`."""
        for connection in list(self._lines):
            connection.close()
        self._said.clear()
        self._serves = False

    def abandon(self) -> None:
        """In a process that was forked from the agent."""
        if self._server is not None:
            self._server.abandon()

    def turn(self) -> None:
        """Hear whoever has said something."""
        if self._server is not None and self._serves:
            self._server.turn(0)

    def drain(self, pid: int) -> None:
        """Hear the last words of a process that has ended."""
        for connection in [each for each, process in self._pids.items() if process == pid]:
            connection.drain()

    def pass_on(self, send: Callable[[FromWorkers], None]) -> None:
        """Send collected messages of workers in one message; WireError if the connection fails."""
        said, self._said = self._said, []
        if not said:
            return
        try:
            send(FromWorkers(Relayed(tuple(said))))
        except ProtocolError:
            # Together they are too long.
            for each in said:
                send(FromWorkers(Relayed((each,))))

    def tell(self, told: Relayed) -> None:
        """Deliver messages of the coordinator to their workers; those that are gone are skipped."""
        for lines, message in told.passed:
            for line in lines:
                connection = self._connections.get(line)
                if connection is None:
                    continue
                if message is None:
                    self._forget(connection)
                    connection.close()
                else:
                    connection.send(message)

    # The server calls these.

    def message(self, connection: Connection, message: Message) -> None:
        line = self._lines.get(connection)
        if line is None:
            self._newest += 1
            line = self._lines[connection] = self._newest
            self._connections[line] = connection
            self._pids[connection] = self._process_of(connection)
        self._said.append(Passed((line,), message))

    def closed(self, connection: Connection) -> None:
        if (line := self._forget(connection)) is not None:
            self._said.append(Passed((line,), None))

    def tick(self) -> None:
        """There is nothing to do but when somebody says something."""

    def _forget(self, connection: Connection) -> int | None:
        line = self._lines.pop(connection, None)
        if line is not None:
            del self._connections[line], self._pids[connection]
        return line
