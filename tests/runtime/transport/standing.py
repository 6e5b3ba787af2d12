"""NCCL on a machine without a GPU: calls stand until the other ranks make theirs, or another thread aborts
them.

As with NCCL there are no tags, a send ends when it is received, a rank that is killed wakes nobody, and what
is aborted ends without an error and without its data. Ranks are threads or processes; each end of a
communicator has a thread, which does what is posted, in order, over a socket. Computation is the host's, so
waiting for a mark is what a GPU's stream would do. Memory is not held, as a GPU's work does not hold it: who
posts must."""

import contextlib
import ctypes
import json
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from recycle_runtime.transport.nccl_library import Membership, NcclError, Operation

PATIENCE = 120.0
_LENGTH = struct.Struct("!Q")
_ACK = b"+"


class Work:
    """Something that was posted."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run
        self.is_done = False
        """As it should be; work that was aborted is over and not done."""
        self._is_over = threading.Event()

    def end(self, *, is_done: bool) -> None:
        self.is_done = is_done
        self._is_over.set()

    def stand(self) -> None:
        if not self._is_over.wait(PATIENCE):
            raise TimeoutError("nobody is at the other end")


_posted = threading.local()


class Lent:
    """Memory of a tensor, as long as somebody else holds it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._held, self._address = StorageWeakRef(tensor.untyped_storage()), tensor.data_ptr()
        self._size, self._shape, self._dtype = tensor.nbytes, tensor.shape, tensor.dtype

    def tensor(self) -> torch.Tensor:
        assert not self._held.expired(), "this memory was given away while work with it was posted"
        if not self._size:
            return torch.empty(self._shape, dtype=self._dtype)
        content = (ctypes.c_uint8 * self._size).from_address(self._address)
        return torch.frombuffer(content, dtype=self._dtype).view(self._shape)


