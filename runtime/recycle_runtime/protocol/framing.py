"""Messages on a socket, and the handshake before them. No torch.

A client has to prove that it knows the job's token before anything it says is read, and gets the
same proof back. The token itself never travels. A frame before that, length first, may have a few hundred
bytes, so that a stranger can neither fill memory nor learn anything. Both ends say which version of the
messages they speak, and go no further if these differ.

    server -> client    Challenge(version, nonce N)
    client -> server    Response(version, nonce M, proof HMAC(token, "client" version N M))
    server -> client    Welcome(proof HMAC(token, "server" version N M)), or Refused(why)

Where TLS is asked for, the challenge says so and everything after it goes through a tunnel (see `tls`). Both
proofs then also cover the certificate of the server. A client that was started otherwise than the server
answers Refused(why), so that both can say it at once.

From then on every message is proved to come from the other end, and in its turn: see `records`.
"""

import hashlib
import hmac
import json
import secrets
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from recycle_runtime.protocol.codec import Natural, ProtocolError, decode, encode
from recycle_runtime.protocol.messages.wire import VERSION, Message, from_fields, to_fields
from recycle_runtime.protocol.records import (
    MOST_BYTES,
    RECORD_BYTES,
    RecordReader,
    RecordWriter,
    record_key,
)

MOST_FROM_STRANGERS: Final = 512
VANISHED_AFTER: Final = 10.0
"""Seconds without an answer after which a client gives its connection up."""
_LENGTH: Final = struct.Struct(">I")
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
_last: "tuple[Message | None, bytes]" = None, b""
"""Last message on any connection, and its text."""

TOKEN: Final = "RECYCLE_TOKEN"
"""The environment variable that holds the job's secret; arguments are visible to every user of a machine."""


@dataclass(frozen=True, slots=True)
class Challenge:
    version: Natural
    nonce: str


@dataclass(frozen=True, slots=True)
class TlsChallenge:
    """The same, and from here on TLS is spoken."""

    version: Natural
    nonce: str
    tls: bool


@dataclass(frozen=True, slots=True)
class Response:
    version: Natural
    nonce: str
    proof: str


@dataclass(frozen=True, slots=True)
class Welcome:
    proof: str


@dataclass(frozen=True, slots=True)
class Refused:
    why: str


Handshake = Challenge | TlsChallenge | Response | Welcome | Refused
G = TypeVar("G")
H = TypeVar("H")


def new_token() -> str:
    """A secret for one job."""
    return secrets.token_hex(32)


def new_nonce() -> str:
    return secrets.token_hex(16)


def proof(token: str, side: str, version: int, servers: str, clients: str, binding: str = "") -> str:
    """That one knows the token, good for this connection alone; `binding` is what a tunnel is known by."""
    text = f"tls-{side} {version} {binding}" if binding else f"{side} {version}"
    signed = f"{text} {servers} {clients}".encode(errors="backslashreplace")
    return hmac.new(token.encode(), signed, hashlib.sha256).hexdigest()


def is_proof(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="backslashreplace"), expected.encode())


def other_version(theirs: int, ours: int) -> str:
    return f"the other end speaks version {theirs} of the protocol, and this one version {ours}"


class FramingSession:
    """Frames of one end of a connection once both ends have proved themselves."""

    def __init__(self, token: str, side: str, servers: str, clients: str, most: int = MOST_BYTES) -> None:
        """`side` is this end's: `client` or `server`; then the nonces of both, and how long a message that
        arrives may be."""
        other = "client" if side == "server" else "server"
        self._writer = RecordWriter(record_key(token, side, VERSION, servers, clients))
        self._reader = RecordReader(record_key(token, other, VERSION, servers, clients), most)

    def frame(self, message: Message) -> bytes:
        """A message as it travels; messages are to be sent in the order in which they come from here."""
        return self._writer.write(_text_of(message))

    def unframe(self, buffer: bytearray) -> Message | None:
        """Take the first whole message out of what has arrived; None while there is none."""
        text = self._reader.read(buffer)
        return None if text is None else from_fields(_fields(text))


def frame_handshake(part: Handshake) -> bytes:
    return _pack(encode(part))


def unframe_challenge(buffer: bytearray) -> Challenge | TlsChallenge | None:
    """Parse the first message of a server."""
    return _unframe(buffer, "challenge", "tls", TlsChallenge, Challenge)


def unframe_response(buffer: bytearray) -> Response | Refused | None:
    """Parse a client's answer to a challenge."""
    return _unframe(buffer, "response", "why", Refused, Response)


def unframe_verdict(buffer: bytearray) -> Welcome | Refused | None:
    """Parse the server's answer to a response."""
    return _unframe(buffer, "verdict", "why", Refused, Welcome)


def _unframe(buffer: bytearray, name: str, mark: str, marked: type[H], plain: type[G]) -> H | G | None:
    """The part of the handshake that comes next, once it is there: `marked` if it has that field."""
    fields = _unpack(buffer, MOST_FROM_STRANGERS)
    if fields is None:
        return None
    return decode(marked, fields, name) if mark in fields else decode(plain, fields, name)


def ask_now_and_then(sock: socket.socket, every: int = 2, times: int = 5) -> None:
    """True if the other host still answers, while there is nothing to say.

    A host that loses power or its cable closes nothing. Left alone, TCP waits a quarter of an hour for the
    answer to what was sent, and without limit if nothing was.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, every)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, times)


def give_up_in_time(sock: socket.socket, seconds: float = VANISHED_AFTER) -> None:
    """Also when something was said, and no answer came."""
    ask_now_and_then(sock)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def _pack(fields: Mapping[str, object]) -> bytes:
    text = _text(fields)
    return _LENGTH.pack(len(text)) + text


def _unpack(buffer: bytearray, most: int) -> dict[str, object] | None:
    if len(buffer) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(buffer)
    if length > most:
        raise ProtocolError(f"a message of {length} bytes is too long")
    end = _LENGTH.size + length
    if len(buffer) < end:
        return None
    text = bytes(buffer[_LENGTH.size : end])
    del buffer[:end]
    return _fields(text)


def _text_of(message: Message) -> bytes:
    """Text of a message; that of a message to many is made once, and signed for each."""
    global _last
    said, text = _last
    if said is not message:
        text = _text(to_fields(message))
        if len(text) <= RECORD_BYTES:
            _last = message, text
    return text


def _text(fields: Mapping[str, object]) -> bytes:
    return _ENCODER.encode(fields).encode()


def _fields(text: bytes) -> dict[str, object]:
    try:
        # A text is read faster than bytes, of which it is not known how they are written.
        value: object = json.loads(text.decode())
    except (ValueError, RecursionError):
        raise ProtocolError("a message is not JSON") from None
    if not isinstance(value, dict):
        raise ProtocolError("a message is not a JSON object")
    return cast("dict[str, object]", value)
