"""Relaying by an agent: whole, in order, of nobody who does not belong to the job."""

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import pytest

from recycle_runtime.agent.relay import Relay
from recycle_runtime.protocol import near
from recycle_runtime.protocol.codec import UnreachableError, WireError
from recycle_runtime.protocol.framing import new_token
from recycle_runtime.protocol.messages.generations import Hold, Leave
from recycle_runtime.protocol.messages.steps import LossShare
from recycle_runtime.protocol.messages.store import StoreOpen, StoreSet
from recycle_runtime.protocol.messages.wire import FromWorkers, Passed, Relayed, ToWorker
from recycle_runtime.protocol.near import NearChannel
from tests.runtime.protocol.children import child

TOKEN = new_token()
_PATIENCE = 60.0


class Node:
    """An agent's relay with real sockets, and worker processes in this one."""

    def __init__(self) -> None:
        self.name = f"recycle-test-{secrets.token_hex(8)}"
        self.relay = Relay(self.name, TOKEN)
        self.sent: list[FromWorkers] = []

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not is_so():
            assert time.monotonic() < deadline
            self.relay.turn()
            time.sleep(0.001)

    def worker(self, token: str = TOKEN) -> NearChannel:
        """Both ends prove themselves, so another thread is needed for one of them."""
        found: list[Any] = []

        def knock() -> None:
            try:
                found.append(NearChannel(self.name, token))
            except WireError as error:
                found.append(error)

        threading.Thread(target=knock, daemon=True).start()
        self.until(lambda: bool(found))
        if isinstance(found[0], WireError):
            raise found[0]
        return found[0]

    def heard(self, count: int) -> list[Passed]:
        """The next messages that the coordinator hears, so many of them."""
        passed: list[Passed] = []

        def is_heard() -> bool:
            self.relay.pass_on(self.sent.append)
            passed.extend(each for message in self.sent for each in message.said.passed)
            self.sent.clear()
            return len(passed) >= count

        self.until(is_heard)
        return passed


@pytest.fixture
def node() -> Generator[Node]:
    made = Node()
    made.relay.open()
    yield made
    made.relay.close()


def is_over(worker: NearChannel) -> bool:
    try:
        worker.receive()
    except WireError:
        return True
    return False


def test_each_line_keeps_its_order(node: Node) -> None:
    first, second = node.worker(), node.worker()
    for step in range(20):
        first.send(LossShare(step, 0.5))
        second.send(LossShare(100 + step, None))
    heard = node.heard(40)
    lines = {each.lines for each in heard}
    assert lines == {(1,), (2,)}
    for line in lines:
        steps = [
            each.message.step for each in heard if each.lines == line and isinstance(each.message, LossShare)
        ]
        assert steps in (list(range(20)), list(range(100, 120)))


def test_what_is_said_in_one_turn_travels_in_one_message(node: Node) -> None:
    workers = [node.worker() for _ in range(3)]
    for worker in workers:
        worker.send(StoreOpen())
        worker.send(StoreSet("a", "b"))
    node.until(lambda: len(node.relay._said) == 6)  # pyright: ignore[reportPrivateUsage]
    node.relay.pass_on(node.sent.append)
    (sent,) = node.sent
    assert len(sent.said.passed) == 6
    node.relay.pass_on(node.sent.append)
    assert len(node.sent) == 1, "nothing is said twice"


def test_what_the_coordinator_says_is_dealt_out(node: Node) -> None:
    workers = [node.worker() for _ in range(3)]
    lines: list[int] = []
    for number, worker in enumerate(workers):
        worker.send(LossShare(number, None))
        lines += node.heard(1)[0].lines
    told: tuple[tuple[tuple[int, ...], ToWorker | None], ...] = (
        (tuple(lines), Leave(4)),
        ((lines[1], 77), Hold(9, 1)),
        ((lines[2],), None),
        ((lines[2],), Leave(5)),
    )
    node.relay.tell(Relayed(tuple(Passed(*each) for each in told)))
    assert [worker.receive() for worker in workers] == [Leave(4)] * 3
    assert workers[1].receive() == Hold(9, 1)
    assert is_over(workers[2])


def test_last_words_are_heard_with_the_end(node: Node) -> None:
    """All that a process has said before it was killed, though no turn has come since."""

    def life() -> None:
        worker = NearChannel(node.name, TOKEN)
        for step in range(50):
            worker.send(LossShare(step, 0.5))
        os._exit(0)

    pid = child(life)
    passed = node.heard(1)
    os.waitpid(pid, 0)
    node.relay.drain(pid)
    node.relay.pass_on(node.sent.append)
    passed += [each for message in node.sent for each in message.said.passed]
    assert [each.message for each in passed[:-1]] == [LossShare(step, 0.5) for step in range(50)]
    assert passed[-1] == Passed(passed[-2].lines, None)


