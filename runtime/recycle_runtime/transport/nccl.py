"""Messages and sums over NCCL: every process has a GPU of its own.

NCCL has no tags. What is sent and received on a communicator must match in order, and runs on one stream,
where a send waits until it is received. So every channel, one way between two workers, has a communicator of
its own: nothing waits behind a message of another neighbour or of the other direction. Only channels that the
worker's stream uses are joined, all of them when training begins. The compiler puts the receives of a pair in
the order of the sends, and no message waits for an instruction that comes after its receive.

A receive does not wait for the work that was queued before it, or it could not overlap it: messages arrive in
slots that no computation touches, and are copied out when they are used. It starts no earlier than the last
computation that used a message, since a receive that waits takes a little of the GPU all the while. Messages
leave from slots too: what is sent directly is held until the GPU comes to it, and the host may be far ahead.

Gradients are summed over NCCL. The few numbers that all workers add up go over gloo: the first may
wait for most of a step, which costs nothing on the host, and they need no place among the GPU's work.

To join a channel takes both ends, and each waits for the other. All workers go through one and the same order
(`joining_order`), so the channel that comes first among those not joined yet has both its ends there, and
no wait is endless. Pairs with the same distance between their pipelines, at every second boundary, have no
worker in common: they come next to each other in the order, and are joined at the same time.

NcclTransport itself does not call CUDA: communicators and the GPU's queue of work come from NcclGroups and
CudaComputeStream, or from a test.
"""

import os
import warnings
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from recycle_runtime.plan.isa import RECEIVES, USES_NEIGHBOUR, Instruction
from recycle_runtime.plan.message_counts import most_waiting
from recycle_runtime.plan.worker_ids import Worker, numbered_worker
from recycle_runtime.transport.gloo import GlooTransport
from recycle_runtime.transport.interface import Arrival, Grid, Pending, TensorSpec
from recycle_runtime.transport.messages import InOrder, packed_size, pieces, spans
from recycle_runtime.transport.peer_proof import Prove
from recycle_runtime.transport.user_group import user_group


class Channel(NamedTuple):
    """One way between two workers."""

    sender: Worker
    receiver: Worker


def channels_of(stream: Sequence[Instruction], worker: Worker, pipelines: int) -> list[Channel]:
    """Those that the worker's stream uses, and no others; what a worker sends itself needs none."""
    found: set[Channel] = set()
    for instruction in stream:
        if instruction.opcode in USES_NEIGHBOUR:
            neighbour = numbered_worker(instruction.neighbour, pipelines)
            if instruction.opcode in RECEIVES:
                found.add(Channel(neighbour, worker))
            else:
                found.add(Channel(worker, neighbour))
    return sorted((each for each in found if each.sender != each.receiver), key=joining_order)


def joining_order(channel: Channel) -> tuple[int, int, int, int, int, bool]:
    """Different for every channel, and the same on every worker."""
    down = channel.sender[1] < channel.receiver[1]
    upper, lower = channel if down else (channel.receiver, channel.sender)
    return upper[1] % 2, lower[0] - upper[0], upper[1], upper[0], lower[1], down


_SENDER, _RECEIVER, _TAG = 0, 1, 0
_UNDER_WAY = 2
"""Messages on a channel; the next send waits on the GPU until the oldest of them is received."""


class Groups(Protocol):
    """Makes process groups."""

    def make(self, store: dist.Store, rank: int, size: int) -> Any:
        """This process's side of a group that adds up."""
        ...

    def make_channel(self, store: dist.Store, *, sends: bool) -> Any:
        """One end of a group of two: the sender is 0, the receiver 1."""
        ...

    def for_users(self, group: Any) -> Any:
        """The same as functions of torch.distributed take it."""
        ...

    def abort(self, groups: Sequence[Any]) -> None:
        """End whatever they are doing."""
        ...


class ComputeStream(Protocol):
    """The queue of work of the GPU, as far as messages must know it."""

    def allocate(self, size: int) -> torch.Tensor:
        """So many bytes, free for what is queued from now on."""
        ...

    def mark(self) -> Any:
        """The end of what is queued now."""
        ...

    def behind(self, marks: Sequence[Any]) -> AbstractContextManager[object]:
        """What is posted inside comes after these marks alone."""
        ...

    def finish(self) -> None:
        """Wait until the GPU has nothing to do."""
        ...


def join_group(groups: Groups, compute: ComputeStream, store: dist.Store, rank: int, size: int) -> Any:
    """A group that has added up something, so that its communicator is there."""
    group = groups.make(store, rank, size)
    group.allreduce([compute.allocate(1).zero_()]).wait()
    compute.finish()
    return group


class _Slot:
    """Where a message lies while it travels."""

    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)
        self.works: list[Any] = []
        """The last sends from it."""
        self.free: Any = None
        """After this mark what last arrived in it has been copied out."""


