"""A client's end of a connection to the coordinator. Standard library only."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.framing import (
    Challenge,
    Refused,
    Response,
    frame,
    frame_handshake,
    give_up_in_time,
    is_proof,
    new_nonce,
    other_version,
    proof,
    unframe,
    unframe_handshake,
    unframe_verdict,
)
from recycle_runtime.protocol.messages import VERSION, Message

_CONNECT_SECONDS = 3.0
T = TypeVar("T")


class Channel:
    """Several threads may send, one receives."""

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
        try:
            self._prove(token)
        except WireError:
            self._socket.close()
            raise
        self._socket.settimeout(None)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        self._send(frame(message))

    def receive(self) -> Message:
        """The next message, whenever it comes."""
        return self._next(lambda: unframe(self._buffer))

    def waiting(self) -> Message | None:
        """A message that has arrived already and needs no reading."""
        return unframe(self._buffer)

    def fill(self) -> None:
        """Read what has arrived; call it when the socket is readable."""
        try:
            data = self._socket.recv(1 << 16)
        except OSError as error:
            raise WireError(f"the coordinator is gone: {error}") from None
        if not data:
            raise WireError("the coordinator has closed the connection")
        self._buffer += data

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, data: bytes) -> None:
        try:
            with self._sending:
                self._socket.settimeout(None)
                self._socket.sendall(data)
        except OSError as error:
            raise WireError(f"the coordinator is gone: {error}") from None

    def _next(self, take: Callable[[], T | None]) -> T:
        while True:
            found = take()
            if found is not None:
                return found
            self.fill()

    def _prove(self, token: str) -> None:
        try:
            challenge = self._next(lambda: unframe_handshake(Challenge, self._buffer))
        except WireError as error:
            raise WireError(f"what listens there is not the coordinator of a job: {error}") from None
        if challenge.version != VERSION:
            raise WireError(other_version(challenge.version, VERSION))
        servers, clients = challenge.nonce, new_nonce()
        mine = proof(token, "client", VERSION, servers, clients)
        self._send(frame_handshake(Response(VERSION, clients, mine)))
        try:
            verdict = self._next(lambda: unframe_verdict(self._buffer))
        except WireError:
            raise WireError("the coordinator does not accept the token") from None
        if isinstance(verdict, Refused):
            raise WireError(f"the coordinator refuses: {verdict.why}")
        if not is_proof(verdict.proof, proof(token, "server", VERSION, servers, clients)):
            raise WireError("what listens there does not know the job's token")
