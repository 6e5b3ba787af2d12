"""Connections of worker processes that their agents relay: to the rest of the coordinator they are as others.

What is said to workers of a node in one turn travels in one message to its agent, and what is said to several
of them travels once. See `agent.relay` for the other end. Needs no torch.
"""

from collections.abc import Callable
from typing import Protocol

from recycle_runtime.protocol.codec import ProtocolError
from recycle_runtime.protocol.messages.wire import Message, Passed, Relayed, ToAgent, ToWorkers


class Carries(Protocol):
    """The connection of an agent."""

    @property
    def address(self) -> str: ...

    def send(self, message: ToAgent) -> None: ...

    def drain(self) -> None: ...


class RelayedLine:
    """One connection of a worker process to its agent; see `connections.Line`."""

    def __init__(self, carrier: "Carrier", number: int, closed: Callable[["RelayedLine"], None]) -> None:
        self._carrier, self.number, self._closed = carrier, number, closed
        self.is_open = True

    @property
    def address(self) -> str:
        return f"{self._carrier.connection.address}, through its agent"

    def send(self, message: Message) -> None:
        """One to a client that is gone is dropped."""
        if self.is_open:
            self._carrier.tell(self.number, message)

    def close(self) -> None:
        """By the coordinator: the agent hangs up."""
        if self.is_open:
            self._carrier.tell(self.number, None)
            self.end()

    def end(self) -> None:
        """It is no more, whoever has ended it."""
        if self.is_open:
            self.is_open = False
            self._carrier.lines.pop(self.number, None)
            self._closed(self)

    def drain(self) -> None:
        """Handle messages that the agent has received before anything it says later; another agent of the
        same node may say that."""
        if not self._carrier.is_heard:
            self._carrier.connection.drain()


class Carrier:
    """All that goes through one agent."""

    def __init__(
        self, connection: Carries, closed: Callable[[RelayedLine], None], waits: "dict[Carrier, None]"
    ) -> None:
        """`waits` has those with something to send."""
        self.connection, self._closed, self._waits = connection, closed, waits
        self.lines: dict[int, RelayedLine] = {}
        self.is_heard = False
        """True if something that it has said is being dealt with right now."""
        self.is_open = True
        self._newest = 0
        self._told: list[tuple[list[int], Message | None]] = []

    def line(self, number: int) -> RelayedLine | None:
        """Of this number, which may be new; None for one that has ended."""
        if number > self._newest and self.is_open:
            self._newest = number
            self.lines[number] = RelayedLine(self, number, self._closed)
        return self.lines.get(number)

    def tell(self, number: int, message: Message | None) -> None:
        if self._told and self._told[-1][1] is message:
            self._told[-1][0].append(number)
            return
        self._told.append(([number], message))
        self._waits[self] = None

    def flush(self) -> None:
        """Send what has been said."""
        told, self._told = [Passed(tuple(lines), message) for lines, message in self._told], []
        try:
            self.connection.send(ToWorkers(Relayed(tuple(told))))
        except ProtocolError:
            for each in told:
                self._send_alone(each)

    def _send_alone(self, passed: Passed) -> None:
        """Together they were too long; whoever cannot be sent what is meant for it is hung up on."""
        try:
            self.connection.send(ToWorkers(Relayed((passed,))))
        except ProtocolError:
            self.connection.send(ToWorkers(Relayed((passed._replace(message=None),))))
            for number in passed.lines:
                if (line := self.lines.get(number)) is not None:
                    line.end()


class Relays:
    """Through all agents."""

    def __init__(self, closed: Callable[[RelayedLine], None]) -> None:
        """`closed` hears of every line that has ended, before its agent's connection does."""
        self._closed = closed
        self._carriers: dict[Carries, Carrier] = {}
        self._waiting: dict[Carrier, None] = {}
        """With something to send, so that not all are looked at in every turn."""

    def begin(self, connection: Carries) -> None:
        """This agent relays from now on."""
        self._carriers[connection] = Carrier(connection, self._closed, self._waiting)

    def carrier(self, connection: Carries) -> Carrier:
        """ProtocolError if this agent was not asked to relay."""
        found = self._carriers.get(connection)
        if found is None:
            raise ProtocolError("an agent relays that was not asked to")
        return found

    def end(self, connection: Carries) -> None:
        """This agent is gone, and so are the connections through it."""
        carrier = self._carriers.pop(connection, None)
        if carrier is not None:
            carrier.is_open = False
            for line in list(carrier.lines.values()):
                line.end()

    def flush(self) -> None:
        """Send what has been said in this turn."""
        while self._waiting:
            self._waiting.popitem()[0].flush()