class _Inbound:
    """A channel to this worker."""

    def __init__(self, group: Any, slots: int) -> None:
        self.group = group
        self.slots = [_Slot() for _ in range(slots)]
        self.count = 0
        self.queue = InOrder()


class _Outbound:
    """A channel from this worker."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.slots = [_Slot() for _ in range(_UNDER_WAY)]
        self.count = 0


class NcclTransport:
    """One process's side of it."""

    def __init__(
        self,
        store: dist.Store,
        name: str,
        grid: Grid,
        worker: Worker,
        tp_rank: int,
        timeout: timedelta,
        stream: Sequence[Instruction],
        groups: Groups,
        compute: ComputeStream,
        prove: Prove | None = None,
    ) -> None:
        self._grid, self._worker, self._tp_rank = grid, worker, tp_rank
        self._groups, self._compute = groups, compute
        self._store = dist.PrefixStore(f"{name}/nccl", store)
        self._gloo = GlooTransport(store, name, grid, worker, tp_rank, timeout, prove=prove)
        self._made: list[Any] = []
        self._holders = {
            chunk: self._join(f"holders/{chunk}/{tp_rank}", grid.holder_ranks(chunk, tp_rank))
            for chunk in grid.sums_of(worker)
        }
        """Of each chunk of this worker, those that hold it; None if no other worker does."""
        tensor_group = self._join(f"tensor/{worker[0]}/{worker[1]}", grid.tensor_ranks(worker))
        self.tensor_group: Any = None if tensor_group is None else groups.for_users(tensor_group)
        self._in: dict[Worker, _Inbound] = {}
        self._out: dict[Worker, _Outbound] = {}
        waiting = most_waiting(stream, grid.pipelines)
        for channel in channels_of(stream, worker, grid.pipelines):
            self._join_channel(channel, waiting)
        self._last_use: Any = None
        """A mark: where the last computation that used a message begins."""

    @property
    def communicators(self) -> int:
        """How many this process has."""
        return len(self._made)

    def send(self, worker: Worker, tensors: Sequence[torch.Tensor]) -> Pending | None:
        channel, specs = self._out[worker], tuple(map(TensorSpec.of, tensors))
        slot = channel.slots[channel.count % len(channel.slots)]
        channel.count += 1
        for work in slot.works:
            work.wait()
        if slot.memory.numel() < packed_size(specs):
            slot.memory = self._compute.allocate(packed_size(specs))
        for piece, tensor in zip(pieces(slot.memory, specs), tensors, strict=True):
            piece.copy_(tensor.detach())
        slot.works = [
            channel.group.send([slot.memory[first:end]], _RECEIVER, _TAG) for first, end in _full(specs)
        ]
        return None

    def receive(self, worker: Worker, specs: Sequence[TensorSpec]) -> Arrival:
        channel, wanted = self._in[worker], tuple(specs)
        if len(channel.queue) == len(channel.slots):
            raise RuntimeError(f"more than {len(channel.slots)} messages of {worker} wait: not in the stream")
        slot = channel.slots[channel.count % len(channel.slots)]
        channel.count += 1
        if slot.memory.numel() < packed_size(wanted):
            slot.memory = self._compute.allocate(packed_size(wanted))
            slot.free = self._compute.mark()
        marks = [mark for mark in (slot.free, self._last_use) if mark is not None]
        with self._compute.behind(marks):
            works = [
                channel.group.recv([slot.memory[first:end]], _SENDER, _TAG) for first, end in _full(wanted)
            ]
        return channel.queue.ask(lambda: self._fetch(slot, wanted, works))

    def start_peer_sum(self, chunk: int, tensor: torch.Tensor) -> Pending | None:
        holders = self._holders[chunk]
        return None if holders is None else holders.allreduce([tensor])

    def start_sum(self, tensor: torch.Tensor) -> Pending | None:
        return self._gloo.start_sum(tensor)

    def barrier(self) -> None:
        self._gloo.barrier()

    def flush(self) -> None:
        """What was sent is in slots, and nothing else is held."""

    def abort(self) -> None:
        """After a failure: end all communication, on every survivor. Any thread may call it."""
        made, self._made = self._made, []
        if made:
            self._groups.abort(made)

    def close(self) -> None:
        self.abort()
        self._in.clear()
        self._out.clear()
        self._holders.clear()
        self.tensor_group = None
        self._gloo.close()

    def _fetch(self, slot: _Slot, specs: tuple[TensorSpec, ...], works: list[Any]) -> list[torch.Tensor]:
        for work in works:
            work.wait()
        tensors = [piece.clone() for piece in pieces(slot.memory, specs)]
        slot.free = self._last_use = self._compute.mark()
        return tensors

    def _join(self, label: str, ranks: list[int]) -> Any:
        """A group of more than one process, None for one alone."""
        if len(ranks) < 2:
            return None
        rank = ranks.index(self._grid.rank(self._worker, self._tp_rank))
        store = dist.PrefixStore(label, self._store)
        self._made.append(join_group(self._groups, self._compute, store, rank, len(ranks)))
        return self._made[-1]

    def _join_channel(self, channel: Channel, waiting: dict[Worker, int]) -> None:
        sends = channel.sender == self._worker
        ends = [self._grid.rank(end, self._tp_rank) for end in channel]
        store = dist.PrefixStore(f"{ends[0]}>{ends[1]}", self._store)
        group = self._groups.make_channel(store, sends=sends)
        self._made.append(group)
        # A first message makes the communicator, and connects both ends.
        message = [self._compute.allocate(1).zero_()]
        work = group.send(message, _RECEIVER, _TAG) if sends else group.recv(message, _SENDER, _TAG)
        work.wait()
        self._compute.finish()
        if sends:
            self._out[channel.receiver] = _Outbound(group)
        else:
            self._in[channel.sender] = _Inbound(group, waiting[channel.sender] + 1)


