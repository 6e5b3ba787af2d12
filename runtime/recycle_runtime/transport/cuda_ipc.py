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
`abort` or its patience ends that. Gradients are summed on the device too (`shared_sums`), single numbers over
gloo. CUDA is called in `cuda_shared` alone.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.transport import Arrival, Pending, TensorSpec
from recycle_runtime.transport.gloo import GlooTransport
from recycle_runtime.transport.grid import Grid
from recycle_runtime.transport.in_order import InOrder
from recycle_runtime.transport.packing import packed_size, pieces
from recycle_runtime.transport.shared_counters import SharedCounters, remove_counters
from recycle_runtime.transport.shared_sums import SharedSums

_NAME = "counters/name"


class SharedEvent(Protocol):
    """A point in the work of one process that others can wait for."""

    def record(self) -> None: ...

    def query(self) -> bool:
        """Whether everything before its last record is done."""
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


class _Ring:
    """The slots of one ordered pair, as one of its two sides sees them."""

    def __init__(self, size: int) -> None:
        self.size = size
        """How many slots."""
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


class CudaIpcTransport:
    """One process's side of it. `waiting` says how many messages of each neighbour can wait at once."""

    def __init__(
        self,
        store: dist.Store,
        name: str,
        grid: Grid,
        worker: Worker,
        part: int,
        timeout: timedelta,
        device: SharedDevice,
        waiting: Mapping[Worker, int],
    ) -> None:
        self._gloo = GlooTransport(store, name, grid, worker, part, timeout)
        self.tensor_group: Any = self._gloo.tensor_group
        self._store, self._name = _store_of(store, name), name
        self._grid, self._part, self._timeout = grid, part, timeout
        self._me = grid.rank(worker, part)
        self._device, self._waiting = device, waiting
        pairs = 2 * grid.size * grid.size
        self._counters = SharedCounters(_file_name(self._store), pairs + 2 * grid.size)
        # Once everybody has it, it needs no name, and cannot be left behind by a process that is killed.
        self._gloo.barrier()
        self._counters.remove_name()
        self._in: dict[Worker, _Ring] = {}
        self._out: dict[Worker, _Ring] = {}
        peers = [grid.rank(peer, part) for peer in grid.peers(worker[1])]
        self._sums = SharedSums(
            self._store, device, peers, self._me, self._counters, pairs, timeout.total_seconds()
        )

    def send(self, worker: Worker, tensors: Sequence[torch.Tensor]) -> Pending | None:
        rank = self._grid.rank(worker, self._part)
        specs = tuple(map(TensorSpec.of, tensors))
        ring = self._outbound(worker, packed_size(specs))
        number, slot = ring.count, ring.count % ring.size
        ring.count += 1
        channel = self._channel(self._me, rank)
        if number >= ring.size:
            self._counters.wait_for(channel + 1, number - ring.size + 1, self._timeout.total_seconds())
            self._counters.wait_until(ring.emptied[slot].query, self._timeout.total_seconds())
        for piece, tensor in zip(pieces(ring.memory[slot], specs), tensors, strict=True):
            piece.copy_(tensor.detach())
        ring.filled[slot].record()
        self._counters.add(channel)
        return None

    def receive(self, worker: Worker, specs: Sequence[TensorSpec]) -> Arrival:
        wanted = tuple(specs)
        ring = self._inbound(worker, packed_size(wanted))
        number = ring.count
        memory = ring.memory[number % ring.size]
        ring.count += 1
        return ring.queue.ask(lambda: self._fetch(worker, ring, number, memory, wanted))

    def start_peer_sum(self, tensor: torch.Tensor) -> Pending | None:
        return self._sums.start(tensor) if self._sums.has_peers else None

    def start_sum(self, tensor: torch.Tensor) -> Pending | None:
        return self._gloo.start_sum(tensor)

    def barrier(self) -> None:
        self._gloo.barrier()

    def flush(self) -> None:
        self._gloo.flush()

    def abort(self) -> None:
        """End every wait for another process's messages with an error. Any thread may call it."""
        self._counters.stop()

    def close(self) -> None:
        self._in.clear()
        self._out.clear()
        self._sums.close()
        self._counters.close()
        self.tensor_group = None
        self._gloo.close()

    def _fetch(
        self, worker: Worker, ring: _Ring, number: int, memory: torch.Tensor, specs: tuple[TensorSpec, ...]
    ) -> list[torch.Tensor]:
        rank, slot = self._grid.rank(worker, self._part), number % ring.size
        channel = self._channel(rank, self._me)
        self._counters.wait_for(channel, number + 1, self._timeout.total_seconds())
        if not ring.filled:
            # The sender has told its events before it counted its first message.
            handles = self._told(f"{rank}>{self._me}/filled")
            ring.filled.extend(map(self._device.open_event, handles))
        self._counters.wait_until(ring.filled[slot].query, self._timeout.total_seconds())
        tensors = [piece.clone() for piece in pieces(memory, specs)]
        ring.emptied[slot].record()
        self._counters.add(channel + 1)
        return tensors

    def _inbound(self, worker: Worker, size: int) -> _Ring:
        """Slots for what this neighbour sends, made when it is first asked for something."""
        pair = f"{self._grid.rank(worker, self._part)}>{self._me}"
        if worker not in self._in:
            ring = self._in[worker] = _Ring(self._waiting.get(worker, 1) + 1)
            ring.emptied = self._new_events(f"{pair}/emptied", ring.size)
        ring = self._in[worker]
        if ring.is_too_small(size):
            memory = self._device.allocate(ring.size * size)
            ring.grow(memory)
            self._tell(f"{pair}/{ring.generation}", {"size": size, "memory": self._device.share(memory)})
        return ring

    def _outbound(self, worker: Worker, size: int) -> _Ring:
        pair = f"{self._me}>{self._grid.rank(worker, self._part)}"
        if worker not in self._out:
            handles = self._told(f"{pair}/emptied")
            ring = self._out[worker] = _Ring(len(handles))
            ring.emptied = list(map(self._device.open_event, handles))
            ring.filled = self._new_events(f"{pair}/filled", ring.size)
        ring = self._out[worker]
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
        self._store.wait([key], self._timeout)
        return json.loads(self._store.get(key))

    def _channel(self, sender: int, receiver: int) -> int:
        """Of its two counters: what was sent, and after it what was used."""
        return 2 * (sender * self._grid.size + receiver)


def remove_leftovers(store: dist.Store, name: str) -> None:
    """For whoever has started processes that were killed before all of them had joined."""
    store = _store_of(store, name)
    if store.check([_NAME]):
        remove_counters(store.get(_NAME).decode())


def _store_of(store: dist.Store, name: str) -> dist.Store:
    return dist.PrefixStore(f"{name}/ipc", store)


def _file_name(store: dist.Store) -> str:
    """The same for everyone at this store, and for nobody else."""
    if store.add("counters", 1) == 1:
        store.set(_NAME, f"recycle-{secrets.token_hex(8)}")
    return store.get(_NAME).decode()
