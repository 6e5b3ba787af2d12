"""Messages after the handshake, in records that only the two ends can make. No torch.

Each direction of a connection has a key of its own, made of the job's token and both nonces, and counts its
records. A record carries a tag over its number and all that is in it. Whoever stands in between can cut the
connection, and no more: what it adds, changes, repeats, leaves out or exchanges is noticed at the next
record, and the connection is closed then.

    record      length (4 bytes, the first bit says that the message goes on), tag (16 bytes), text

A message is one record, or several if it is long, so that no more than one record is ever kept before it is
known to be genuine.
"""

import hmac
import struct
from typing import Final

from recycle_runtime.protocol.codec import ProtocolError

MOST_BYTES: Final = 1 << 28
"""Of a message; plans of the largest jobs take a few MiB."""
RECORD_BYTES: Final = 1 << 16
"""Of the text of a record."""
TAG_BYTES: Final = 16
_HEADER: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">Q")
_GOES_ON: Final = 1 << 31
_TEXT_AT: Final = _HEADER.size + TAG_BYTES


def record_key(token: str, side: str, version: int, servers: str, clients: str) -> bytes:
    """Of the records that one side of one connection sends."""
    text = f"records {side} {version} {servers} {clients}".encode(errors="backslashreplace")
    return hmac.digest(token.encode(), text, "sha256")


class RecordWriter:
    """The sending end of one direction."""

    def __init__(self, key: bytes) -> None:
        self._key, self._number = key, 0

    def write(self, text: bytes) -> bytes:
        """A message as it travels; messages must be sent in the order in which they are written."""
        if len(text) <= RECORD_BYTES:
            return self._record(text, 0)
        if len(text) > MOST_BYTES:
            raise ProtocolError(f"a message of {len(text)} bytes is too long")
        last = (len(text) - 1) // RECORD_BYTES * RECORD_BYTES
        view = memoryview(text)
        records = [
            self._record(view[first : first + RECORD_BYTES], _GOES_ON if first < last else 0)
            for first in range(0, len(text), RECORD_BYTES)
        ]
        return b"".join(records)

    def _record(self, text: bytes | memoryview, flag: int) -> bytes:
        header = _HEADER.pack(flag | len(text))
        tag = _tag(self._key, self._number, header, text)
        self._number += 1
        return b"".join((header, tag, text))


class RecordReader:
    """The receiving end of one direction."""

    def __init__(self, key: bytes, most: int = MOST_BYTES) -> None:
        """`most` is how long a message may be."""
        self._key, self._number, self._most = key, 0, most
        self._begun = bytearray()
        """Of a message whose last record has not come."""

    def read(self, buffer: bytearray) -> bytes | None:
        """Take the first whole message out of what has arrived; None while there is none."""
        while len(buffer) >= _TEXT_AT:
            header = bytes(buffer[: _HEADER.size])
            (length,) = _HEADER.unpack(header)
            goes_on, length = length & _GOES_ON, length & ~_GOES_ON
            if length > RECORD_BYTES:
                raise ProtocolError(f"a record of {length} bytes is too long")
            end = _TEXT_AT + length
            if len(buffer) < end:
                return None
            text = bytes(buffer[_TEXT_AT:end])
            if not hmac.compare_digest(
                bytes(buffer[_HEADER.size : _TEXT_AT]), _tag(self._key, self._number, header, text)
            ):
                raise ProtocolError("a message was changed, repeated or left out on its way")
            del buffer[:end]
            self._number += 1
            if not goes_on and not self._begun:
                return text
            self._begun += text
            if len(self._begun) > self._most:
                raise ProtocolError(f"a message of more than {self._most} bytes is too long")
            if not goes_on:
                whole, self._begun = bytes(self._begun), bytearray()
                return whole
        return None


def _tag(key: bytes, number: int, header: bytes, text: bytes | memoryview) -> bytes:
    signed = b"".join((_NUMBER.pack(number), header, text))
    return hmac.digest(key, signed, "sha256")[:TAG_BYTES]
