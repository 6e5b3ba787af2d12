"""Whatever strangers send: they are told nothing, break nothing, and proper clients are served meanwhile."""

import json
import socket
import struct
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_runtime.protocol import server as server_module
from recycle_runtime.protocol.access import Access, Token, access_of
from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.framing import (
    Challenge,
    FramingSession,
    Refused,
    Response,
    Welcome,
    frame_handshake,
    new_token,
    proof,
    unframe_challenge,
    unframe_verdict,
)
from recycle_runtime.protocol.messages.agents import Heartbeat
from recycle_runtime.protocol.messages.generations import Done, GroupBroken
from recycle_runtime.protocol.messages.store import StoreSet
from recycle_runtime.protocol.messages.wire import VERSION, Message
from recycle_runtime.protocol.records import MOST_BYTES
from recycle_runtime.protocol.server import Connection, Server
from recycle_runtime.protocol.tls import Certificate
from tests.runtime.protocol.raw_client import RawClient

TOKEN = new_token()
LENGTH = struct.Struct(">I")


class Echo:
    """Answers every message with itself; counts what it hears of connections."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.closed_ones = 0

    def message(self, connection: Connection, message: Message) -> None:
        self.heard.append(message)
        connection.send(message)

    def closed(self, connection: Connection) -> None:
        self.closed_ones += 1

    def tick(self) -> None: ...


class Running:
    """A server in a thread; if the thread dies, `check` says so."""

    def __init__(self, token: Token = TOKEN, certificate: Certificate | None = None) -> None:
        self.echo = Echo()
        self.server = Server("127.0.0.1", 0, token, self.echo, certificate=certificate)
        self._client = access_of(token) if certificate is None else Access(TOKEN, tls=True)
        self.port = self.server.port
        self._over = threading.Event()
        self._error: list[BaseException] = []
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        try:
            while not self._over.is_set():
                self.server.turn(0.02)
        except BaseException as error:
            self._error.append(error)

    def check(self) -> None:
        """A proper client is served."""
        assert not self._error, self._error
        client = Channel("127.0.0.1", self.port, self._client)
        client.send(StoreSet("hello", "1"))
        assert client.receive() == StoreSet("hello", "1")
        client.close()

    def end(self) -> None:
        self._over.set()
        self._thread.join(10)
        self.server.close()
        assert not self._error, self._error


@pytest.fixture(scope="module")
def running() -> Generator[Running]:
    found = Running()
    yield found
    found.end()


@contextmanager
def stranger(running: Running) -> Generator[socket.socket]:
    with socket.create_connection(("127.0.0.1", running.port), 10) as sock:
        yield sock


def everything(sock: socket.socket) -> bytes:
    """All bytes until the other end hangs up."""
    found = b""
    with suppress(ConnectionResetError):
        while data := sock.recv(4096):
            found += data
    return found


def only_a_nonce(data: bytes) -> None:
    buffer = bytearray(data)
    challenge = unframe_challenge(buffer)
    assert not buffer or challenge is None


@settings(max_examples=60)
@given(data=st.binary(max_size=700), ends=st.booleans())
def test_random_bytes(running: Running, data: bytes, ends: bool) -> None:
    with stranger(running) as sock, suppress(OSError):
        sock.sendall(data)
        if ends:
            sock.shutdown(socket.SHUT_WR)
            only_a_nonce(everything(sock))
    running.check()


def in_a_frame(value: object) -> bytes:
    text = json.dumps(value).encode()
    return LENGTH.pack(len(text)) + text


texts = st.text(alphabet=st.characters(), max_size=30)


@settings(max_examples=60)
@given(
    message=st.fixed_dictionaries(
        {}, optional={"nonce": texts | st.integers() | st.none(), "proof": texts | st.booleans()}
    )
)
def test_wrong_proofs(running: Running, message: dict[str, object]) -> None:
    with stranger(running) as sock:
        sock.sendall(in_a_frame(message | {"version": VERSION}))
        only_a_nonce(everything(sock))
    running.check()


SPITEFUL = [
    b'{"nonce":"\\ud800","proof":"\\udfff"}',
    b'{"nonce":"' + b"a" * 400 + b'"}',
    b"[" * 500,
    b'{"a":' * 90,
    b'"' * 3,
    b"1" * 500,
    b"-Infinity",
    b"\xff\xfe",
    b"null",
    b"",
]


@pytest.mark.parametrize("text", SPITEFUL, ids=range(len(SPITEFUL)))
def test_spiteful_frames(running: Running, text: bytes) -> None:
    with stranger(running) as sock:
        sock.sendall(LENGTH.pack(len(text)) + text)
        sock.shutdown(socket.SHUT_WR)
        only_a_nonce(everything(sock))
    running.check()


@pytest.mark.parametrize("length", [513, MOST_BYTES, 0xFFFFFFFF])
def test_huge_lengths(running: Running, length: int) -> None:
    """The connection is closed before anything of it has to be kept."""
    with stranger(running) as sock:
        sock.sendall(LENGTH.pack(length))
        only_a_nonce(everything(sock))
    running.check()


def test_a_proof_is_good_for_one_connection(running: Running) -> None:
    with stranger(running) as first, stranger(running) as second:
        nonces: list[str] = []
        for sock in (first, second):
            challenge = unframe_challenge(bytearray(sock.recv(4096)))
            assert challenge is not None and challenge.version == VERSION
            nonces.append(challenge.nonce)
        response = Response(VERSION, "n", proof(TOKEN, "client", VERSION, nonces[0], "n"))
        second.sendall(frame_handshake(response))
        assert everything(second) == b""
        # Nor can the server's own proof be sent back to it.
        mirrored = Response(VERSION, "n", proof(TOKEN, "server", VERSION, nonces[0], "n"))
        first.sendall(frame_handshake(mirrored))
        assert everything(first) == b""


def test_a_wrong_token_is_said_to_be_one(running: Running) -> None:
    with pytest.raises(WireError, match="does not accept the token"):
        Channel("127.0.0.1", running.port, new_token())
    running.check()


def test_a_server_that_is_none() -> None:
    """A client tells whoever answers nothing but a proof, and believes nobody without one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
        answers: list[dict[str, object]] = [
            {"nonce": 3, "version": VERSION},
            {"hello": 1},
            {"nonce": "a", "version": VERSION},
        ]

        def answer() -> None:
            for message in answers:
                sock, _ = listener.accept()
                with sock:
                    sock.sendall(in_a_frame(message))
                    if message.get("nonce") == "a":
                        sock.recv(4096)
                        sock.sendall(frame_handshake(Welcome("0" * 64)))
                        sock.recv(4096)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        for words in ("not the coordinator", "not the coordinator", "does not know the job's token"):
            with pytest.raises(WireError, match=words):
                Channel("127.0.0.1", port, TOKEN)
        thread.join(10)


