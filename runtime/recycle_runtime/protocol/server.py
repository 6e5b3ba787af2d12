"""Many connections in one loop. No torch.

Strangers get a nonce and nothing else: a wrong proof, a long frame or half a minute of silence closes their
connection, and when too many of them wait the oldest goes. One who knows the token and says what makes no
sense is hung up on as well, and so is a connection on which something was changed on its way; a line in the
log says why (see `refusals`).
"""

import fcntl
import logging
import selectors
import socket
import struct
import termios
import time
from collections.abc import Callable
from typing import Protocol

from recycle_runtime.protocol.access import Token, access_of
from recycle_runtime.protocol.codec import ProtocolError, WireError
from recycle_runtime.protocol.framing import (
    Challenge,
    FramingSession,
    Refused,
    Response,
    TlsChallenge,
    Welcome,
    ask_now_and_then,
    frame_handshake,
    is_proof,
    new_nonce,
    other_version,
    proof,
    unframe_response,
)
from recycle_runtime.protocol.messages.wire import VERSION, Message
from recycle_runtime.protocol.records import MOST_BYTES
from recycle_runtime.protocol.refusals import Refusals
from recycle_runtime.protocol.tls import Certificate, Tunnel

_log = logging.getLogger(__name__)

_PATIENCE = 30.0
_MOST_STRANGERS = 256
_MOST_ACCEPTED = 64
"""Connections taken in one turn."""
_STRANGERS_FOR_EACH = 16
"""The same in jobs with many clients, for each of these."""
_MOST_WAITING_TO_BE_SENT = 1 << 29
_LAST_WORDS_SECONDS = 5.0
"""Seconds for clients to receive the last messages, when the server is closed."""
_LAST_WORDS_EVERY = 0.01
_TLS_HANDSHAKE = 22
"""The first byte of what a client says in TLS; that of a frame is 0."""


class Connection:
    """One client, as the server sees it."""

    def __init__(self, server: "Server", sock: socket.socket) -> None:
        self._server, self.socket = server, sock
        self.incoming, self.outgoing = bytearray(), bytearray()
        self.nonce = new_nonce()
        self.tunnel: Tunnel | None = None
        """From the first byte of it on, if the server wants everything encrypted."""
        self.session: FramingSession | None = None
        """From the moment on at which the client has proved itself."""
        self.is_open = True
        self.is_writing = False
        """True if the server is notified when more can be sent."""
        self.since = time.monotonic()
        self.address = _address(sock)

    def send(self, message: Message) -> None:
        """Queue a message; one to a client that is gone is dropped."""
        if self.is_open and self.session is not None:
            self.send_bytes(self.session.frame(message))

    @property
    def is_known(self) -> bool:
        return self.session is not None

    def send_bytes(self, data: bytes) -> None:
        if self.is_open:
            self.outgoing += data if self.tunnel is None else self.tunnel.say(data)
            self._server.flush(self)

    def hear(self, data: bytes) -> None:
        """Take in what has arrived; ProtocolError if it should be TLS and is not."""
        if self.tunnel is None:
            self.incoming += data
            return
        self.incoming += self.tunnel.hear(data)
        if owed := self.tunnel.owed():
            self.outgoing += owed
            self._server.flush(self)

    def close(self) -> None:
        self._server.drop(self)

    def drain(self) -> None:
        """Deliver what has arrived: the last words of a client that is gone."""
        while self._server.read(self):
            pass


class Served(Protocol):
    """Callbacks of the server."""

    def message(self, connection: Connection, message: Message) -> None:
        """ProtocolError if it makes no sense; the connection is closed then."""
        ...

    def closed(self, connection: Connection) -> None: ...

    def tick(self) -> None: ...


