"""Channels between threads that behave as NCCL's: no tags, in order, and a send ends when it is received."""

import threading
import uuid
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

PATIENCE = 120.0


class Message:
    """One side of a message, waiting for the other side."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._matched = threading.Event()

    def match(self) -> None:
        self._matched.set()

    def wait(self) -> None:
        if not self._matched.wait(PATIENCE):
            raise TimeoutError("nobody is at the other end")

    def is_completed(self) -> bool:
        return self._matched.is_set()


class Wire:
    """Both ends of a channel."""

    def __init__(self) -> None:
        self.sent: deque[Message] = deque()
        self.wanted: deque[Message] = deque()
        self._lock = threading.Lock()

    def post(self, queue: deque[Message], tensor: torch.Tensor) -> Message:
        message = Message(tensor)
        with self._lock:
            queue.append(message)
            while self.sent and self.wanted:
                sent, wanted = self.sent.popleft(), self.wanted.popleft()
                assert sent.tensor.shape == wanted.tensor.shape, "not the message that was expected"
                wanted.tensor.copy_(sent.tensor)
                sent.match()
                wanted.match()
        return message


class End:
    """What one worker holds of a channel; as a process group of two."""

    def __init__(self, wire: Wire, sends: bool, synchronous: bool) -> None:
        self._wire, self._sends, self._synchronous = wire, sends, synchronous
        self.aborted = False

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Message:
        assert self._sends and rank == 1 and tag == 0 and not self.aborted
        message = self._wire.post(self._wire.sent, tensors[0])
        if self._synchronous:
            message.wait()
        return message

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Message:
        assert not self._sends and rank == 0 and tag == 0 and not self.aborted
        return self._wire.post(self._wire.wanted, tensors[0])

    def abort(self) -> None:
        self.aborted = True


class LoopbackGroups:
    """Channels inside this process; sums over gloo. Synchronous: a send returns when it is received."""

    def __init__(self, *, synchronous: bool = False) -> None:
        self.wires: dict[str, Wire] = {}
        self._lock = threading.Lock()
        self._synchronous = synchronous

    def make(self, store: dist.Store, rank: int, size: int) -> Any:
        gloo: Any = dist.ProcessGroupGloo
        return gloo(store, rank, size, timedelta(seconds=PATIENCE))

    def make_channel(self, store: dist.Store, *, sends: bool) -> End:
        if store.add("ends", 1) == 1:
            store.set("name", uuid.uuid4().hex)
        name = store.get("name").decode()
        with self._lock:
            if name not in self.wires:
                self.wires[name] = self.new_wire()
            wire = self.wires[name]
        return End(wire, sends, self._synchronous)

    def new_wire(self) -> Wire:
        return Wire()

    def for_users(self, group: Any) -> Any:
        return group

    def abort(self, groups: Sequence[Any]) -> None:
        for group in groups:
            if isinstance(group, End):
                group.abort()

    @property
    def left(self) -> int:
        """Messages that only one side knows of."""
        return sum(len(wire.sent) + len(wire.wanted) for wire in self.wires.values())


class HostStream:
    """A queue of work that is always empty: the host does everything at once."""

    def __init__(self) -> None:
        self.marks = 0

    def allocate(self, size: int) -> torch.Tensor:
        return torch.full((size,), 0xAB, dtype=torch.uint8)

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    @contextmanager
    def behind(self, marks: Sequence[int]) -> Generator[None]:
        assert all(mark <= self.marks for mark in marks)
        yield

    def finish(self) -> None:
        pass