def _full(specs: Sequence[TensorSpec]) -> list[tuple[int, int]]:
    """The spans of tensors that are not empty: NCCL has nothing to do for the others."""
    return [(first, end) for first, end in spans(specs) if end > first]


ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_MODULE_LOADING": "EAGER"}
"""Communicators wait on the GPU. With few hardware queues a computation may stand behind such a wait, and
loading a kernel at its first use may wait for all that runs; both could make two GPUs wait for each other."""

_MOST_CHANNELS = 28
"""The hardware has 32 queues; computation, sums and copies take some."""
_MOST_BLOCKS = 8
_SHARE = 4
"""All channels of a worker together may take this fraction (one in so many) of the GPU while they wait."""


def set_environment() -> None:
    """What the user has not set; in time only before the first call of CUDA."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def join_over_nccl(
    store: dist.Store,
    name: str,
    grid: Grid,
    worker: Worker,
    tp_rank: int,
    timeout: timedelta,
    device: torch.device,
    stream: Sequence[Instruction],
    prove: Prove | None = None,
) -> NcclTransport:
    """The transport of a worker that has this GPU to itself."""
    if not dist.is_nccl_available():
        raise RuntimeError("every worker has a GPU of its own, but this torch was built without NCCL")
    channels = len(channels_of(stream, worker, grid.pipelines))
    wanted = [f"{key}={value}" for key, value in ENVIRONMENT.items() if os.environ.get(key) != value]
    if channels and wanted:
        said = f"messages over NCCL may hang unless the environment has {' '.join(wanted)}"
        warnings.warn(said, stacklevel=2)
    if channels > _MOST_CHANNELS:
        warnings.warn(
            f"worker {worker[0]}:{worker[1]} has {channels} channels; with more than {_MOST_CHANNELS} a send "
            "may share a hardware queue with a receive, and messages over NCCL may hang",
            stacklevel=2,
        )
    groups = NcclGroups(device, timeout, channels)
    return NcclTransport(
        store, name, grid, worker, tp_rank, timeout, stream, groups, CudaComputeStream(device), prove
    )


class NcclGroups:
    """Communicators of this GPU."""

    def __init__(self, device: torch.device, timeout: timedelta, channels: int) -> None:
        self._device, self._timeout = device, timeout
        processors: int = torch.cuda.get_device_properties(device).multi_processor_count
        self._blocks = max(1, min(_MOST_BLOCKS, processors // (_SHARE * max(1, channels))))
        # One communicator for every channel is what is wanted here.
        warnings.filterwarnings("ignore", message=".*An unbatched P2P op")

    def make(self, store: dist.Store, rank: int, size: int) -> Any:
        return _nccl()(store, rank, size, self._options(high_priority=False))

    def make_channel(self, store: dist.Store, *, sends: bool) -> Any:
        # Streams come from two pools of 32, by priority: a send never shares a stream with a receive.
        options = self._options(high_priority=sends)
        if hasattr(options, "config"):
            options.config.max_ctas = self._blocks
        return _nccl()(store, 0 if sends else 1, 2, options)

    def for_users(self, group: Any) -> Any:
        return user_group(group, dist.ProcessGroup.BackendType.NCCL, ["cuda"])

    def abort(self, groups: Sequence[Any]) -> None:
        # One by one they could wait for each other's kernels.
        groups[0]._group_start()
        try:
            for group in groups:
                group.abort()
        finally:
            groups[0]._group_end()

    def _options(self, *, high_priority: bool) -> Any:
        options = _nccl().Options(is_high_priority_stream=high_priority)
        options._timeout = self._timeout
        return options


class CudaComputeStream:
    """The current stream, and another one for receives that must not wait for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._posts = torch.cuda.Stream(device)

    def allocate(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def mark(self) -> Any:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextmanager
    def behind(self, marks: Sequence[Any]) -> Generator[None]:
        for mark in marks:
            self._posts.wait_event(mark)
        with torch.cuda.stream(self._posts):
            yield

    def finish(self) -> None:
        torch.cuda.synchronize(self._device)


def _nccl() -> Any:
    """Not there in every build of torch."""
    return vars(dist)["ProcessGroupNCCL"]
