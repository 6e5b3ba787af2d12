"""A client's end of a connection to the coordinator. No torch."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from recycle_runtime.protocol.access import Token, access_of
from recycle_runtime.protocol.codec import (
    MismatchError,
    ProtocolError,
    RefusalError,
    UnreachableError,
    WireError,
)
from recycle_runtime.protocol.framing import (
    FramingSession,
    Refused,
    Response,
    TlsChallenge,
    frame_handshake,
    give_up_in_time,
    is_proof,
    new_nonce,
    other_version,
    proof,
    unframe_challenge,
    unframe_verdict,
)
from recycle_runtime.protocol.messages.wire import VERSION, Message
from recycle_runtime.protocol.tls import Tunnel, client_tunnel

PROVED_WITHIN = 10.0
"""Seconds that both ends have to prove themselves."""
_CONNECT_SECONDS = 3.0
_LEAST_SECONDS = 0.1
_MOST_BEFORE_PROOF = 1024
"""Bytes read at a time while the other end may be anybody."""
T = TypeVar("T")


class Channel:
    """Several threads may send, one receives."""

    _can_encrypt = True
    """True if TLS is spoken where the job wants it."""

    def __init__(self, host: str, port: int, token: Token, timeout: float = PROVED_WITHIN) -> None:
        """`timeout` is for all that comes before the first message."""
        self._sending = threading.Lock()
        self._buffer = bytearray()
        self._tunnel: Tunnel | None = None
        access, deadline = access_of(token), time.monotonic() + timeout
        tls = access.tls and self._can_encrypt
        *others, last = access.tokens()
        for each in others:
            try:
                self._open(host, port, each, deadline, tls=tls)
                return
            except _TokenRefusedError:
                # Whoever listens may have read its file before this one was in it, or after it was taken out.
                continue
        self._open(host, port, last, deadline, tls=tls)

    def _reached(self, host: str, port: int, timeout: float) -> socket.socket:
        """A connection on which nothing has been said; UnreachableError if nobody listens."""
        try:
            # A host that does not answer is asked again soon, so that it is found when it is back.
            found = socket.create_connection((host, port), min(timeout, _CONNECT_SECONDS))
        except OSError as error:
            raise UnreachableError(f"no coordinator at {host}:{port}: {error}") from None
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        give_up_in_time(found)
        return found

    def _open(self, host: str, port: int, token: str, deadline: float, *, tls: bool) -> None:
        self._where = f"{host}:{port}" if port else "this node"
        self._socket = self._reached(host, port, max(deadline - time.monotonic(), _LEAST_SECONDS))
        try:
            self._session = self._prove(token, deadline, tls=tls)
        except WireError:
            self._socket.close()
            self._buffer.clear()
            self._tunnel = None
            raise
        self._socket.settimeout(None)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        try:
            # Messages are numbered: they leave in the order in which they got their numbers.
            with self._sending:
                self._send_bytes(self._session.frame(message))
        except WireError:
            raise
        except OSError as error:
            raise WireError(f"the coordinator is gone: {error}") from None

    def receive(self) -> Message:
        """The next message, whenever it comes."""
        while (message := self.waiting()) is None:
            self.fill()
        return message

    def waiting(self) -> Message | None:
        """A message that has arrived already and needs no reading."""
        return self._session.unframe(self._buffer)

    def fill(self, most: int = 1 << 16) -> None:
        """Read what has arrived; call it when the socket is readable."""
        try:
            data = self._socket.recv(most)
        except TimeoutError:
            raise self._silent() from None
        except OSError as error:
            raise WireError(f"the coordinator is gone: {error}") from None
        if not data:
            raise WireError("the coordinator has closed the connection")
        self._buffer += data if self._tunnel is None else self._tunnel.hear(data)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data if self._tunnel is None else self._tunnel.say(data))

    def _prove(self, token: str, deadline: float, *, tls: bool) -> FramingSession:
        """Each end to the other; WireError if that has not happened by then."""
        try:
            challenge = self._heard(lambda: unframe_challenge(self._buffer), deadline)
        except ProtocolError as error:
            raise self._stranger(error) from None
        if challenge.version != VERSION:
            raise RefusalError(other_version(challenge.version, VERSION))
        binding = self._secure(deadline, theirs=isinstance(challenge, TlsChallenge), ours=tls)
        servers, clients = challenge.nonce, new_nonce()
        mine = proof(token, "client", VERSION, servers, clients, binding)
        try:
            self._send_bytes(frame_handshake(Response(VERSION, clients, mine)))
        except OSError as error:
            raise WireError(f"the coordinator is gone: {error}") from None
        try:
            verdict = self._heard(lambda: unframe_verdict(self._buffer), deadline)
        except _SilentError:
            raise
        except ProtocolError as error:
            raise self._stranger(error) from None
        except WireError:
            between = ", or somebody stands between with another certificate" if tls else ""
            raise _TokenRefusedError(f"the coordinator does not accept the token{between}") from None
        if isinstance(verdict, Refused):
            raise RefusalError(f"the coordinator refuses: {verdict.why}")
        if not is_proof(verdict.proof, proof(token, "server", VERSION, servers, clients, binding)):
            raise RefusalError("what listens there does not know the job's token")
        return FramingSession(token, "client", servers, clients)

    def _secure(self, deadline: float, *, theirs: bool, ours: bool) -> str:
        """Identity of this connection if it is encrypted; MismatchError if only one end wants that."""
        if theirs != ours:
            how = "with" if ours else "without"
            with suppress(OSError):
                self._socket.sendall(frame_handshake(Refused(f"it was started {how} --tls")))
            missing = "the coordinator was started without --tls, and this process with it"
            surplus = "the coordinator was started with --tls: start this process with --tls too"
            raise MismatchError(missing if ours else surplus)
        if not ours:
            return ""
        tunnel = self._tunnel = client_tunnel()
        try:
            self._socket.sendall(tunnel.begin())
            # The other end says nothing in it before this one has proved itself.
            self._heard(lambda: tunnel.is_ready or None, deadline)
            self._socket.sendall(tunnel.owed())
        except ProtocolError as error:
            raise RefusalError(f"what listens there does not speak TLS: {error}") from None
        except WireError:
            raise
        except OSError as error:
            raise WireError(f"the coordinator is gone: {error}") from None
        return tunnel.binding

    def _silent(self) -> "_SilentError":
        return _SilentError(f"what listens at {self._where} does not answer yet")

    def _stranger(self, error: ProtocolError) -> RefusalError:
        return RefusalError(f"what listens at {self._where} is not the coordinator of a job: {error}")

    def _heard(self, take: Callable[[], T | None], deadline: float) -> T:
        """The next part of the handshake, however slowly it comes, but not after the deadline."""
        while (found := take()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._silent()
            self._socket.settimeout(left)
            self.fill(_MOST_BEFORE_PROOF)
        return found


class _SilentError(WireError):
    """Somebody listens and does not answer: a coordinator that starts, or is busy or paused, may yet."""


class _TokenRefusedError(RefusalError):
    """Another one may be accepted."""