def test_slow_strangers_are_shown_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_PATIENCE", 0.3)
    running = Running()
    with stranger(running) as idle, stranger(running) as slow:
        slow.sendall(LENGTH.pack(100) + b"{")
        running.check()
        only_a_nonce(everything(idle))
        only_a_nonce(everything(slow))
    running.check()
    running.end()
    # Nobody else was ever told of them.
    assert running.echo.closed_ones <= len(running.echo.heard) == 2


def test_crowds_do_not_keep_clients_out(running: Running) -> None:
    crowd = [socket.create_connection(("127.0.0.1", running.port), 10) for _ in range(400)]
    running.check()
    # The oldest had to go.
    only_a_nonce(everything(crowd[0]))
    for sock in crowd:
        sock.close()
    running.check()


def test_messages_in_pieces(running: Running) -> None:
    client = RawClient(running.port, TOKEN)
    for byte in client.writer.write(b'{"type":"heartbeat"}'):
        client.socket.sendall(bytes([byte]))
        time.sleep(0.001)
    assert client.hear() == {"type": "heartbeat"}
    client.close()


def test_a_client_that_is_gone_has_its_last_words_heard() -> None:
    """Even if somebody else says first that it is gone."""
    heard: list[type[object]] = []

    class Listening(Echo):
        def message(self, connection: Connection, message: Message) -> None:
            if isinstance(message, GroupBroken):
                others[0].drain()
            elif isinstance(message, Heartbeat):
                others.append(connection)
                connection.send(message)
            heard.append(type(message))

    others: list[Connection] = []
    server = Server("127.0.0.1", 0, TOKEN, Listening())
    over = threading.Event()
    pause = threading.Event()

    def loop() -> None:
        while not over.is_set():
            if not pause.is_set():
                server.turn(0.02)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    agent, member = (Channel("127.0.0.1", server.port, TOKEN) for _ in range(2))
    member.send(Heartbeat())
    member.receive()
    pause.set()
    time.sleep(0.1)
    agent.send(GroupBroken(1, "gone"))
    member.send(Done())
    member.close()
    pause.clear()
    while GroupBroken not in heard:
        time.sleep(0.01)
    over.set()
    thread.join(10)
    assert heard == [Heartbeat, Done, GroupBroken]
    agent.close()
    server.close()


