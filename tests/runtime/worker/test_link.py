"""The line to the coordinator: an order to leave is not given up."""

import queue
import threading
from dataclasses import fields
from typing import Any

import pytest

from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.messages.checkpoints import CheckpointMissed, TakeCheckpoint
from recycle_runtime.protocol.messages.generations import Go, Join, Leave
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.wire import Message
from recycle_runtime.protocol.surroundings import completed
from recycle_runtime.worker.link import CoordinatorGoneError, Link

SECONDS = 30.0
HELLO = Join(Member((0, 0), 0), pid=1, generation=0, asked=0, is_training=False)


class Coordinator:
    """A channel that one can speak into."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def send(self, message: Message) -> None:
        pass

    async def receive(self) -> Message:
        return self.messages.get()

    async def found(self) -> "Coordinator":
        return self


def test_whoever_is_to_leave_is_broken_off_until_it_has_left() -> None:
    coordinator: Any = Coordinator()
    link = Link(coordinator.found, lambda _: HELLO, SECONDS)
    completed(link.open())
    link.generation = 1
    often = threading.Semaphore(0)
    link.on_leave = often.release
    coordinator.messages.put(Leave(2))
    assert all(often.acquire(timeout=SECONDS) for _ in range(3))
    link.on_leave = None
    assert completed(link.order(SECONDS)) == Leave(2)


def test_whoever_trains_in_the_newest_generation_is_left_alone() -> None:
    coordinator: Any = Coordinator()
    link = Link(coordinator.found, lambda _: HELLO, SECONDS)
    completed(link.open())
    link.generation = 1
    called = threading.Event()
    link.on_leave = called.set
    coordinator.messages.put(Leave(2))
    assert called.wait(SECONDS)
    link.on_leave, link.generation = None, 2
    again = threading.Event()
    link.on_leave = again.set
    assert not again.wait(0.5)


def test_a_checkpoint_that_nobody_will_write_is_said_to_be_missed() -> None:
    """Found once: it was asked for right before a regrouping, behind the step that all went on with; whoever
    begins anew forgets it, and the coordinator waited for it for ever."""

    class Listening(Coordinator):
        def __init__(self) -> None:
            super().__init__()
            self.heard: queue.SimpleQueue[Message] = queue.SimpleQueue()

        def send(self, message: Message) -> None:
            self.heard.put(message)

    coordinator: Any = Listening()
    link = Link(coordinator.found, lambda _: HELLO, SECONDS)
    completed(link.open())
    coordinator.messages.put(TakeCheckpoint(30, "step-00000030"))
    told: dict[str, Any] = dict.fromkeys(field.name for field in fields(Go))
    told.update(generation=2, step=60, until=60)
    coordinator.messages.put(Go(**told))
    while not isinstance(said := coordinator.heard.get(timeout=SECONDS), CheckpointMissed):
        pass
    assert said == CheckpointMissed("step-00000030") and link.checkpoint is None


def test_a_coordinator_that_is_away_for_a_moment_is_found() -> None:
    coordinator: Any = Coordinator()
    tries: list[int] = []

    async def found() -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise WireError("no coordinator")
        return coordinator

    completed(Link(found, lambda _: HELLO, SECONDS).open())
    assert len(tries) == 3


def test_a_coordinator_that_was_replaced_is_left_although_it_does_not_hang_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("recycle_runtime.worker.link._FOLLOW_EVERY", 0.01)
    address = ["first"]
    found: list[str] = []
    is_elsewhere = threading.Event()

    class Paused(Coordinator):
        def __init__(self) -> None:
            super().__init__()
            self.is_closed = threading.Event()

        async def receive(self) -> Message:
            assert self.is_closed.wait(SECONDS)
            raise WireError("closed")

        def close(self) -> None:
            self.is_closed.set()

    async def connect() -> Any:
        found.append(address[0])
        if len(found) == 2:
            is_elsewhere.set()
        return Paused()

    link = Link(connect, lambda _: HELLO, SECONDS, address=lambda: address[0])
    completed(link.open())
    address[0] = "second"
    assert is_elsewhere.wait(SECONDS)
    link.close()
    with pytest.raises(CoordinatorGoneError):
        completed(link.order(SECONDS))
    assert found == ["first", "second"]