class StandingCommunicator:
    """One rank: sockets to the others, by rank."""

    def __init__(self, sockets: dict[int, socket.socket]) -> None:
        self._sockets = sockets
        self._works: SimpleQueue[Work] = SimpleQueue()
        self._under_way: list[Work] = []
        self.is_ended = False
        threading.Thread(target=self._run, daemon=True).start()

    def send(self, memory: torch.Tensor, rank: int, stream: int) -> None:
        lent = Lent(memory)

        def run() -> None:
            memory = lent.tensor()
            other = self._sockets[rank]
            _write(other, memory)
            assert _read(other, 1) == _ACK

        self._post(run)

    def receive(self, memory: torch.Tensor, rank: int, stream: int) -> None:
        lent = Lent(memory)

        def run() -> None:
            memory = lent.tensor()
            other = self._sockets[rank]
            memory.copy_(_tensor(other, memory))
            other.sendall(_ACK)

        self._post(run)

    def sum(self, tensor: torch.Tensor, stream: int, operation: int = Operation.SUM) -> None:
        """The first rank adds up, in the order of ranks, and tells the others."""

        lent = Lent(tensor)

        def run() -> None:
            tensor = lent.tensor()
            if 0 in self._sockets:
                _write(self._sockets[0], tensor)
                tensor.copy_(_tensor(self._sockets[0], tensor))
                return
            parts = [tensor.clone(), *(_tensor(other, tensor) for _, other in sorted(self._sockets.items()))]
            tensor.copy_(_together(parts, operation))
            for other in self._sockets.values():
                _write(other, tensor)

        self._post(run)

    def reduce(self, tensor: torch.Tensor, rank: int, stream: int, operation: int = Operation.SUM) -> None:
        """That rank adds up, in the order of ranks; in the memory of others nonsense is left."""

        lent = Lent(tensor)

        def run() -> None:
            tensor = lent.tensor()
            if rank in self._sockets:
                _write(self._sockets[rank], tensor)
                tensor.fill_(float("nan") if tensor.is_floating_point() else 99)
                return
            parts = {other: _tensor(link, tensor) for other, link in self._sockets.items()}
            parts[rank] = tensor.clone()
            tensor.copy_(_together([parts[number] for number in sorted(parts)], operation))

        self._post(run)

    def reduce_scatter(
        self, own: torch.Tensor, whole: torch.Tensor, stream: int, operation: int = Operation.SUM
    ) -> None:
        lent, to, shape = Lent(whole), Lent(own), own.shape

        def run() -> None:
            parts = self._exchanged(list(lent.tensor().reshape(-1).chunk(1 + len(self._sockets))))
            to.tensor().copy_(_together(parts, operation).view(shape))

        self._post(run)

    def gather(self, whole: torch.Tensor, own: torch.Tensor, stream: int) -> None:
        lent, to = Lent(own), Lent(whole)

        def run() -> None:
            parts = self._exchanged([lent.tensor().reshape(-1)] * (1 + len(self._sockets)))
            to.tensor().view(-1).copy_(torch.cat(parts))

        self._post(run)

    def broadcast(self, memory: torch.Tensor, rank: int, stream: int) -> None:
        lent = Lent(memory)

        def run() -> None:
            memory = lent.tensor()
            if rank in self._sockets:
                memory.copy_(_tensor(self._sockets[rank], memory))
                return
            for other in self._sockets.values():
                _write(other, memory)

        self._post(run)

    def _exchanged(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """One for each rank, for one of each."""
        (me,) = set(range(len(parts))) - set(self._sockets)
        for rank, other in self._sockets.items():
            _write(other, parts[rank])
        return [
            parts[me] if rank == me else _tensor(self._sockets[rank], parts[me]) for rank in range(len(parts))
        ]

    def abort(self) -> None:
        self.is_ended = True
        for other in self._sockets.values():
            with contextlib.suppress(OSError):
                other.shutdown(socket.SHUT_RDWR)
        for work in self._under_way:
            work.end(is_done=work.is_done)

    def _post(self, run: Callable[[], None]) -> None:
        if self.is_ended:
            raise NcclError("the communicator was aborted")
        work = Work(run)
        self._under_way = [each for each in self._under_way if not each.is_done] + [work]
        _posted.work = work
        self._works.put(work)

    def _run(self) -> None:
        while True:
            work = self._works.get()
            try:
                work.run()
            except (OSError, AssertionError):
                # A rank is gone. Nobody says so: this one stands here until it is aborted.
                return
            work.end(is_done=True)


class StandingLibrary:
    """In place of `nccl_library.NcclLibrary`; one for each process, or for all threads of one."""

    def __init__(self) -> None:
        self._listeners: dict[bytes, socket.socket] = {}

    def unique_id(self) -> bytes:
        listener = socket.create_server(("127.0.0.1", 0))
        found = json.dumps(listener.getsockname()[1]).encode()
        self._listeners[found] = listener
        return found

    def join(self, wanted: Sequence[Membership]) -> list[StandingCommunicator]:
        made: dict[int, StandingCommunicator] = {}

        def join(number: int) -> None:
            made[number] = StandingCommunicator(self._connected(wanted[number]))

        threads = [
            threading.Thread(target=join, args=(number,), daemon=True) for number in range(len(wanted))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [made[number] for number in range(len(wanted))]

    def together(self, communicators: Sequence[StandingCommunicator], work: Callable[[], object]) -> None:
        work()

    def abort(
        self,
        communicators: Sequence[StandingCommunicator],
        on_ended: Callable[[], None],
        is_idle: Callable[[], bool],
    ) -> None:
        for each in communicators:
            each.abort()
        on_ended()
        assert is_idle()

    def _connected(self, member: Membership) -> dict[int, socket.socket]:
        """Each to each; the first rank tells all where the others listen."""
        if member.rank == 0:
            with self._listeners.pop(member.unique_id) as listener:
                sockets = _accepted(listener, member.size - 1)
            ports = {rank: _PORT.unpack(_read(sockets[rank], _PORT.size))[0] for rank in sorted(sockets)}
            for other in sockets.values():
                other.sendall(b"".join(_PORT.pack(port) for port in ports.values()))
            return sockets
        with socket.create_server(("127.0.0.1", 0)) as listener:
            first = _reached(json.loads(member.unique_id), member.rank)
            first.sendall(_PORT.pack(listener.getsockname()[1]))
            ports = _ports(_read(first, _PORT.size * (member.size - 1)))
            found = {other: _reached(ports[other - 1], member.rank) for other in range(1, member.rank)}
            return {0: first, **found, **_accepted(listener, member.size - 1 - member.rank)}


def _reached(port: int, rank: int) -> socket.socket:
    other = socket.create_connection(("127.0.0.1", port))
    other.sendall(bytes([rank]))
    return other


def _accepted(listener: socket.socket, count: int) -> dict[int, socket.socket]:
    found: dict[int, socket.socket] = {}
    while len(found) < count:
        other, _ = listener.accept()
        found[_read(other, 1)[0]] = other
    return found


_PORT = struct.Struct("!H")


def _ports(data: bytes) -> list[int]:
    return [port for (port,) in _PORT.iter_unpack(data)]


class HostQueues:
    """The host computes, so everything that was computed is done; lanes have threads."""

    def __init__(self, *, sends_wait: bool = False) -> None:
        """`sends_wait`: a send returns when it is received, which no plan may need to be otherwise."""
        self._sends_wait = sends_wait

    def enter_thread(self) -> None: ...

    def allocate(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def lane(self, kind: str, number: int) -> str:
        return kind

    def post(self, lane: str, after: Sequence[Work | None], call: Callable[[int], None]) -> Work:
        for mark in after:
            self.wait(mark)
        call(0)
        work: Work = _posted.work
        if self._sends_wait and lane == "send":
            work.stand()
        return work

    def post_together(
        self, posts: Sequence[tuple[str, Callable[[int], None]]], run: Callable[[Callable[[], object]], None]
    ) -> list[Work]:
        works: list[Work] = []

        def call_all() -> None:
            for _, call in posts:
                call(0)
                works.append(_posted.work)

        run(call_all)
        return works

    def mark(self) -> Work | None:
        return None

    def wait(self, mark: Work | None) -> None:
        if mark is not None:
            mark.stand()

    finish = wait

    def is_done(self, mark: Work | None) -> bool:
        return mark is None or mark.is_done

    def is_idle(self, lane: str) -> bool:
        return True


def _together(parts: Sequence[torch.Tensor], operation: int) -> torch.Tensor:
    match operation:
        case Operation.PRODUCT:
            return torch.stack(list(parts)).prod(0)
        case Operation.MAX:
            return torch.stack(list(parts)).amax(0)
        case Operation.MIN:
            return torch.stack(list(parts)).amin(0)
        case _:
            # In the order of ranks.
            whole = parts[0].clone()
            for part in parts[1:]:
                whole.add_(part)
            return whole / len(parts) if operation == Operation.AVERAGE else whole


def _write(other: socket.socket, tensor: torch.Tensor) -> None:
    data: Any = tensor.detach().contiguous().view(torch.uint8).numpy()
    other.sendall(_LENGTH.pack(data.nbytes))
    other.sendall(data.data)


def _tensor(other: socket.socket, like: torch.Tensor) -> torch.Tensor:
    (size,) = _LENGTH.unpack(_read(other, _LENGTH.size))
    assert size == like.nbytes, f"{size} bytes are sent, {like.nbytes} expected"
    data: Any = bytearray(_read(other, size))
    return torch.frombuffer(data, dtype=torch.uint8).view(like.dtype).view(like.shape)


def _read(other: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = other.recv(size - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return bytes(data)
