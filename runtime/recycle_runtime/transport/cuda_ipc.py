"""Messages between processes that share one GPU: from memory to memory on the device, never through the host.

Every ordered pair of neighbours has a ring of slots in the receiver's memory. The sender copies a message
into the next slot on its stream and records an event; the receiver's stream waits for that event, copies the
message out and records another, which the sender's stream waits for before it uses the slot again. The host
only counts messages, in memory that both processes see. A ring has more slots than the receiver's stream ever
has messages waiting, so a sender waits for nothing that its receiver would not have asked for first.

Sums go through gloo.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime.assembly import Worker
from recycle_runtime.transport import Arrival, Pending, TensorSpec
from recycle_runtime.transport.gloo import GlooTransport
from recycle_runtime.transport.grid import Grid
from recycle_runtime.transport.shared_counters import SharedCounters

_ALIGNED = 256


class _Ring:
    """The slots of one ordered pair, as one of its two sides sees them."""

    def __init__(self, memory: torch.Tensor, slots: int, filled: list[Any], emptied: list[Any]) -> None:
        self.slots = list(memory.view(slots, -1).unbind(0))
        self.filled, self.emptied = filled, emptied
        self.count = 0
        """Messages sent or taken so far."""


class _Arrival:
    def __init__(self, transport: "CudaIpcTransport", worker: Worker, specs: Sequence[TensorSpec]) -> None:
        self._transport, self._worker, self._specs = transport, worker, tuple(specs)
        self._tensors: list[torch.Tensor] | None = None
        ring = transport.inbound(worker, self._specs)
        self._number = ring.count
        ring.count += 1

    def wait(self) -> list[torch.Tensor]:
        if self._tensors is None:
            self._tensors = self._transport.take(self._worker, self._number, self._specs)
        return self._tensors


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
        device: torch.device,
        waiting: Mapping[Worker, int],
    ) -> None:
        self._gloo = GlooTransport(store, name, grid, worker, part, timeout)
        self.tensor_group: Any = self._gloo.tensor_group
        self._store, self._name = dist.PrefixStore(f"{name}/ipc", store), name
        self._grid, self._part, self._timeout = grid, part, timeout.total_seconds()
        self._me = grid.rank(worker, part)
        self._device, self._waiting = device, waiting
        self._counters = SharedCounters(_file_name(self._store), 2 * grid.size * grid.size)
        self._in: dict[Worker, _Ring] = {}
        self._out: dict[Worker, _Ring] = {}

    def send(self, worker: Worker, tensors: Sequence[torch.Tensor]) -> None:
        ring = self._outbound(worker)
        number, slots = ring.count, len(ring.slots)
        ring.count += 1
        slot = number % slots
        channel = self._channel(self._me, self._grid.rank(worker, self._part))
        if number >= slots:
            self._counters.wait_for(channel + 1, number - slots + 1, self._timeout)
            ring.emptied[slot].wait()
        offset = 0
        for tensor in tensors:
            size = tensor.numel() * tensor.element_size()
            ring.slots[slot][offset : offset + size].view(tensor.dtype).copy_(tensor.reshape(-1))
            offset += _aligned(size)
        ring.filled[slot].record()
        self._counters.add(channel)

    def receive(self, worker: Worker, specs: Sequence[TensorSpec]) -> Arrival:
        return _Arrival(self, worker, specs)

    def take(self, worker: Worker, number: int, specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
        """The message of this number, once it is there."""
        ring = self._in[worker]
        slot = number % len(ring.slots)
        channel = self._channel(self._grid.rank(worker, self._part), self._me)
        self._counters.wait_for(channel, number + 1, self._timeout)
        if not ring.filled:
            # The sender has told its events before it counted its first message.
            texts: list[str] = json.loads(
                self._store.get(f"{self._grid.rank(worker, self._part)}>{self._me}/events")
            )
            ring.filled.extend(_open(text, self._device) for text in texts)
        ring.filled[slot].wait()
        tensors: list[torch.Tensor] = []
        offset = 0
        for spec in specs:
            size = spec.dtype.itemsize * _product(spec.shape)
            raw = ring.slots[slot][offset : offset + size].view(spec.dtype)
            tensors.append(raw.view(spec.shape).clone())
            offset += _aligned(size)
        ring.emptied[slot].record()
        self._counters.add(channel + 1)
        return tensors

    def start_peer_sum(self, tensor: torch.Tensor) -> Pending | None:
        return self._gloo.start_peer_sum(tensor)

    def start_sum(self, tensor: torch.Tensor) -> Pending | None:
        return self._gloo.start_sum(tensor)

    def barrier(self) -> None:
        self._gloo.barrier()

    def flush(self) -> None:
        self._gloo.flush()

    def close(self) -> None:
        self._in.clear()
        self._out.clear()
        self._counters.close()
        self._gloo.close()

    def inbound(self, worker: Worker, specs: Sequence[TensorSpec]) -> _Ring:
        """Slots for what this neighbour sends, made when it is first asked for something."""
        if worker not in self._in:
            size = sum(_aligned(spec.dtype.itemsize * _product(spec.shape)) for spec in specs)
            slots = self._waiting.get(worker, 1) + 1
            memory = torch.zeros(slots * size, dtype=torch.uint8, device=self._device)
            emptied = [_new_event() for _ in range(slots)]
            rank = self._grid.rank(worker, self._part)
            offer = {
                "slots": slots,
                "memory": _share(memory),
                "events": [_handle(event) for event in emptied],
            }
            self._store.set(f"{rank}>{self._me}", json.dumps(offer))
            self._in[worker] = _Ring(memory, slots, [], emptied)
        return self._in[worker]

    def _outbound(self, worker: Worker) -> _Ring:
        if worker not in self._out:
            rank = self._grid.rank(worker, self._part)
            offer: dict[str, Any] = json.loads(self._store.get(f"{self._me}>{rank}"))
            filled = [_new_event() for _ in range(offer["slots"])]
            answer = json.dumps([_handle(event) for event in filled])
            self._store.set(f"{self._me}>{rank}/events", answer)
            emptied = [_open(text, self._device) for text in offer["events"]]
            memory = _open_memory(offer["memory"])
            self._out[worker] = _Ring(memory, offer["slots"], filled, emptied)
        return self._out[worker]

    def _channel(self, sender: int, receiver: int) -> int:
        """Of its two counters: what was sent, and after it what was used."""
        return 2 * (sender * self._grid.size + receiver)


def _new_event() -> Any:
    event = torch.cuda.Event(interprocess=True)
    # An event has a handle once it was recorded.
    event.record()
    return event


def _handle(event: Any) -> str:
    return event.ipc_handle().hex()


def _open(text: str, device: torch.device) -> Any:
    return torch.cuda.Event.from_ipc_handle(device, bytes.fromhex(text))


def _share(memory: torch.Tensor) -> list[Any]:
    fields: Any = memory.untyped_storage()._share_cuda_()  # pyright: ignore[reportPrivateUsage]
    return [{"hex": value.hex()} if isinstance(value, bytes) else value for value in fields]


def _open_memory(fields: list[Any]) -> torch.Tensor:
    values = [bytes.fromhex(value["hex"]) if isinstance(value, dict) else value for value in fields]
    storage: Any = torch.UntypedStorage._new_shared_cuda(*values)  # pyright: ignore
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _file_name(store: dist.Store) -> str:
    """The same for everyone at this store, and for nobody else."""
    if store.add("counters", 1) == 1:
        store.set("counters/name", f"recycle-{secrets.token_hex(8)}")
    return store.get("counters/name").decode()


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _product(shape: Sequence[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