def test_another_token(node: Node) -> None:
    with pytest.raises(WireError, match="does not accept the token"):
        node.worker(new_token())
    worker = node.worker()
    worker.send(LossShare(0, None))
    assert len(node.heard(1)) == 1


def test_another_user(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    with pytest.raises(UnreachableError, match="another user listens there"):
        NearChannel(node.name, TOKEN)
    # The agent sends it away as well, without a word.
    monkeypatch.setattr(near, "_is_own_user", bool)
    with pytest.raises(WireError, match="closed the connection"):
        node.worker()


def test_a_message_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the coordinator it would be too, with what the agent adds: its connection alone is closed."""
    monkeypatch.setattr(near, "MOST_NEAR", 1 << 17)
    node = Node()
    node.relay.open()
    try:
        talker, other = node.worker(), node.worker()
        other.send(LossShare(0, None))
        (passed,) = node.heard(1)
        # Nobody reads while it is said, so another thread has to.
        ended: list[bool] = []
        threading.Thread(target=lambda: ended.append(is_refused(talker)), daemon=True).start()
        node.until(lambda: bool(ended))
        other.send(LossShare(1, None))
        assert node.heard(1) == [passed._replace(message=LossShare(1, None))]
    finally:
        node.relay.close()


def is_refused(worker: NearChannel) -> bool:
    """True if it is hung up on when it has said what is too long."""
    with suppress(WireError):
        worker.send(StoreSet("a", "b" * (1 << 18)))
    return is_over(worker)


def test_who_comes_while_the_coordinator_is_away_waits(node: Node) -> None:
    before = node.worker()
    before.send(LossShare(0, None))
    node.heard(1)
    before.send(LossShare(1, None))
    node.relay.hang_up()
    assert is_over(before)
    assert node.relay.server is None and node.relay.is_open
    found: list[NearChannel] = []
    threading.Thread(target=lambda: found.append(NearChannel(node.name, TOKEN)), daemon=True).start()
    for _ in range(20):
        node.relay.turn()
    assert not found
    node.relay.open()
    node.until(lambda: bool(found))
    found[0].send(LossShare(2, None))
    assert [each.message for each in node.heard(1)] == [LossShare(2, None)], "what came before is not said"


def test_the_place_is_taken(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("recycle_runtime.agent.relay")
    # A command that ran in this process before may have sent the lines of the package elsewhere.
    logger.addHandler(caplog.handler)
    second = Relay(node.name, TOKEN)
    second.open()
    logger.removeHandler(caplog.handler)
    assert not second.is_open
    assert "connect to the coordinator themselves" in caplog.text
    worker = node.worker()
    worker.send(LossShare(0, None))
    assert len(node.heard(1)) == 1


def test_an_agent_that_is_gone(node: Node) -> None:
    """Its workers hear of it at once, and nobody is there."""
    worker = node.worker()
    node.relay.close()
    assert is_over(worker)
    with pytest.raises(UnreachableError, match="no agent"):
        NearChannel(node.name, TOKEN)


def test_a_worker_that_was_forked_keeps_nothing_open(node: Node) -> None:
    """Another agent can take the place as soon as this one is gone, and this one notices nothing of forks."""
    worker = node.worker()
    reads, writes = os.pipe()

    def life() -> None:
        node.relay.abandon()
        os.close(writes)
        os.read(reads, 1)

    pid = child(life)
    worker.send(LossShare(0, None))
    assert len(node.heard(1)) == 1
    node.relay.close()
    after = Relay(node.name, TOKEN)
    deadline = time.monotonic() + _PATIENCE
    while not after.is_open:
        assert time.monotonic() < deadline
        after.open()
    after.close()
    os.close(writes)
    os.waitpid(pid, 0)
    os.close(reads)


def test_who_waits_hears_that_the_agent_is_gone(node: Node) -> None:
    node.relay.hang_up()
    found: list[WireError] = []

    def knock() -> None:
        try:
            NearChannel(node.name, TOKEN, 10 * _PATIENCE)
        except WireError as error:
            found.append(error)

    waiting = threading.Thread(target=knock, daemon=True)
    waiting.start()
    node.relay.close()
    waiting.join(_PATIENCE)
    assert len(found) == 1
