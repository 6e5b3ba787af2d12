"""Small messages between two processes of one host, over a socket that no other thread serves.

Gloo sends three messages for one: that it is there, that it may come, and itself. A thread at either end
serves them, and while it finds a connection in the hands of the thread that computes it asks for it again and
again. For a small tensor that takes longer than the work it is for. A socket of the host takes a small
message at once, and its arrival wakes the one that waits for it.

Both ends know how long each message is, so both know which way it goes. Each way keeps its own order.

The name of a socket and a secret are sent over gloo, to those who have proved that they belong to the job.
The name means nothing on other hosts and in other network namespaces: then gloo carries everything.
"""

import contextlib
import os
import queue
import secrets
import socket
import struct
import threading
from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import lru_cache, partial
from math import prod
from typing import Any

import torch

from recycle_runtime.transport.interface import Arrival, Pending, TensorSpec
from recycle_runtime.transport.messages import InOrder
from recycle_runtime.weights.tensor_bytes import bytes_of, size_of

LARGEST = 1 << 16
"""Bytes of a message; longer ones are worth a thread that moves them while another one computes."""
_TAG = 2
"""Messages between workers have another, and so do proofs."""
_NAME_BYTES, _SECRET_BYTES = 32, 32
_RANK = struct.Struct("=i")
_LENGTH = struct.Struct("=q")
_HELLO_SECONDS = 5.0
"""To come in and to say who one is; whoever is waited for has done both already."""
_ROOM = 1 << 20
"""Bytes that wait in the kernel for a receiver, if the system allows so many."""
_SEND_NOW = getattr(socket, "MSG_DONTWAIT", 0) | getattr(socket, "MSG_NOSIGNAL", 0)


def is_small_message(specs: Sequence[TensorSpec]) -> bool:
    """True if a message that looks like this goes over a link, where there is one."""
    return sum(spec.dtype.itemsize * prod(spec.shape) for spec in specs) <= LARGEST


def are_small(tensors: Sequence[torch.Tensor]) -> bool:
    """The same for the message itself."""
    return sum(map(size_of, tensors)) <= LARGEST


class NearLink:
    """One end of a connection between two processes. What breaks it is a RuntimeError here and there."""

    def __init__(self, connection: socket.socket, timeout: timedelta) -> None:
        self._socket = connection
        connection.setblocking(True)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
        # The kernel counts the time: a limit of Python's would be two calls for each message.
        limit = struct.pack("@ll", int(timeout.total_seconds()), timeout.microseconds)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._asked = InOrder()
        self._length = bytearray(_LENGTH.size)
        self._late: _LateSends | None = None

    def send(self, tensors: Sequence[torch.Tensor]) -> Pending | None:
        """Contiguous ones, in one message; None if nothing of it has to be held any longer."""
        parts = [_packed(sum(map(size_of, tensors))), *map(bytes_of, tensors)]
        left = sum(map(len, parts))
        if self._late is None or self._late.is_idle:
            try:
                left -= self._socket.sendmsg(parts, (), _SEND_NOW)
            except BlockingIOError:
                pass
            except OSError as error:
                raise _broken(error) from error
            if not left:
                return None
        if self._late is None:
            self._late = _LateSends(self._socket)
        return self._late.add(_last(parts, left), tensors)

    def receive(self, specs: Sequence[TensorSpec]) -> Arrival:
        """Of the next message, which looks like this."""
        return self._asked.ask(partial(self._fetch, specs))

    def flush(self) -> None:
        """Wait until everything is on its way."""
        if self._late is not None:
            self._late.flush()

    def close(self) -> None:
        """The other end gets an error if it waits; a thread that sends ends."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._late is not None:
            self._late.close()

    def _fetch(self, specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
        tensors = [torch.empty(spec.shape, dtype=spec.dtype) for spec in specs]
        parts = [memoryview(self._length), *map(bytes_of, tensors)]
        whole = left = sum(map(len, parts))
        is_checked = False
        while left:
            left -= self._read(parts if left == whole else _last(parts, left))
            if not is_checked and whole - left >= _LENGTH.size:
                self._check(whole - _LENGTH.size)
                is_checked = True
        return tensors

    def _read(self, parts: Sequence[memoryview]) -> int:
        try:
            count = self._socket.recvmsg_into(parts)[0]
        except BlockingIOError:
            raise RuntimeError("no message has come from a process of this host in time") from None
        except OSError as error:
            raise _broken(error) from error
        if not count:
            raise RuntimeError("connection closed by a process of this host")
        return count

    def _check(self, expected: int) -> None:
        (length,) = _LENGTH.unpack(self._length)
        if length != expected:
            raise RuntimeError(f"a message of {length} bytes came in the place of one of {expected}")


class _Late:
    """A message that the kernel has not taken whole yet."""

    def __init__(self, parts: Sequence[memoryview], tensors: Sequence[torch.Tensor]) -> None:
        self.parts = parts
        self._tensors = tensors
        """Tensors whose memory `parts` are."""
        self._is_over = threading.Event()
        self._error: OSError | None = None

    def end(self, error: OSError | None) -> None:
        self._error = error
        self._tensors = ()
        self._is_over.set()

    def wait(self) -> None:
        self._is_over.wait()
        if self._error is not None:
            raise _broken(self._error) from self._error


class _LateSends:
    """A thread that sends what did not fit into the kernel's memory, in the order in which it came."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._waiting: queue.SimpleQueue[_Late | None] = queue.SimpleQueue()
        self._last: _Late | None = None
        self._lock = threading.Lock()
        self._count = 0
        threading.Thread(target=self._send_all, name="late sends", daemon=True).start()

    @property
    def is_idle(self) -> bool:
        """True if all that came has been sent."""
        return self._count == 0

    def add(self, parts: Sequence[memoryview], tensors: Sequence[torch.Tensor]) -> Pending:
        late = _Late(parts, tensors)
        with self._lock:
            self._count += 1
        self._last = late
        self._waiting.put(late)
        return late

    def flush(self) -> None:
        if self._last is not None:
            self._last.wait()

    def close(self) -> None:
        self._waiting.put(None)

    def _send_all(self) -> None:
        while (late := self._waiting.get()) is not None:
            error: OSError | None = None
            try:
                for part in late.parts:
                    self._socket.sendall(part)
            except OSError as failure:
                error = failure
            late.end(error)
            with self._lock:
                self._count -= 1


