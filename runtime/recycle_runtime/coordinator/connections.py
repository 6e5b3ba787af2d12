"""The connections of the coordinator: which process each one belongs to. Needs no torch."""

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.observers import ToObserver
from recycle_runtime.protocol.messages.wire import Message, ToWorker


class Kind(Enum):
    """Kind of a client that is no worker process; it follows from the first thing it says."""

    AGENT = "agent"
    OBSERVER = "observer"
    STORE = "store"
    DONE = "worker that has ended"


class ClientLine(Protocol):
    """A connection, as the coordinator uses it; it may be relayed."""

    @property
    def address(self) -> str: ...

    def send(self, message: Message) -> None: ...

    def close(self) -> None: ...

    def drain(self) -> None: ...


class Connections:
    """All clients of a coordinator that have said what they are."""

    def __init__(self) -> None:
        self._kinds: dict[ClientLine, Member | Kind] = {}
        self._members: dict[Member, ClientLine] = {}
        self._pids: dict[Member, int] = {}
        self._observers: dict[ClientLine, None] = {}
        self._watchers: list[Callable[[ToObserver], None]] = []
        """Observers in this process."""
        self._moved: dict[tuple[Member, int], Member] = {}
        """For processes that are another worker now: by name and pid as they were."""

    def __contains__(self, member: Member) -> bool:
        """True if it is connected."""
        return member in self._members

    @property
    def has_members(self) -> bool:
        return bool(self._members)

    def kind_of(self, line: ClientLine) -> Member | Kind | None:
        return self._kinds.get(line)

    def become(self, line: ClientLine, kind: Kind) -> None:
        self._kinds[line] = kind
        if kind is Kind.OBSERVER:
            self._observers[line] = None

    def watch(self, take: Callable[[ToObserver], None]) -> None:
        """Tell an observer in this process from now on."""
        self._watchers.append(take)

    def accept(self, line: ClientLine, member: Member, pid: int) -> None:
        """From now on this connection speaks for this process, and no other does."""
        self.hang_up(member)
        self._kinds[line], self._members[member], self._pids[member] = member, line, pid

    def send(self, member: Member, message: ToWorker) -> None:
        """A message to a process that is not connected is dropped: it is asked again when it is back."""
        if member in self._members:
            self._members[member].send(message)

    def publish(self, message: ToObserver) -> None:
        for line in list(self._observers):
            line.send(message)
        for take in self._watchers:
            take(message)

    def hang_up(self, member: Member) -> None:
        line = self._members.pop(member, None)
        if line is not None:
            self._kinds.pop(line, None)
            line.close()

    def finish(self, member: Member) -> None:
        """It has said its last word, and closes the connection itself."""
        line = self._members.pop(member, None)
        if line is not None:
            self._kinds[line] = Kind.DONE

    def closed(self, line: ClientLine) -> Member | Kind | None:
        """Forget a connection that has closed; return whose it was, None if it has been replaced."""
        kind = self._kinds.pop(line, None)
        self._observers.pop(line, None)
        if isinstance(kind, Member):
            del self._members[kind]
        return kind

    # Processes.

    def rename(self, member: Member, target: Member) -> None:
        if (line := self._members.pop(member, None)) is not None:
            self._members[target] = line
            self._kinds[line] = target
        if (pid := self._pids.pop(member, None)) is not None:
            self._pids[target] = pid
            self._moved[member, pid] = target

    def now(self, member: Member, pid: int) -> Member:
        """As a process is called now, whose agent may not have heard of that yet."""
        while (member, pid) in self._moved:
            member = self._moved.pop((member, pid))
        return member

    def pid_of(self, member: Member) -> int | None:
        return self._pids.get(member)

    def forget(self, member: Member) -> None:
        """Its process has ended."""
        self._pids.pop(member, None)
        self.hang_up(member)

    def drain(self, member: Member) -> None:
        """Hear the last words of a process that has ended."""
        if member in self._members:
            self._members[member].drain()
