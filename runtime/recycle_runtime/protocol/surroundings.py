"""OS interface of a process (clock, threads, network), replaced in the simulated world. No torch.

Whatever waits is written as a coroutine. In a real process what it awaits blocks, so it is never suspended,
and `completed` runs it to its end on the thread that calls. In a simulated world it is
suspended instead, and one thread runs all processes of a job.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from recycle_runtime.protocol.access import Token
from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.messages.wire import Message
from recycle_runtime.protocol.near import NearChannel

T = TypeVar("T")


class Line(Protocol):
    """A client's end of a connection to the coordinator; WireError once it is broken."""

    def send(self, message: Message) -> None: ...

    async def receive(self) -> Message:
        """The next message, whenever it comes."""
        ...

    def waiting(self) -> Message | None:
        """A message that has arrived already and needs no reading."""
        ...

    def fill(self) -> None:
        """Read what has arrived; to be called when there is something."""
        ...

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class Queue(Protocol[T]):
    """From one thread to another."""

    def put(self, item: T) -> None: ...

    async def get(self, seconds: float | None = None) -> T:
        """The next one; queue.Empty if none comes in time."""
        ...

    def qsize(self) -> int: ...


class Signal(Protocol):
    """Wakes who waits for a change."""

    def give(self) -> None: ...

    async def wait(self, seconds: float) -> None:
        """For the next one, at most so long."""
        ...


class Surroundings(Protocol):
    """Of one process."""

    @property
    def pid(self) -> int: ...

    def now(self) -> float:
        """Seconds of a clock that is never set."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Do it beside everything else, on a thread that does not keep the process alive."""
        ...

    def thread(self) -> int:
        """The number of the one that asks."""
        ...

    def stay(self) -> NoReturn:
        """The thread that calls does nothing any more."""
        ...

    def queue(self) -> Queue[Any]: ...

    def signal(self) -> Signal: ...

    async def connect(self, host: str, port: int, token: Token) -> Line:
        """WireError if there is no coordinator, or another one."""
        ...

    async def connect_near(self, name: str, token: Token, seconds: float) -> Line:
        """The same through the agent that listens at this name, if it does, and answers in time."""
        ...


def completed(work: Coroutine[Any, Any, T]) -> T:
    """Result of a coroutine in a process where nothing is ever suspended."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise AssertionError("in a real process what is awaited blocks")


class Machine:
    """The real ones."""

    @property
    def pid(self) -> int:
        # A process that was forked has another.
        return os.getpid()

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        threading.Thread(target=lambda: completed(work()), name=name, daemon=True).start()

    def thread(self) -> int:
        return threading.get_ident()

    def stay(self) -> NoReturn:
        while True:
            time.sleep(3600.0)

    def queue(self) -> Queue[Any]:
        return _Queue()

    def signal(self) -> Signal:
        return _Signal()

    async def connect(self, host: str, port: int, token: Token) -> Line:
        return ChannelLine(Channel(host, port, token))

    async def connect_near(self, name: str, token: Token, seconds: float) -> Line:
        return ChannelLine(NearChannel(name, token, seconds))


class ChannelLine:
    """A channel, as coroutines use it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def send(self, message: Message) -> None:
        self.channel.send(message)

    async def receive(self) -> Message:
        return self.channel.receive()

    def waiting(self) -> Message | None:
        return self.channel.waiting()

    def fill(self) -> None:
        self.channel.fill()

    def fileno(self) -> int:
        return self.channel.fileno()

    def close(self) -> None:
        self.channel.close()


class _Queue(Generic[T]):
    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()

    def put(self, item: T) -> None:
        self._items.put(item)

    async def get(self, seconds: float | None = None) -> T:
        return self._items.get(timeout=seconds)

    def qsize(self) -> int:
        return self._items.qsize()


class _Signal:
    def __init__(self) -> None:
        self._changed = threading.Condition()

    def give(self) -> None:
        with self._changed:
            self._changed.notify_all()

    async def wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait(seconds)