def connect_near(group: Any, rank: int, others: Collection[int], timeout: timedelta) -> dict[int, NearLink]:
    """Links to those of these ranks that are on this host; each of them names this one, and calls it too."""
    below, above = (sorted(each for each in others if (each > rank) is wanted) for wanted in (False, True))
    opened: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        listener = _Listener(len(above))
        stack.callback(listener.close)
        # Gloo drops tensors that nobody refers to.
        held = [_as_tensor(listener.offer)]
        works = [group.send([held[0]], other, _TAG) for other in above]
        try:
            for other in below:
                offer = _received(group, other, _NAME_BYTES + _SECRET_BYTES)
                found = _reached(offer, rank)
                if found is not None:
                    opened[other] = found
                held.append(_as_tensor(bytes([found is not None])))
                works.append(group.send([held[-1]], other, _TAG))
            coming = [other for other in above if any(_received(group, other, 1))]
            opened |= listener.accepted(coming)
            for work in works:
                work.wait()
        except BaseException:
            for each in opened.values():
                each.close()
            raise
    return {other: NearLink(each, timeout) for other, each in opened.items()}


class _Listener:
    """Door for others of this host; an offer that leads nowhere where there is no such thing."""

    def __init__(self, most: int) -> None:
        self._name, self._secret = secrets.token_hex(_NAME_BYTES // 2), secrets.token_bytes(_SECRET_BYTES)
        self.offer = self._name.encode() + self._secret
        """For those who may come."""
        self._socket: socket.socket | None = None
        if not most:
            return
        with contextlib.suppress(OSError, AttributeError):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.bind(_abstract(self._name))
            self._socket.listen(most)

    def accepted(self, ranks: Collection[int]) -> dict[int, socket.socket]:
        """Connections of these, who have come; whoever does not know the secret is sent away."""
        found: dict[int, socket.socket] = {}
        while len(found) < len(ranks):
            assert self._socket is not None, "nobody can have come"
            connection, _ = self._socket.accept()
            secret, rank = _said(connection)
            is_known = secrets.compare_digest(secret, self._secret)
            if is_known and rank in ranks and rank not in found:
                found[rank] = connection
            else:
                connection.close()
        return found

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def _reached(offer: bytes, rank: int) -> socket.socket | None:
    """The one who offers, if it is on this host."""
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except (OSError, AttributeError):
        return None
    try:
        connection.settimeout(_HELLO_SECONDS)
        connection.connect(_abstract(offer[:_NAME_BYTES].decode()))
        connection.sendall(offer[_NAME_BYTES:] + _RANK.pack(rank))
    except OSError:
        connection.close()
        return None
    return connection


def _said(connection: socket.socket) -> tuple[bytes, int]:
    """Secret and rank of one that has come in; no secret if that is another user, or says something else."""
    size = _SECRET_BYTES + _RANK.size
    try:
        connection.settimeout(_HELLO_SECONDS)
        _, user, _ = struct.unpack("@iii", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        said = connection.recv(size, socket.MSG_WAITALL) if user == os.getuid() else b""
    except OSError:
        said = b""
    if len(said) != size:
        return b"", -1
    return said[:_SECRET_BYTES], _RANK.unpack(said[_SECRET_BYTES:])[0]


def _abstract(name: str) -> str:
    """A name that is in no file system."""
    return f"\0recycle-{name}"


def _received(group: Any, other: int, size: int) -> bytes:
    tensor = torch.empty(size, dtype=torch.uint8)
    group.recv([tensor], other, _TAG).wait()
    return bytes(bytes_of(tensor))


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


@lru_cache(256)
def _packed(length: int) -> memoryview:
    return memoryview(_LENGTH.pack(length))


def _last(parts: Sequence[memoryview], count: int) -> list[memoryview]:
    """The last bytes of them."""
    found: list[memoryview] = []
    for part in reversed(parts):
        if count <= 0:
            break
        found.append(part[-count:] if count < len(part) else part)
        count -= len(part)
    return found[::-1]


def _broken(error: OSError) -> RuntimeError:
    return RuntimeError(f"connection to a process of this host: {error.strerror or error}")