class Server:
    """Listens, and calls back; everything happens in `turn`."""

    def __init__(
        self,
        host: str,
        port: int,
        token: Token,
        served: Served,
        listener: int | None = None,
        certificate: Certificate | None = None,
        admits: Callable[[socket.socket], bool] = lambda _: True,
        most: int = MOST_BYTES,
    ) -> None:
        """`listener` is a socket that listens there already; with a certificate everything is encrypted.
        `admits` is asked before anything is said to a stranger; `most` is how long a message may be."""
        self._access, self._served, self._certificate = access_of(token), served, certificate
        self._admits, self._most = admits, most
        self._selector = selectors.EpollSelector()
        if listener is None:
            self._listener = socket.create_server((host, port), backlog=1024)
        else:
            self._listener = socket.socket(fileno=listener)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._strangers: dict[Connection, None] = {}
        self._refusals = Refusals(_log)
        self._broken: list[Connection] = []
        """Found to be so while something was sent, when no error is expected."""

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def fileno(self) -> int:
        """Descriptor that becomes readable when there is something to handle."""
        return self._selector.fileno()

    def watch(self, descriptor: int) -> None:
        """Also wake up when this can be read; the owner reads it in `tick`."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def turn(self, seconds: float) -> None:
        """Wait for something at most so long, and deal with it."""
        for key, ready in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._accept_some()
            elif isinstance(key.data, Connection):
                if ready & selectors.EVENT_READ:
                    self.read(key.data)
                if ready & selectors.EVENT_WRITE:
                    self.flush(key.data)
        while self._broken:
            self.drop(self._broken.pop())
        self._forget_strangers()
        self._refusals.look()
        self._served.tick()

    def flush(self, connection: Connection) -> None:
        """Send what can be sent now; the rest goes when the client takes it."""
        if not connection.is_open:
            return
        try:
            if connection.outgoing:
                sent = connection.socket.send(connection.outgoing)
                del connection.outgoing[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._broken.append(connection)
            return
        if len(connection.outgoing) > _MOST_WAITING_TO_BE_SENT:
            self._broken.append(connection)
            return
        if connection.is_writing != bool(connection.outgoing):
            connection.is_writing = bool(connection.outgoing)
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.is_writing else 0)
            self._selector.modify(connection.socket, wanted, connection)

    def drop(self, connection: Connection) -> None:
        """Close; the owner hears of it if the client had been known."""
        if not connection.is_open:
            return
        connection.is_open = False
        self._strangers.pop(connection, None)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection.is_known:
            self._served.closed(connection)

    def close(self) -> None:
        """Once clients have received what was sent to them, or had time to."""
        keys = list(self._selector.get_map().values())
        clients = [key.data for key in keys if isinstance(key.data, Connection)]
        self._send_rest(clients)
        for client in clients:
            client.session = None
            self.drop(client)
        self._refusals.end()
        self._selector.unregister(self._listener)
        self._listener.close()
        self._selector.close()

    def _send_rest(self, clients: list[Connection]) -> None:
        until = time.monotonic() + _LAST_WORDS_SECONDS
        left = [client for client in clients if client.is_known]
        while left and time.monotonic() < until:
            for client in left:
                self.flush(client)
            left = [client for client in left if client not in self._broken and _has_rest(client)]
            if left:
                time.sleep(_LAST_WORDS_EVERY)

    def abandon(self) -> None:
        """In a process that was forked from the one that serves, which notices nothing of it."""
        for key in self._selector.get_map().values():
            if isinstance(key.data, Connection):
                key.data.socket.close()
        self._listener.close()
        # What is taken out of it one by one would be taken out in the other process too.
        self._selector.close()

    def _accept_some(self) -> None:
        """Those who wait; not all at once, so that others are heard in between."""
        for _ in range(_MOST_ACCEPTED):
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._accept(sock)

    def _accept(self, sock: socket.socket) -> None:
        if not self._admits(sock):
            sock.close()
            return
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Long: whom the coordinator cannot reach may look for it meanwhile, and comes with a new
            # connection.
            ask_now_and_then(sock, every=10)
        connection = Connection(self, sock)
        self._selector.register(sock, selectors.EVENT_READ, connection)
        self._strangers[connection] = None
        if len(self._strangers) > self._most_strangers():
            self.drop(next(iter(self._strangers)))
        if self._certificate is None:
            connection.send_bytes(frame_handshake(Challenge(VERSION, connection.nonce)))
        else:
            connection.send_bytes(frame_handshake(TlsChallenge(VERSION, connection.nonce, tls=True)))

    def read(self, connection: Connection) -> bool:
        """Deliver a part of what has arrived; False if there is nothing."""
        try:
            data = connection.socket.recv(1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.drop(connection)
            return False
        try:
            if self._certificate is not None and connection.tunnel is None and data[0] == _TLS_HANDSHAKE:
                connection.tunnel = self._certificate.tunnel()
            connection.hear(data)
            self._deliver(connection)
        except WireError as error:
            who = "a client" if connection.is_known else "a stranger"
            self._refusals.tell(who, connection.address, str(error))
            self.drop(connection)
        return connection.is_open

    def _deliver(self, connection: Connection) -> None:
        while connection.is_open:
            if connection.session is not None:
                message = connection.session.unframe(connection.incoming)
                if message is None:
                    return
                self._served.message(connection, message)
            else:
                response = unframe_response(connection.incoming)
                if response is None:
                    return
                if isinstance(response, Refused):
                    # Whatever a stranger writes stands in the log as one line.
                    raise ProtocolError(f"it refuses, and says {response.why!a}")
                if self._certificate is not None and connection.tunnel is None:
                    raise ProtocolError("it does not speak TLS")
                self._introduce(connection, response)

    def _introduce(self, connection: Connection, response: Response) -> None:
        if response.version != VERSION:
            why = other_version(VERSION, response.version)
            connection.send_bytes(frame_handshake(Refused(why)))
            raise ProtocolError(other_version(response.version, VERSION))
        nonces = connection.nonce, response.nonce
        binding = "" if connection.tunnel is None else connection.tunnel.binding
        for token in self._access.tokens():
            if is_proof(response.proof, proof(token, "client", VERSION, *nonces, binding)):
                break
        else:
            raise ProtocolError("it does not know the token")
        del self._strangers[connection]
        answer = Welcome(proof(token, "server", VERSION, *nonces, binding))
        connection.send_bytes(frame_handshake(answer))
        connection.session = FramingSession(token, "server", *nonces, self._most)

    def _most_strangers(self) -> int:
        """All processes of a large job may come at the same moment, once their agents are there."""
        known = len(self._selector.get_map()) - len(self._strangers)
        return max(_MOST_STRANGERS, _STRANGERS_FOR_EACH * known)

    def _forget_strangers(self) -> None:
        limit = time.monotonic() - _PATIENCE
        # They are in the order in which they came.
        while self._strangers and (oldest := next(iter(self._strangers))).since < limit:
            self.drop(oldest)


def _has_rest(client: Connection) -> bool:
    """True if something that was sent has not arrived on the machine of the client. What has can be read
    there after the connection is closed; the rest may not be, if something from there was left unread."""
    if client.outgoing or not client.is_open:
        return client.is_open
    if client.socket.family == socket.AF_UNIX:
        return False
    try:
        unsent = fcntl.ioctl(client.socket, termios.TIOCOUTQ, struct.pack("i", 0))
    except OSError:
        return False
    return struct.unpack("i", unsent)[0] > 0


def _address(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return "this node"
    try:
        host, port, *_ = sock.getpeername()
    except (OSError, ValueError):
        return "an address that is gone"
    return f"{host}:{port}"
