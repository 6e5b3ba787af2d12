"""Messages between processes that share one GPU: from memory to memory on the device, never through the host.

Every ordered pair of neighbours has a ring of slots in the receiver's memory. The sender copies a message
into the next slot on its stream and records an event; when that has happened, the receiver copies the
message out and records another, which must have happened before the slot is used again. Messages are counted
in memory that both processes see. It is the host that waits for these events: a stream that waits for work
of a process that is killed would never do anything again. A ring has more slots than the receiver's stream
ever has messages waiting, so a sender waits for nothing that its receiver would not have asked for first.

Slots are as large as the largest message so far. Both sides see the same messages in the same order, so
both know which one is too large for them: the receiver offers larger memory when it asks for it, and
the sender waits for the offer before it sends. Messages on their way stay where they are; events and counts
are those of the ring, whatever its memory.

A sender that is killed before it has counted a message leaves nothing to be read: the receiver waits, until
`abort` or its patience ends that, or until it sees that everybody waits (`standstill`). Counters of messages
are 64-bit numbers in a file in memory; each has a single writer.

Gradients are summed on the device too, single numbers over gloo. Each process copies its numbers into memory
that its peers have opened, and says so; then all of them add up all of these in the same order, so that all
get the same bits. Before the memory is written again, all peers must have read it. Sums are made in the order
in which they were started, the same on all peers.

CUDA is called in CudaSharedDevice alone; tests put another device in its place.
"""

import json
import mmap
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.transport.gloo import GlooTransport
from recycle_runtime.transport.interface import Arrival, Grid, PeerSum, Pending, TensorSpec
from recycle_runtime.transport.messages import InOrder, message_pieces, packed_size
from recycle_runtime.transport.peer_proof import Prove
from recycle_runtime.transport.standstill import WaitBoard

_FOLDER = Path("/dev/shm")
_NAP = 20e-6
_ALIGNMENT = 128
"""Bytes: where one of several tensors may begin."""


class WaitEnded(RuntimeError):  # noqa: N818
    """A wait was ended from outside."""


class SharedCounters:
    """A row of counters, all 0 at first."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._stopped = False
        descriptor = os.open(_FOLDER / name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, 8 * count)
            self._memory = mmap.mmap(descriptor, 8 * count)
        finally:
            os.close(descriptor)
        self._numbers = memoryview(self._memory).cast("q")
        self._standstill: WaitBoard | None = None

    def watch(self, first: int, size: int, me: int, seconds: float) -> None:
        """Notice when all processes wait, from now on: their numbers stand from `first` on."""
        self._standstill = WaitBoard(self._numbers, first, size, me, seconds)

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Around a wait for other processes that is not for one of these counters."""
        if self._standstill is None:
            yield
            return
        with self._standstill.waiting():
            yield

    def remove_name(self) -> None:
        """They cannot be opened any more; open ones stay valid. May be called by everyone."""
        remove_counters(self._name)

    def add(self, counter: int) -> None:
        """One more; only ever called by the counter's own process."""
        self._numbers[counter] += 1

    def wait_for(self, counter: int, least: int, timeout: float) -> None:
        """Until the counter has come so far; TimeoutError if it does not, Stopped after `stop`, and
        StandstillError if it never will."""
        if self._numbers[counter] >= least:
            return
        give_up = time.monotonic() + timeout
        with self.waiting():
            while self._numbers[counter] < least:
                if self._stopped:
                    raise WaitEnded("waiting for the other side was ended")
                if time.monotonic() > give_up:
                    raise TimeoutError(f"the other side has not come to {least} in {timeout:.0f} s")
                if self._standstill is not None:
                    self._standstill.look()
                time.sleep(_NAP)

    def wait_until(self, is_done: Callable[[], bool], timeout: float) -> None:
        """The same for anything that can be asked; TimeoutError and Stopped as above."""
        give_up = time.monotonic() + timeout
        while not is_done():
            if self._stopped:
                raise WaitEnded("waiting for the other side was ended")
            if time.monotonic() > give_up:
                raise TimeoutError(f"the other side's work is not done after {timeout:.0f} s")
            time.sleep(_NAP)

    def stop(self) -> None:
        """End what other threads of this process wait for, now and later."""
        self._stopped = True

    def close(self) -> None:
        """Let go."""
        self._standstill = None
        self._numbers.release()
        self._memory.close()
        self.remove_name()