def test_another_version_is_refused_with_both_numbers(running: Running) -> None:
    with stranger(running) as sock:
        challenge = unframe_challenge(bytearray(sock.recv(4096)))
        assert challenge is not None
        old = Response(VERSION + 4, "n", proof(TOKEN, "client", VERSION + 4, challenge.nonce, "n"))
        sock.sendall(frame_handshake(old))
        refused = unframe_verdict(bytearray(everything(sock)))
    assert isinstance(refused, Refused)
    assert f"version {VERSION} " in refused.why and refused.why.endswith(f"version {VERSION + 4}")
    running.check()


def test_a_coordinator_of_another_version_is_refused_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])

        def answer() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(frame_handshake(Challenge(VERSION + 1, "n")))
                sock.recv(4096)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(WireError, match=rf"version {VERSION + 1} of .* version {VERSION}$"):
            Channel("127.0.0.1", port, TOKEN)
        thread.join(10)


@given(st.text(max_size=30), st.text(max_size=30))
def test_messages_survive(key: str, value: str) -> None:
    message = StoreSet(key, value)
    client, server = (FramingSession(TOKEN, side, "n", "m") for side in ("client", "server"))
    whole = client.frame(message)
    buffer = bytearray()
    for byte in whole[:-1]:
        buffer.append(byte)
        assert server.unframe(buffer) is None
    buffer.append(whole[-1])
    assert server.unframe(buffer) == message
    assert json.loads(whole[20:]) == {"type": "store_set", "key": key, "value": value}


@pytest.mark.parametrize("is_heard", [True, False])
def test_last_words_reach_slow_readers(monkeypatch: pytest.MonkeyPatch, is_heard: bool) -> None:
    """Found once: what had not been sent when a server was closed was dropped, as was that which a client
    had not received when something that it had said was left unread. Who never reads is not waited for."""
    monkeypatch.setattr(server_module, "_LAST_WORDS_SECONDS", 20.0 if is_heard else 0.2)

    class Talking(Echo):
        def message(self, connection: Connection, message: Message) -> None:
            for _ in range(64):
                connection.send(GroupBroken(1, "x" * (1 << 17)))
            connection.send(Done("the last word"))

    server, heard = Server("127.0.0.1", 0, TOKEN, Talking()), list[object]()
    client: list[RawClient] = []
    connecting = threading.Thread(target=lambda: client.append(RawClient(server.port, TOKEN)))
    connecting.start()
    while not client:
        server.turn(0.01)
    connecting.join()
    client[0].say({"type": "heartbeat"})
    server.turn(1.0)
    client[0].say({"type": "heartbeat"})

    def read() -> None:
        time.sleep(0.3)
        with suppress(ConnectionError):
            while True:
                heard.append(client[0].hear())

    reading = threading.Thread(target=read)
    if is_heard:
        reading.start()
    began = time.monotonic()
    server.close()
    if is_heard:
        reading.join()
        assert heard[-1] == {"type": "done", "error": "the last word"}
    else:
        assert 0.2 <= time.monotonic() - began < 10.0
    client[0].close()
