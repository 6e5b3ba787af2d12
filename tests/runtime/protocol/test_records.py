"""Nobody between two ends of a connection can do more than cut it."""

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import closing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.protocol import channel as channel_module
from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.codec import ProtocolError, WireError
from recycle_runtime.protocol.framing import Challenge, FramingSession, frame_handshake, new_nonce, new_token
from recycle_runtime.protocol.messages.agents import JobOver
from recycle_runtime.protocol.messages.store import StoreSet
from recycle_runtime.protocol.messages.wire import VERSION
from recycle_runtime.protocol.records import (
    MOST_BYTES,
    RECORD_BYTES,
    TAG_BYTES,
    RecordReader,
    RecordWriter,
    record_key,
)
from tests.runtime.protocol.raw_client import RawClient
from tests.runtime.protocol.test_strangers import TOKEN, Running

KEY = record_key("token", "client", VERSION, "n", "m")
HEADER = 4 + TAG_BYTES


def record(text: bytes, number: int = 0) -> bytes:
    writer = RecordWriter(KEY)
    for _ in range(number):
        writer.write(b"")
    return writer.write(text)


@pytest.fixture
def running() -> Generator[Running]:
    found = Running()
    yield found
    found.end()


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(1, 7))
def test_messages_arrive_in_pieces(texts: list[bytes], step: int) -> None:
    writer, reader, buffer = RecordWriter(KEY), RecordReader(KEY), bytearray()
    whole = b"".join(writer.write(text) for text in texts)
    found: list[bytes] = []
    for first in range(0, len(whole), step):
        buffer += whole[first : first + step]
        while (text := reader.read(buffer)) is not None:
            found.append(text)
    assert found == texts and not buffer


@pytest.mark.parametrize("size", [RECORD_BYTES, RECORD_BYTES + 1, 2 * RECORD_BYTES, 3 * RECORD_BYTES + 5])
def test_long_messages_are_several_records(size: int) -> None:
    text = bytes(range(256)) * (size // 256 + 1)
    reader = RecordReader(KEY)
    assert reader.read(bytearray(record(text[:size]))) == text[:size]


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_changed_bit_is_noticed(text: bytes, data: st.DataObject) -> None:
    whole = bytearray(record(text))
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    with suppress(ProtocolError):
        # A longer length leaves the record incomplete: nothing is taken out of it.
        assert RecordReader(KEY).read(whole) is None


CHANGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "repeated": lambda records: [records[0], records[0]],
    "left out": lambda records: records[1:],
    "exchanged": lambda records: [records[1], records[0]],
    "from before": lambda records: [*records, records[0]],
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_order_of_records_is_part_of_them(change: str) -> None:
    writer, reader = RecordWriter(KEY), RecordReader(KEY)
    buffer = bytearray(b"".join(CHANGES[change]([writer.write(b"one"), writer.write(b"two")])))
    with pytest.raises(ProtocolError, match="changed, repeated or left out"):
        while reader.read(buffer) is not None:
            pass


def test_a_record_of_the_other_direction_is_none() -> None:
    token, servers, clients = new_token(), new_nonce(), new_nonce()
    client = FramingSession(token, "client", servers, clients)
    with pytest.raises(ProtocolError):
        client.unframe(bytearray(client.frame(JobOver())))
    server = FramingSession(token, "server", servers, clients)
    assert client.unframe(bytearray(server.frame(JobOver()))) == JobOver()


def test_a_message_cannot_be_cut_short() -> None:
    """A record that goes on, without those that follow, is no message."""
    whole = record(b"a" * (RECORD_BYTES + 1))
    reader = RecordReader(KEY)
    assert reader.read(bytearray(whole[: HEADER + RECORD_BYTES])) is None
    with pytest.raises(ProtocolError):
        reader.read(bytearray(whole[: HEADER + RECORD_BYTES]))


def test_no_more_than_a_record_is_kept_of_what_nobody_has_signed() -> None:
    for length in (RECORD_BYTES + 1, MOST_BYTES, (1 << 31) - 1):
        for flag in (0, 1 << 31):
            with pytest.raises(ProtocolError, match="too long"):
                RecordReader(KEY).read(bytearray((flag | length).to_bytes(4, "big") + bytes(TAG_BYTES)))


def test_messages_have_a_longest() -> None:
    with pytest.raises(ProtocolError, match="too long"):
        RecordWriter(KEY).write(bytes(MOST_BYTES + 1))


class Relay:
    """Stands between a client and the server, without the token; each way is changed by a function."""

    def __init__(self, port: int, change: Callable[[bytes, int], bytes]) -> None:
        """`change` gets what a client sends, and how often it has sent something."""
        self._port, self._change = port, change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self._port))
        threading.Thread(target=self._pass, args=(server, client, None), daemon=True).start()
        self._pass(client, server, self._change)

    def _pass(
        self, source: socket.socket, target: socket.socket, change: Callable[[bytes, int], bytes] | None
    ) -> None:
        count = 0
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data if change is None else change(data, count))
                count += 1
        for sock in (source, target):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


