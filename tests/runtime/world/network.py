"""The simulated network: nodes that reach each other or not, connections that keep order or break.

Within a connection messages arrive in the order in which they were sent, or not at all; between connections
anything goes. While two nodes do not reach each other what is sent waits, as TCP sends it again and again;
each end gives up after a time of its own, and does not know what the other has heard.
"""

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.messages.wire import Message
from tests.runtime.world.loop import Loop, LoopProcess, Pending

CONNECT_SECONDS = 3.0
HANDSHAKE_SECONDS = 10.0
CLIENT_GIVES_UP = (8.0, 12.0)
SERVER_GIVES_UP = (40.0, 60.0)


class Node:
    """A machine: a clock, a disk, a place in the network."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.offset = 1000.0
        """Of its clock, in seconds."""
        self.slowness = 1.0
        self.is_disk_full = False
        self.disk_seconds = 0.002
        self.is_on = True


class Network:
    """Reachability of nodes, and how long messages take."""

    def __init__(self, loop: Loop, chance: random.Random) -> None:
        self.loop, self.chance = loop, chance
        self._cut: dict[frozenset[Node], int] = {}
        """Pairs that do not reach each other, and how many faults are to blame."""
        self.latency = 0.0005
        self.jitter = 0.002
        self._pipes: dict[Pipe, None] = {}

    def reaches(self, one: Node, other: Node) -> bool:
        return one is other or (one.is_on and other.is_on and frozenset((one, other)) not in self._cut)

    def delay(self, one: Node, other: Node) -> float:
        drawn = self.chance.random()
        seconds = self.latency + self.jitter * drawn
        if drawn > 0.99:
            # Sent again.
            seconds += 0.2 * self.chance.random()
        return seconds * max(one.slowness, other.slowness)

    def cut(self, one: Node, other: Node) -> None:
        pair = frozenset((one, other))
        self._cut[pair] = self._cut.get(pair, 0) + 1
        for pipe in list(self._pipes):
            if pipe.joins(one, other):
                pipe.hold()

    def mend(self, one: Node, other: Node) -> None:
        pair = frozenset((one, other))
        left = self._cut.pop(pair, 1) - 1
        if left:
            self._cut[pair] = left
        elif one.is_on and other.is_on:
            for pipe in list(self._pipes):
                if pipe.joins(one, other):
                    pipe.flow()

    def switch_off(self, node: Node) -> None:
        """Nothing comes from there any more, not even that connections are closed."""
        node.is_on = False
        for pipe in list(self._pipes):
            if pipe.has(node):
                pipe.hold()

    def pipe(self, one: "End", other: "End") -> "Pipe":
        pipe = Pipe(self, one, other)
        self._pipes[pipe] = None
        if not self.reaches(one.node, other.node):
            pipe.hold()
        return pipe

    def add(self, pipe: "Pipe") -> None:
        """One that was made elsewhere."""
        self._pipes[pipe] = None

    def close_all(self, process: LoopProcess) -> None:
        """A process is gone: its kernel closes its connections, if it still runs."""
        for pipe in list(self._pipes):
            for end in (pipe.one, pipe.other):
                if end.process is process:
                    pipe.close(end)

    def forget(self, pipe: "Pipe") -> None:
        self._pipes.pop(pipe, None)


class End:
    """One end of a connection: whose it is, and what is called there."""

    def __init__(
        self,
        process: LoopProcess,
        node: Node,
        arrived: Callable[[Any], None],
        broken: Callable[[], None],
        patience: tuple[float, float] = CLIENT_GIVES_UP,
    ) -> None:
        self.process, self.node, self.arrived, self.broken = process, node, arrived, broken
        self.patience = patience
        self.owner: Any = None
        self.is_open = True
        self.sending: deque[Any] = deque()
        """What does not get through now."""
        self.last = 0.0
        """When the newest message from here arrives at the other end."""


class Pipe:
    """A connection between two processes."""

    def __init__(self, network: Network, one: End, other: End) -> None:
        self._network, self.one, self.other = network, one, other
        self._is_held = False
        self._holds = 0

    def joins(self, one: Node, other: Node) -> bool:
        return {self.one.node, self.other.node} == {one, other}

    def has(self, node: Node) -> bool:
        return node in (self.one.node, self.other.node)

    def send(self, end: End, message: Any) -> None:
        """From this end."""
        if not end.is_open:
            return
        if self._is_held:
            end.sending.append(message)
            return
        to = self.other if end is self.one else self.one
        network = self._network
        loop = network.loop
        at, least = loop.now + network.delay(end.node, to.node), end.last + 1e-9
        end.last = at if at > least else least
        loop.at(end.last, to.process, self._deliver, to, message)

    def _deliver(self, to: End, message: Any) -> None:
        if to.is_open:
            if message is _CLOSED:
                self._break(to)
            else:
                to.arrived(message)

    def close(self, end: End) -> None:
        """By this end, or because its process is gone."""
        if not end.is_open:
            return
        self.send(end, _CLOSED)
        end.is_open = False
        if not end.sending:
            self._forget_if_over()

    def _break(self, end: End) -> None:
        """This end has given up, or heard that the other has."""
        if end.is_open:
            end.is_open = False
            end.sending.clear()
            self._forget_if_over()
            end.broken()

    def reset(self) -> None:
        """Something between the two ends breaks the connection for both."""
        for end in (self.one, self.other):
            loop = self._network.loop
            loop.at(loop.now + self._network.chance.random() * 0.05, end.process, self._break, end)

    def hold(self) -> None:
        """The two nodes do not reach each other from now on."""
        if self._is_held:
            return
        self._is_held = True
        self._holds += 1
        loop = self._network.loop
        for end in (self.one, self.other):
            seconds = self._network.chance.uniform(*end.patience)
            loop.at(loop.now + seconds, end.process, self._give_up, end, self._holds)

    def _give_up(self, end: End, hold: int) -> None:
        if self._is_held and self._holds == hold:
            self._break(end)

    def flow(self) -> None:
        self._is_held = False
        for end in (self.one, self.other):
            waiting, end.sending = end.sending, deque()
            was_open, end.is_open = end.is_open, True
            for message in waiting:
                self.send(end, message)
            end.is_open = was_open

    def _forget_if_over(self) -> None:
        if not self.one.is_open and not self.other.is_open:
            self._network.forget(self)


_CLOSED = object()


class SimulatedLine:
    """A client's end of a connection to the coordinator."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._arrived: deque[Message] = deque()
        self._waiting: Pending | None = None
        self._is_broken = False
        self.on_arrival: Callable[[], None] | None = None
        self.pipe: Pipe | None = None
        self.end: End | None = None

    def arrived(self, message: Message) -> None:
        self._arrived.append(message)
        self._wake()

    def broken(self) -> None:
        self._is_broken = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.give()
        if self.on_arrival is not None:
            self.on_arrival()

    @property
    def is_readable(self) -> bool:
        return bool(self._arrived) or self._is_broken

    def send(self, message: Message) -> None:
        if self._is_broken or self.pipe is None or self.end is None or not self.end.is_open:
            raise WireError("the coordinator is gone")
        self.pipe.send(self.end, message)

    async def receive(self) -> Message:
        while not self._arrived:
            if self._is_broken:
                raise WireError("the coordinator has closed the connection")
            self._waiting = Pending()
            await self._waiting
        return self._arrived.popleft()

    def waiting(self) -> Message | None:
        return self._arrived.popleft() if self._arrived else None

    def fill(self) -> None:
        if self._is_broken and not self._arrived:
            raise WireError("the coordinator has closed the connection")

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        self._is_broken = True
        if self.pipe is not None and self.end is not None:
            self.pipe.close(self.end)
        self._wake()
