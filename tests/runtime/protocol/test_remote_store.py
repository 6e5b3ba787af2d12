"""The coordinator's store, as torch asks it over a connection."""

import threading
from collections.abc import Generator

import pytest

from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.framing import new_token
from recycle_runtime.protocol.messages.store import StoreOpen, StoreRequest
from recycle_runtime.protocol.messages.wire import Message
from recycle_runtime.protocol.remote_store import RemoteStore, StoreError
from recycle_runtime.protocol.server import Connection, Server
from recycle_runtime.protocol.store_table import StoreTable

TOKEN = new_token()
SECONDS = 60.0


class Place:
    """A coordinator that is nothing but a store."""

    def __init__(self) -> None:
        self.table = StoreTable()
        self.server = Server("127.0.0.1", 0, TOKEN, self)
        self.opened = 0
        self.asked = threading.Event()
        self._begin = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def message(self, connection: Connection, message: Message) -> None:
        if isinstance(message, StoreOpen):
            self.opened += 1
        elif isinstance(message, StoreRequest):
            self.table.request(message, connection.send)
            self.asked.set()

    def closed(self, connection: Connection) -> None:
        self.table.forget(connection.send)

    def tick(self) -> None:
        if self._begin:
            self.table.begin(self._begin)
            self._begin = 0

    def begin(self, generation: int) -> None:
        self._begin = generation

    def store(self) -> RemoteStore:
        return RemoteStore(Channel("127.0.0.1", self.server.port, TOKEN))

    def end(self) -> None:
        self._is_over = True
        self._thread.join()
        self.server.close()

    def _run(self) -> None:
        while not self._is_over:
            self.server.turn(0.01)


@pytest.fixture
def place() -> Generator[Place]:
    made = Place()
    yield made
    made.end()


def test_what_is_set_is_there_for_whoever_asks_next(place: Place) -> None:
    first, second = place.store(), place.store()
    first.set("g1/a", "one")
    first.set("g1/b", b"two")
    assert first.multi_get(["g1/b", "g1/a"]) == [b"two", b"one"]
    assert second.get("g1/a") == b"one"
    assert second.check(["g1/a", "g1/b"]) and not second.check(["g1/c"])
    first.close()
    second.close()


def test_the_next_group_meets_on_the_same_connection(place: Place) -> None:
    store = place.store()
    store.set("g1/a", "1")
    assert store.get("g1/a") == b"1"
    place.begin(2)
    assert store.renew()
    store.set("g2/a", "2")
    assert store.get("g2/a") == b"2"
    with pytest.raises(StoreError, match="grouped anew"):
        store.get("g1/a")
    assert store.renew() and place.opened == 1
    store.close()


def test_not_while_somebody_waits_for_an_answer(place: Place) -> None:
    store = place.store()
    outcome: list[str] = []

    def wait() -> None:
        try:
            store.get("g1/never")
        except StoreError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    assert place.asked.wait(SECONDS)
    assert not store.renew()
    place.begin(2)
    thread.join(SECONDS)
    assert outcome == ["the workers are being grouped anew"]
    assert store.renew()
    store.close()