INJECTED = b'{"type":"store_set","key":"stranger","value":"1"}'
FAKED: dict[str, Callable[[bytes, int], bytes]] = {
    "a frame without a tag": lambda data, count: data + len(INJECTED).to_bytes(4, "big") + INJECTED,
    "a record of its own": lambda data, count: data + RecordWriter(bytes(32)).write(INJECTED),
    "the same again": lambda data, count: data + data,
    "another text": lambda data, count: data.replace(b"hello", b"jello"),
}


@pytest.mark.parametrize("kind", FAKED)
def test_a_relay_without_the_token_is_not_believed(running: Running, kind: str) -> None:
    """The proofs pass through it; what it adds or changes later is not heard, and ends the connection."""
    relay = Relay(running.port, lambda data, count: data if count == 0 else FAKED[kind](data, count))
    with closing(relay):
        client = Channel("127.0.0.1", relay.port, TOKEN)
        with pytest.raises(WireError):
            # Some of it is known for what it is only when the next record comes.
            for _ in range(3):
                client.send(StoreSet("hello", "1"))
                client.receive()
        client.close()
    heard = [message for message in running.echo.heard if message != StoreSet("hello", "1")]
    assert heard == [] and len(running.echo.heard) <= 1
    running.check()


def test_a_relay_that_leaves_a_message_out(running: Running) -> None:
    taken = threading.Event()

    def leave_out_the_second(data: bytes, count: int) -> bytes:
        if count != 1:
            return data
        taken.set()
        return b""

    with closing(Relay(running.port, leave_out_the_second)) as relay:
        client = Channel("127.0.0.1", relay.port, TOKEN)
        client.send(StoreSet("first", "1"))
        # Not before the relay has taken the first by itself: it would leave out both, with no answer.
        taken.wait()
        client.send(StoreSet("second", "1"))
        with pytest.raises(WireError):
            client.receive()
        client.close()
    assert running.echo.heard == []
    running.check()


def test_what_makes_no_sense_ends_one_connection(running: Running) -> None:
    for fields in ({"type": "join"}, {"type": "nonsense"}, [], "text", None):
        client = RawClient(running.port, TOKEN)
        client.say(fields)
        assert client.is_hung_up_on()
        client.close()
    running.check()


NONCE = frame_handshake(Challenge(VERSION, new_nonce()))


@pytest.mark.parametrize("first", [b"", NONCE], ids=["mute", "nonce"])
def test_a_listener_that_falls_silent_is_left(first: bytes) -> None:
    """It held whoever connected for as long as it liked."""
    taken: list[socket.socket] = []

    def answer() -> None:
        taken.append(listener.accept()[0])
        taken[0].sendall(first)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(WireError, match="does not answer yet"):
            Channel("127.0.0.1", int(listener.getsockname()[1]), TOKEN, timeout=0.5)
    for sock in taken:
        sock.close()


def test_a_listener_that_trickles_is_left() -> None:
    """Bytes that come one by one do not prolong the wait."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def trickle() -> None:
            sock, _ = listener.accept()
            with suppress(OSError):
                for byte in frame_handshake(Challenge(VERSION, "n" * 200)):
                    sock.sendall(bytes([byte]))
                    if over.wait(0.1):
                        return

        threading.Thread(target=trickle, daemon=True).start()
        with pytest.raises(WireError, match="does not answer yet"):
            Channel("127.0.0.1", int(listener.getsockname()[1]), TOKEN, timeout=0.5)
        over.set()


def test_the_wait_for_a_proof_is_short() -> None:
    assert channel_module.PROVED_WITHIN <= 10