def remove_counters(name: str) -> None:
    """The file, if it is still there."""
    (_FOLDER / name).unlink(missing_ok=True)


class SharedEvent(Protocol):
    """A point in the work of one process that other processes can wait for."""

    def record(self) -> None: ...

    def query(self) -> bool:
        """True if everything before its last record is done."""
        ...


class SharedDevice(Protocol):
    """Memory and events that other processes can open. Handles are what JSON can hold."""

    def allocate(self, size: int) -> torch.Tensor:
        """Bytes that nothing queued here uses any more: others may write to them at once."""
        ...

    def share(self, memory: torch.Tensor) -> Any: ...

    def open(self, handle: Any) -> torch.Tensor: ...

    def new_event(self) -> tuple[SharedEvent, Any]:
        """And its handle."""
        ...

    def open_event(self, handle: Any) -> SharedEvent: ...


class _Sum:
    """Tensors that are added up together, one behind the other in shared memory."""

    def __init__(self, sums: "SharedSums", parts: Sequence[PeerSum]) -> None:
        self._sums, self.parts = sums, parts
        sizes = [-(-part.tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for part in parts]
        self.offsets = [0, *accumulate(sizes)]
        self.is_done = False

    def wait(self) -> None:
        while not self.is_done:
            self._sums.make_next()


class SharedSums:
    """One process's side. `counters` has two numbers for each peer from `first` on: written, and read."""

    def __init__(
        self,
        store: dist.Store,
        device: SharedDevice,
        ranks: Sequence[int],
        me: int,
        counters: SharedCounters,
        first: int,
        timeout: float,
    ) -> None:
        self._store, self._device, self._ranks, self._me = store, device, tuple(ranks), me
        self._counters, self._first, self._timeout = counters, first, timeout
        self._waiting: deque[_Sum] = deque()
        self._made = 0
        self._size = 0
        self._growth = 0
        self._memory: dict[int, torch.Tensor] = {}
        self._written: dict[int, SharedEvent] = {}
        self._read: dict[int, SharedEvent] = {}

    @property
    def has_peers(self) -> bool:
        return len(self._ranks) > 1

    def start(self, parts: Sequence[PeerSum]) -> _Sum:
        """Some more; they are made when they, or some after them, are waited for."""
        entry = _Sum(self, parts)
        self._waiting.append(entry)
        return entry

    def make_next(self) -> None:
        """The oldest that is not made yet."""
        entry = self._waiting.popleft()
        me = self._ranks.index(self._me)
        everybody = tuple(range(len(self._ranks)))
        placed = list(zip(entry.parts, entry.offsets, strict=False))
        if not self._written:
            self._exchange_events()
        others = [rank for rank in self._ranks if rank != self._me]
        for rank in others if self._made else ():
            self._counters.wait_for(self._counter(rank, 1), self._made, self._timeout)
            self._counters.wait_until(self._read[rank].query, self._timeout)
        self._make_room(entry.offsets[-1])
        for part, offset in placed:
            if me in (part.sources or everybody):
                self._view(self._me, part.tensor, offset).copy_(part.tensor)
        self._written[self._me].record()
        self._counters.add(self._counter(self._me, 0))
        for rank in others:
            self._counters.wait_for(self._counter(rank, 0), self._made + 1, self._timeout)
            self._counters.wait_until(self._written[rank].query, self._timeout)
        for part, offset in placed:
            if me not in (part.takers or everybody):
                continue
            first, *more = part.sources or everybody
            part.tensor.copy_(self._view(self._ranks[first], part.tensor, offset))
            for number in more:
                part.tensor.add_(self._view(self._ranks[number], part.tensor, offset))
        self._read[self._me].record()
        self._counters.add(self._counter(self._me, 1))
        self._made += 1
        entry.is_done = True

    def close(self) -> None:
        self._waiting.clear()
        self._memory.clear()
        self._written.clear()
        self._read.clear()

    def _view(self, rank: int, tensor: torch.Tensor, offset: int) -> torch.Tensor:
        memory = self._memory[rank][offset : offset + tensor.nbytes]
        return memory.view(tensor.dtype).view(tensor.shape)

    def _make_room(self, size: int) -> None:
        """All peers sum tensors of the same sizes in the same order, so all of them grow at the same time."""
        if size <= self._size:
            return
        self._size = size
        memory = self._device.allocate(size)
        self._tell(f"{self._me}/{self._growth}", self._device.share(memory))
        for rank in self._ranks:
            if rank == self._me:
                self._memory[rank] = memory
            else:
                self._memory[rank] = self._device.open(self._told(f"{rank}/{self._growth}"))
        self._growth += 1

    def _exchange_events(self) -> None:
        for name, events in (("written", self._written), ("read", self._read)):
            events[self._me], handle = self._device.new_event()
            self._tell(f"{self._me}/{name}", handle)
        for name, events in (("written", self._written), ("read", self._read)):
            for rank in self._ranks:
                if rank != self._me:
                    events[rank] = self._device.open_event(self._told(f"{rank}/{name}"))

    def _tell(self, key: str, value: Any) -> None:
        self._store.set(key, json.dumps(value))

    def _told(self, key: str) -> Any:
        return json.loads(self._store.get(key))

    def _counter(self, rank: int, which: int) -> int:
        return self._first + 2 * rank + which


_NAME = "counters/name"


class _Ring:
    """The slots of one ordered pair, as one of its two sides sees them."""

    def __init__(self, size: int) -> None:
        self.size = size
        """Number of slots."""
        self.memory = torch.empty(size, 0, dtype=torch.uint8)
        """A row for every slot."""
        self.generation = -1
        self.filled: list[SharedEvent] = []
        self.emptied: list[SharedEvent] = []
        self.count = 0
        """Messages sent, or asked for, so far."""
        self.queue = InOrder()

    def grow(self, memory: torch.Tensor) -> None:
        self.memory = memory.view(self.size, -1)
        self.generation += 1

    def is_too_small(self, size: int) -> bool:
        return self.memory.shape[1] < size


class _SumOverGloo:
    """A sum of single numbers, whose wait is seen by the others."""

    def __init__(self, pending: Pending, counters: SharedCounters) -> None:
        self._pending, self._counters = pending, counters

    def wait(self) -> None:
        with self._counters.waiting():
            self._pending.wait()


class CudaIpcTransport:
    """One process's side of it. `waiting` says how many messages of each neighbour can wait at once."""

    broken_sums: frozenset[int] = frozenset()
    """None: a sum that is cut off raises an error."""

    def __init__(
        self,
        store: dist.Store,
        name: str,
        grid: Grid,
        worker: Worker,
        tp_rank: int,
        timeout: timedelta,
        device: SharedDevice,
        waiting: Mapping[Worker, int],
        standstill: float | None = None,
        prove: Prove | None = None,
    ) -> None:
        """`standstill`: seconds for which all processes may wait for each other; None for any."""
        self._gloo = GlooTransport(store, name, grid, worker, tp_rank, timeout, prove=prove)
        self.tensor_group: Any = self._gloo.tensor_group
        self._store, self._name = _store_of(store, name), name
        self._grid, self._tp_rank, self._timeout = grid, tp_rank, timeout
        self._me = grid.rank(worker, tp_rank)
        self._device, self._waiting = device, waiting
        pairs = 2 * grid.size * grid.size
        counted = pairs + 2 * grid.size * grid.sums * grid.tensor
        self._counters = SharedCounters(_file_name(self._store), counted + grid.size)
        # Once everybody has it, it needs no name, and cannot be left behind by a process that is killed.
        self._gloo.barrier()
        self._counters.remove_name()
        if standstill is not None:
            self._counters.watch(counted, grid.size, self._me, standstill)
        self._in: dict[Worker, _Ring] = {}
        self._out: dict[int, _Ring] = {}
        """By the process that gets what is sent."""
        self._worker = worker
        self._sums = {
            group.number: SharedSums(
                dist.PrefixStore(f"sums/{group.name}", self._store),
                device,
                group.ranks,
                self._me,
                self._counters,
                pairs + 2 * grid.size * group.place,
                timeout.total_seconds(),
            )
            for group in grid.sum_groups(worker, tp_rank)
        }
        """Of each chunk of this worker."""

    def send(self, worker: Worker, tensors: Sequence[torch.Tensor]) -> Pending | None:
        for rank in self._grid.receivers(self._worker, self._tp_rank, worker):
            self._send(rank, tensors)
        return None

    def _send(self, rank: int, tensors: Sequence[torch.Tensor]) -> None:
        specs = tuple(map(TensorSpec.of, tensors))
        ring = self._outbound(rank, packed_size(specs))
        number, slot = ring.count, ring.count % ring.size
        ring.count += 1
        channel = self._channel(self._me, rank)
        if number >= ring.size:
            self._counters.wait_for(channel + 1, number - ring.size + 1, self._timeout.total_seconds())
            self._counters.wait_until(ring.emptied[slot].query, self._timeout.total_seconds())
        for piece, tensor in zip(message_pieces(ring.memory[slot], specs), tensors, strict=True):
            piece.copy_(tensor.detach())
        ring.filled[slot].record()
        self._counters.add(channel)

    def receive(self, worker: Worker, specs: Sequence[TensorSpec]) -> Arrival:
        wanted = tuple(specs)
        ring = self._inbound(worker, packed_size(wanted))
        number = ring.count
        memory = ring.memory[number % ring.size]
        ring.count += 1
        return ring.queue.ask(lambda: self._fetch(worker, ring, number, memory, wanted))

    def start_peer_sum(self, chunk: int, tensor: torch.Tensor) -> Pending | None:
        return self.start_peer_sums(chunk, [PeerSum(tensor)])

    def start_peer_sums(
        self, chunk: int, sums: Sequence[PeerSum], *, goes_on: bool = False, after: Any = None
    ) -> Pending | None:
        shared = self._sums[chunk]
        if not shared.has_peers:
            return None
        started = shared.start(sums)
        if all(each.is_copy for each in sums):
            # Peers may wait for copies of several chunks in different orders.
            started.wait()
        return started

    def start_sum(self, tensor: torch.Tensor) -> Pending | None:
        pending = self._gloo.start_sum(tensor)
        return None if pending is None else _SumOverGloo(pending, self._counters)

    def barrier(self) -> None:
        with self._counters.waiting():
            self._gloo.barrier()

    def flush(self) -> None:
        with self._counters.waiting():
            self._gloo.flush()

    def abort(self) -> None:
        """End every wait for another process's messages with an error. Any thread may call it."""
        self._counters.stop()

    def close(self) -> None:
        self._in.clear()
        self._out.clear()
        for sums in self._sums.values():
            sums.close()
        self._counters.close()
        self.tensor_group = None
        self._gloo.close()

    def _fetch(
        self, worker: Worker, ring: _Ring, number: int, memory: torch.Tensor, specs: tuple[TensorSpec, ...]
    ) -> list[torch.Tensor]:
        rank, slot = self._grid.rank(worker, self._tp_rank), number % ring.size
        channel = self._channel(rank, self._me)
        self._counters.wait_for(channel, number + 1, self._timeout.total_seconds())
        if not ring.filled:
            # The sender has told its events before it counted its first message.
            handles = self._told(f"{rank}>{self._me}/filled")
            ring.filled.extend(map(self._device.open_event, handles))
        self._counters.wait_until(ring.filled[slot].query, self._timeout.total_seconds())
        tensors = [piece.clone() for piece in message_pieces(memory, specs)]
        ring.emptied[slot].record()
        self._counters.add(channel + 1)
        return tensors

    def _inbound(self, worker: Worker, size: int) -> _Ring:
        """Slots for what this neighbour sends, made when it is first asked for something."""
        pair = f"{self._grid.rank(worker, self._tp_rank)}>{self._me}"
        if worker not in self._in:
            ring = self._in[worker] = _Ring(self._waiting.get(worker, 1) + 1)
            ring.emptied = self._new_events(f"{pair}/emptied", ring.size)
        ring = self._in[worker]
        if ring.is_too_small(size):
            memory = self._device.allocate(ring.size * size)
            ring.grow(memory)
            self._tell(f"{pair}/{ring.generation}", {"size": size, "memory": self._device.share(memory)})
        return ring

    def _outbound(self, rank: int, size: int) -> _Ring:
        pair = f"{self._me}>{rank}"
        if rank not in self._out:
            handles = self._told(f"{pair}/emptied")
            ring = self._out[rank] = _Ring(len(handles))
            ring.emptied = list(map(self._device.open_event, handles))
            ring.filled = self._new_events(f"{pair}/filled", ring.size)
        ring = self._out[rank]
        if ring.is_too_small(size):
            offer = self._told(f"{pair}/{ring.generation + 1}")
            if offer["size"] != size:
                raise RuntimeError(f"a message of {size} bytes is sent, one of {offer['size']} expected")
            ring.grow(self._device.open(offer["memory"]))
        return ring

    def _new_events(self, key: str, count: int) -> list[SharedEvent]:
        made = [self._device.new_event() for _ in range(count)]
        self._tell(key, [handle for _, handle in made])
        return [event for event, _ in made]

    def _tell(self, key: str, value: Any) -> None:
        self._store.set(key, json.dumps(value))

    def _told(self, key: str) -> Any:
        with self._counters.waiting():
            self._store.wait([key], self._timeout)
        return json.loads(self._store.get(key))

    def _channel(self, sender: int, receiver: int) -> int:
        """Of its two counters: what was sent, and after it what was used."""
        return 2 * (sender * self._grid.size + receiver)


def _store_of(store: dist.Store, name: str) -> dist.Store:
    return dist.PrefixStore(f"{name}/ipc", store)


def _file_name(store: dist.Store) -> str:
    """The same for all processes at this store, and unique to it."""
    if store.add("counters", 1) == 1:
        store.set(_NAME, f"recycle-{secrets.token_hex(8)}")
    return store.get(_NAME).decode()


class CudaSharedDevice:
    """One GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocate(self, size: int) -> torch.Tensor:
        memory = torch.empty(size, dtype=torch.uint8, device=self._device)
        # Torch gives out memory again while work that used it may still be queued on this stream, and nothing
        # but this stream would wait for that.
        torch.cuda.current_stream(self._device).synchronize()
        return memory

    def share(self, memory: torch.Tensor) -> Any:
        fields: Any = memory.untyped_storage()._share_cuda_()  # pyright: ignore[reportPrivateUsage]
        return [{"hex": value.hex()} if isinstance(value, bytes) else value for value in fields]

    def open(self, handle: Any) -> torch.Tensor:
        values = [bytes.fromhex(value["hex"]) if isinstance(value, dict) else value for value in handle]
        storage: Any = torch.UntypedStorage._new_shared_cuda(*values)  # pyright: ignore
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)

    def new_event(self) -> tuple[SharedEvent, Any]:
        event = torch.cuda.Event(interprocess=True)
        # An event has a handle once it was recorded.
        event.record()
        return event, event.ipc_handle().hex()

    def open_event(self, handle: Any) -> SharedEvent:
        event: Any = torch.cuda.Event.from_ipc_handle(self._device, bytes.fromhex(handle))
        return event
