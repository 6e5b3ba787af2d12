"""JSON messages on a socket, length first. Standard library only.

Whoever connects has to prove that it knows the job's token before anything it says is read, and gets the
same proof back. The token itself never travels. A frame before that may have a few hundred bytes, so that a
stranger can neither fill memory nor learn anything.

    server -> client    {"nonce": N}
    client -> server    {"nonce": M, "proof": HMAC(token, "client" N M)}
    server -> client    {"proof": HMAC(token, "server" N M)}
"""

import hashlib
import hmac
import json
import secrets
import socket
import struct
import threading
from contextlib import suppress
from typing import Any, cast

from recycle_runtime.protocol.keepalive import give_up_in_time

Message = dict[str, Any]

MOST_BYTES = 1 << 28
"""Of a message; plans of the largest jobs take a few MiB."""
MOST_FROM_STRANGERS = 512
_LENGTH = struct.Struct(">I")
_CONNECT_SECONDS = 3.0


TOKEN = "RECYCLE_TOKEN"
"""The environment variable that holds the job's secret; arguments can be seen by everybody on a machine."""


class WireError(ConnectionError):
    """The other end is gone, or does not speak as it should."""


def new_token() -> str:
    """A secret for one job."""
    return secrets.token_hex(32)


def new_nonce() -> str:
    return secrets.token_hex(16)


def proof(token: str, side: str, servers: str, clients: str) -> str:
    """That one knows the token, good for this connection alone."""
    text = f"{side} {servers} {clients}".encode(errors="backslashreplace")
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()


def is_proof(given: object, expected: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(
        given.encode(errors="backslashreplace"), expected.encode()
    )


def frame(message: Message) -> bytes:
    text = json.dumps(message, separators=(",", ":")).encode()
    if len(text) > MOST_BYTES:
        raise WireError(f"a message of {len(text)} bytes is too long")
    return _LENGTH.pack(len(text)) + text


def unframe(buffer: bytearray, most: int = MOST_BYTES) -> Message | None:
    """Take the first whole message out of what has arrived; None while there is none."""
    if len(buffer) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(buffer)
    if length > most:
        raise WireError(f"a message of {length} bytes is too long")
    end = _LENGTH.size + length
    if len(buffer) < end:
        return None
    text = bytes(buffer[_LENGTH.size : end])
    del buffer[:end]
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        raise WireError("a message is not JSON") from None
    if not isinstance(value, dict):
        raise WireError("a message is not a JSON object")
    return cast(Message, value)


class Channel:
    """A client's end of a connection; several threads may send, one receives."""

    def __init__(self, host: str, port: int, token: str, timeout: float = 10.0) -> None:
        try:
            # A host that does not answer is asked again soon, so that it is found when it is back.
            self._socket = socket.create_connection((host, port), min(timeout, _CONNECT_SECONDS))
        except OSError as error:
            raise WireError(f"no coordinator at {host}:{port}: {error}") from None
        self._socket.settimeout(timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        give_up_in_time(self._socket)
        self._buffer = bytearray()
        self._sending = threading.Lock()
        self._prove(token)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        data = frame(message)
        try:
            with self._sending:
                self._socket.settimeout(None)
                self._socket.sendall(data)
        except OSError as error:
            raise WireError(f"the coordinator is gone: {error}") from None

    def receive(self) -> Message:
        """The next message, whenever it comes."""
        while True:
            message = unframe(self._buffer)
            if message is not None:
                return message
            self._fill()

    def waiting(self) -> Message | None:
        """A message that has arrived already and needs no reading."""
        return unframe(self._buffer)

    def fill(self) -> None:
        """Read what has arrived; call it when the socket is readable."""
        self._fill()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _fill(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except OSError as error:
            raise WireError(f"the coordinator is gone: {error}") from None
        if not data:
            raise WireError("the coordinator has closed the connection")
        self._buffer += data

    def _prove(self, token: str) -> None:
        servers, clients = self.receive().get("nonce"), new_nonce()
        if not isinstance(servers, str):
            raise WireError("whoever listens there is not the coordinator of a job")
        self.send({"nonce": clients, "proof": proof(token, "client", servers, clients)})
        try:
            answer = self.receive()
        except WireError:
            raise WireError("the coordinator does not accept the token") from None
        if not is_proof(answer.get("proof"), proof(token, "server", servers, clients)):
            raise WireError("whoever listens there does not know the job's token")
        self._socket.settimeout(None)
