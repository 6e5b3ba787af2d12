"""A client that proves itself, and may then say whatever it likes, byte by byte."""

import json
import socket

from recycle_runtime.protocol.framing import (
    Response,
    frame_handshake,
    new_nonce,
    proof,
    unframe_challenge,
    unframe_verdict,
)
from recycle_runtime.protocol.messages.wire import VERSION
from recycle_runtime.protocol.records import RecordReader, RecordWriter, record_key


class RawClient:
    """Knows the token, and sends what no proper client would."""

    def __init__(self, port: int, token: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self._buffer = bytearray()
        while (challenge := unframe_challenge(self._buffer)) is None:
            self._fill()
        nonces = challenge.nonce, new_nonce()
        mine = proof(token, "client", VERSION, *nonces)
        self.socket.sendall(frame_handshake(Response(VERSION, nonces[1], mine)))
        while unframe_verdict(self._buffer) is None:
            self._fill()
        self.writer = RecordWriter(record_key(token, "client", VERSION, *nonces))
        self.reader = RecordReader(record_key(token, "server", VERSION, *nonces))

    def say(self, fields: object) -> None:
        """Something that may be no message, in a proper record."""
        self.socket.sendall(self.writer.write(json.dumps(fields).encode()))

    def hear(self) -> dict[str, object]:
        while (text := self.reader.read(self._buffer)) is None:
            self._fill()
        return json.loads(text)

    def is_hung_up_on(self) -> bool:
        """After whatever else was sent to it."""
        try:
            while True:
                self._fill()
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()

    def _fill(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("hung up")
        self._buffer += data
