"""Messages and sums over NCCL: every process has a GPU of its own.

NCCL has no tags. What is sent and received on a communicator must match in order, and a send waits until it
is received. So every channel, one way between two workers, has a communicator and a CUDA stream of its own:
nothing waits behind a message of another neighbour or of the other direction. Only channels that the worker's
stream uses are joined, all of them at the same time when training begins. The compiler puts the receives of a
pair in the order of the sends, and no message waits for an instruction that comes after its receive.

A receive begins when the work that stands before it in the stream is done, and crosses beside what follows:
the compiler puts it where its message is sent. Earlier, it would take multiprocessors from computation while
it waits: with two of sixteen, a forward took 1.35 times as long. Messages arrive in slots that no computation
touches, and are copied out when they are used. They leave from slots too: what is sent directly is held until
the GPU comes to it, and the host may be far ahead.

Gradients are summed over NCCL. The few numbers that all workers add up go over gloo: the first may
wait for most of a step, which costs nothing on the host, and they need no place among the GPU's work.

Nobody wakes a kernel that waits for a process which is gone: another thread aborts all communicators. Then
every kernel ends at once, without what it waited for, and the GPU goes on with what is queued behind it, on
numbers that mean nothing. None of these may leave the process, or count as a step:

- Communicators end in the order sums, sends, tensor-parallel group, receives. When the first receive is let
  go of, nothing that is computed from it can reach another process, which may not have heard of the failure
  yet. That holds over sockets; where GPUs write into each other's memory, a send that begins later may still
  be seen by its receiver.
- Before the first of them ends, sums that have not come to their end are noted (`broken_sums`), and gradients
  that nobody adds to and that are not computed yet. A step that was made with one is taken back
  (`WorkerSteps.take_back_broken`).
- A communicator is freed when nothing is queued on its stream any more: NCCL does not wait for a kernel that
  has not begun, and that kernel would find no memory.
- Communicators of one generation are freed before kernels of the next one may stand: to free memory waits
  for the device, and whatever else this process asks of the device waits for that. It takes half a second,
  because a thread of NCCL looks up that seldom, unless its sockets are shut down.
- Slots begin with zeros, so that half a message is made of nothing but old and new ones: indices stay
  indices.

NcclTransport itself does not call CUDA: communicators and the GPU's queues of work come from NcclLibrary and
CudaQueues, or from a test.
"""

import json
import logging
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from recycle_runtime.plan.isa import RECEIVES, USES_NEIGHBOUR, Instruction
from recycle_runtime.plan.message_counts import most_waiting
from recycle_runtime.plan.worker_ids import Worker, numbered_worker
from recycle_runtime.transport.gloo import GlooTransport
from recycle_runtime.transport.interface import Arrival, Grid, PeerSum, Pending, TensorSpec
from recycle_runtime.transport.meeting import hold_meeting
from recycle_runtime.transport.messages import InOrder, message_pieces, packed_size
from recycle_runtime.transport.nccl_library import Membership, nccl
from recycle_runtime.transport.nccl_ranks import NcclRanks
from recycle_runtime.transport.peer_proof import Prove
from recycle_runtime.transport.sockets import GroupSockets

_log = logging.getLogger(__name__)


class NcclChannel(NamedTuple):
    """One way between two workers."""

    sender: Worker
    receiver: Worker


def channels_of(stream: Sequence[Instruction], worker: Worker, pipelines: int) -> list[NcclChannel]:
    """Those that the worker's stream uses, and no others; what a worker sends itself needs none."""
    found: set[NcclChannel] = set()
    for instruction in stream:
        if instruction.opcode in USES_NEIGHBOUR:
            neighbour = numbered_worker(instruction.neighbour, pipelines)
            if instruction.opcode in RECEIVES:
                found.add(NcclChannel(neighbour, worker))
            else:
                found.add(NcclChannel(worker, neighbour))
    return sorted(each for each in found if each.sender != each.receiver)


_SENDER, _RECEIVER = 0, 1
_MOST_BLOCKS = 8
"""Thread blocks, so multiprocessors, of a channel."""
_UNDER_WAY = 2
"""Messages on a channel; the next send waits on the GPU until the oldest of them is received."""
_FLAG_SECONDS = 5.0
"""The longest wait for an abort to reach all kernels; it takes a millisecond."""
_LOOK_SECONDS = 0.05
"""The longest look at which sums have come to their end."""
_WATCH_EVERY = 0.1

_frees: list[threading.Thread] = []
"""Threads of this process that free communicators."""
_frees_lock = threading.Lock()


def _note_free(thread: threading.Thread) -> None:
    with _frees_lock:
        _frees[:] = [each for each in (*_frees, thread) if each is thread or each.is_alive()]


def _finish_frees(timeout: timedelta) -> None:
    """Wait until what was aborted is freed; RuntimeError if that takes too long."""
    give_up = time.monotonic() + timeout.total_seconds()
    with _frees_lock:
        frees = [each for each in _frees if each is not threading.current_thread()]
    for each in frees:
        each.join(max(0.0, give_up - time.monotonic()))
        if each.is_alive():
            raise RuntimeError("communicators of an earlier group are not freed: the device is busy")


Mark = Any
"""A place in a queue of device work, such as a CUDA event."""
Post = tuple[Any, Callable[[int], None]]
"""A lane, and a call that queues work on it."""


class RankOf(Protocol):
    """One rank of a communicator: see `nccl_library.Communicator`."""

    def send(self, memory: torch.Tensor, rank: int, stream: int) -> None: ...
    def receive(self, memory: torch.Tensor, rank: int, stream: int) -> None: ...
    def sum(self, tensor: torch.Tensor, stream: int) -> None: ...
    def reduce(self, tensor: torch.Tensor, rank: int, stream: int) -> None: ...
    def broadcast(self, memory: torch.Tensor, rank: int, stream: int) -> None: ...


class Communicators(Protocol):
    """Makes and ends communicators: see `nccl_library.NcclLibrary`."""

    def unique_id(self) -> bytes: ...
    def join(self, wanted: Sequence[Membership]) -> Sequence[Any]: ...
    def together(self, communicators: Sequence[Any], work: Callable[[], object]) -> None: ...
    def abort(
        self, communicators: Sequence[Any], on_ended: Callable[[], None], is_idle: Callable[[], bool]
    ) -> None: ...


class Queues(Protocol):
    """Queues of work of the GPU: one for computation, and lanes beside it."""

    def enter_thread(self) -> None:
        """This thread works with the GPU from now on."""
        ...

    def allocate(self, size: int) -> torch.Tensor:
        """So many bytes that are 0, for what is queued from now on."""
        ...

    def lane(self, kind: str, number: int) -> Any:
        """The same one for the same arguments: its kind is sum, send, receive or ranks."""
        ...

    def post(self, lane: Any, after: Sequence[Mark], call: Callable[[int], None]) -> Mark:
        """Call with the handle of a lane, whose work comes after these marks; the mark of its end."""
        ...

    def post_together(self, posts: Sequence[Post], run: Callable[[Callable[[], object]], None]) -> list[Mark]:
        """The same on several lanes, after what is computed now; `run` is given what makes all calls."""
        ...

    def mark(self) -> Mark:
        """The end of what computation has queued now."""
        ...

    def wait(self, mark: Mark) -> None:
        """Computation that is queued from now on comes after the mark."""
        ...

    def finish(self, mark: Mark) -> None:
        """Wait, on the host."""
        ...

    def is_done(self, mark: Mark) -> bool: ...

    def is_idle(self, lane: Any) -> bool:
        """True if nothing is queued there."""
        ...


class _Slot:
    """Place of a message while it travels."""

    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)
        self.sent: Mark = None
        """The end of the last send from it."""


class _End:
    """One end of a channel, or this worker's part of a sum."""

    def __init__(self, communicator: RankOf, lane: Any, slots: int = 0) -> None:
        self.communicator, self.lane = communicator, lane
        self.slots = [_Slot() for _ in range(slots)]
        self.count = 0
        self.queue = InOrder()
        self.last: Mark = None
        """The end of what was posted last."""

    def next_slot(self) -> _Slot:
        slot = self.slots[self.count % len(self.slots)]
        self.count += 1
        return slot


class _Sum:
    """A sum under way, and its memory: until computation stands behind it, nobody else may be given that."""

    def __init__(
        self, mark: Mark, stand_behind: Callable[[Mark], None], sums: Sequence[PeerSum] = ()
    ) -> None:
        self.mark, self._stand_behind, self._sums = mark, stand_behind, sums
        self.is_used = False
        self.is_known = False
        """Seen to have come to its end."""

    def wait(self) -> None:
        self.is_used = True
        self._stand_behind(self.mark)
        self._sums = ()


class _Wanted(NamedTuple):
    """A communicator to be made."""

    label: str
    ranks: list[int]
    """Of processes, the one that names it first."""
    is_channel: bool

    @property
    def told_by(self) -> list[int]:
        """Processes that have something to say about it."""
        return self.ranks if self.is_channel else self.ranks[:1]


class _Told(NamedTuple):
    """Names of communicators, and their size, as one process tells the others."""

    named: dict[str, str]
    """By the label of each."""
    most_blocks: int | None


def _collectives(communicator: RankOf, sums: Sequence[PeerSum], stream: int) -> None:
    """Calls that all holders of a chunk take part in."""
    for each in sums:
        if each.is_copy and not each.takers:
            communicator.broadcast(each.tensor, each.sources[0], stream)
        elif not each.is_copy and not each.takers:
            communicator.sum(each.tensor, stream)
        elif not each.is_copy:
            communicator.reduce(each.tensor, each.takers[0], stream)


def _copies(communicator: RankOf, sums: Sequence[PeerSum], me: int, stream: int) -> None:
    """From the holder that has something to others that are to have it."""
    for each in sums:
        source = (each.sources or each.takers or (me,))[0]
        others = [taker for taker in each.takers if taker != source]
        if me == source:
            for taker in others:
                communicator.send(each.tensor, taker, stream)
        elif me in others:
            communicator.receive(each.tensor, source, stream)


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
        library: Communicators,
        queues: Queues,
        prove: Prove | None = None,
        most_blocks: int | None = None,
    ) -> None:
        """`most_blocks` is how many multiprocessors a channel may take while it waits."""
        self._grid, self._me, self._timeout = grid, grid.rank(worker, tp_rank), timeout
        self._library, self._queues = library, queues
        self._store = dist.PrefixStore(f"{name}/nccl", store)
        self._lock = threading.Lock()
        self._is_over = False
        self._sockets: GroupSockets | None = None
        """Those of NCCL, for this transport to shut down."""
        self.waits_on_device = False
        """Computation has come to a message or a sum that others have not made yet."""
        self._sums: dict[int, _End] = {}
        """Of each chunk of this worker that other workers hold too."""
        groups = {group.number: group for group in grid.sum_groups(worker, tp_rank)}
        self._open: dict[int, list[_Sum]] = {chunk: [] for chunk in groups}
        """Sums of the last reduction of each chunk, also of one that no other worker holds."""
        self._in: dict[Worker, _End] = {}
        self._out: dict[Worker, list[_End]] = {}
        """One for each process of a worker that gets what is sent to it."""
        self._tensor: _End | None = None
        """Of the tensor-parallel ranks of this worker, if there are several."""
        self._standing: deque[tuple[Mark, Mark]] = deque()
        """Waits of the device for other workers: what comes before each, and its end."""
        self._first_messages: list[torch.Tensor] = []
        self._ended = threading.Event()
        """No kernel waits any more."""
        self._is_let_go = False
        """The first kernel may have been let go of: no sum ends as it should any more."""
        self.broken_sums: frozenset[int] = frozenset()
        """Chunks of which a sum had not come to its end when the communicators were aborted."""
        self._gloo = GlooTransport(store, name, grid, worker, tp_rank, timeout, prove=prove, is_beside=True)
        sums = {chunk: group for chunk, group in groups.items() if len(group.ranks) > 1}
        self._me_in = {chunk: group.ranks.index(self._me) for chunk, group in groups.items()}
        wanted = [_Wanted(f"sum/{group.name}", group.ranks, False) for group in sums.values()]
        channels: list[NcclChannel] = []
        for channel in channels_of(stream, worker, grid.pipelines):
            is_out = channel.sender == worker
            pairs = (
                [(self._me, to) for to in grid.receivers(worker, tp_rank, channel.receiver)]
                if is_out
                else [(grid.rank(channel.sender, tp_rank), self._me)]
            )
            channels += [channel] * len(pairs)
            wanted += [_Wanted(f"{ends[0]}>{ends[1]}", list(ends), True) for ends in pairs]
        tensor_ranks = grid.tensor_ranks(worker)
        if len(tensor_ranks) > 1:
            wanted.append(_Wanted(f"tensor/{worker[0]}/{worker[1]}", tensor_ranks, False))

        def connect() -> None:
            queues.enter_thread()
            began, sockets = time.monotonic(), GroupSockets()
            made = self._join(wanted, most_blocks)
            joined = time.monotonic()
            waiting = most_waiting(stream, grid.pipelines)
            self._use(
                dict(zip(sums, made, strict=False)),
                list(zip(channels, made[len(sums) :], strict=False)),
                made[-1] if len(tensor_ranks) > 1 else None,
                worker,
                waiting,
            )
            _finish_frees(timeout)
            freed = time.monotonic()
            self._connect_all()
            self._sockets = sockets
            sockets.claim()
            seconds = joined - began, freed - joined, time.monotonic() - freed
            _log.info(
                "%d communicators joined in %.3f s, those before freed %.3f s later, connected in %.3f s",
                len(made),
                *seconds,
            )

        try:
            hold_meeting(connect, self.abort)
        except BaseException:
            self.abort()
            raise
        # To ask the device may take as long as anything that it does: no other thread should wait for that.
        threading.Thread(target=self._watch_device, name="device", daemon=True).start()
        tensor = tensor_ranks.index(self._me), len(tensor_ranks)
        self.tensor_group: Any = (
            None if self._tensor is None else NcclRanks(self._tensor, library, queues, *tensor)
        )

    @property
    def communicators(self) -> int:
        """Number of communicators of this process."""
        return 0 if self._is_over else len(self._ends())

    def send(self, worker: Worker, tensors: Sequence[torch.Tensor]) -> Pending | None:
        for channel in self._out.get(worker, ()):
            self._send(channel, tensors)
        return None

    def _send(self, channel: "_End", tensors: Sequence[torch.Tensor]) -> None:
        specs = tuple(map(TensorSpec.of, tensors))
        slot, size = channel.next_slot(), packed_size(specs)
        if slot.sent is not None:
            self._stand_behind(slot.sent)
        if slot.memory.numel() < size:
            slot.memory = self._queues.allocate(size)
        for piece, tensor in zip(message_pieces(slot.memory, specs), tensors, strict=True):
            piece.copy_(tensor.detach())
        call = partial(channel.communicator.send, slot.memory[:size], _RECEIVER)
        slot.sent = channel.last = self._queues.post(channel.lane, [self._queues.mark()], call)

    def receive(self, worker: Worker, specs: Sequence[TensorSpec]) -> Arrival:
        channel, wanted = self._in[worker], tuple(specs)
        if len(channel.queue) == len(channel.slots):
            raise RuntimeError(f"more than {len(channel.slots)} messages of {worker} wait: not in the stream")
        slot, size = channel.next_slot(), packed_size(wanted)
        if slot.memory.numel() < size:
            slot.memory = self._queues.allocate(size)
        call = partial(channel.communicator.receive, slot.memory[:size], _SENDER)
        arrived = channel.last = self._queues.post(channel.lane, [self._queues.mark()], call)
        return channel.queue.ask(lambda: self._fetch(slot, wanted, arrived))

    def start_peer_sum(self, chunk: int, tensor: torch.Tensor) -> Pending | None:
        peers = self._sums.get(chunk)
        calls = [] if peers is None else [partial(peers.communicator.sum, tensor)]
        return self._open_sum(chunk, calls, [PeerSum(tensor)], goes_on=False)

    def start_peer_sums(
        self, chunk: int, sums: Sequence[PeerSum], *, goes_on: bool = False, after: Any = None
    ) -> Pending | None:
        peers = self._sums.get(chunk)
        calls = [] if peers is None else [partial(self._sum_together, chunk, peers.communicator, sums)]
        if any(not each.is_copy for each in sums):
            return self._open_sum(chunk, calls, sums, goes_on=goes_on, after=after)
        # A copy that is cut off is made again in the next group.
        return None if peers is None else _Sum(self._posted(peers, calls), self._stand_behind, sums)

    def _open_sum(
        self,
        chunk: int,
        calls: Sequence[Callable[[int], None]],
        sums: Sequence[PeerSum],
        *,
        goes_on: bool,
        after: Mark = None,
    ) -> Pending:
        """One more sum of gradients, of the same step as those before or not."""
        peers, opened = self._sums.get(chunk), self._open[chunk]
        if all(each.is_used for each in opened) and not goes_on:
            # Of the step before: no more than one step may have to be taken back.
            for each in opened:
                self._queues.finish(each.mark)
            opened = self._open[chunk] = []
        if peers is None:
            # Nobody adds to it, but what was computed from a message may be cut off as well.
            opened.append(_Sum(self._queues.mark() if after is None else after, lambda _: None))
        else:
            opened.append(_Sum(self._posted(peers, calls, after), self._stand_behind, sums))
        return opened[-1]

    def _posted(self, end: _End, calls: Sequence[Callable[[int], None]], after: Mark = None) -> Mark:
        for call in calls:
            mark = self._queues.mark() if after is None else after
            end.last = self._queues.post(end.lane, [mark], call)
        return end.last

    def _sum_together(self, chunk: int, communicator: Any, sums: Sequence[PeerSum], stream: int) -> None:
        """One holder gets each sum, and sends it to its other takers."""
        me = self._me_in[chunk]
        self._library.together([communicator], lambda: _collectives(communicator, sums, stream))
        if any(each.takers for each in sums):
            self._library.together([communicator], lambda: _copies(communicator, sums, me, stream))

    def start_sum(self, tensor: torch.Tensor) -> Pending | None:
        return self._gloo.start_sum(tensor)

    def barrier(self) -> None:
        self._gloo.barrier()

    def flush(self) -> None:
        """Do nothing: sent data is in slots, and nothing else is held."""

    def abort(self) -> None:
        """End all communication of this process, after a failure; its kernels have ended, or are about to,
        when this returns. Any thread may call it, as often as it likes."""
        with self._lock:
            is_first, self._is_over, self.waits_on_device = not self._is_over, True, False
            if is_first:
                self.broken_sums = frozenset(
                    chunk for chunk, opened in self._open.items() if not all(each.is_known for each in opened)
                )
        if is_first:
            # A device that does not answer has not come to the end of a sum.
            looks = threading.Thread(target=self._look_at_sums, name="sums", daemon=True)
            looks.start()
            looks.join(_LOOK_SECONDS)
            frees = threading.Thread(target=self._end_all, name="abort", daemon=True)
            frees.start()
            _note_free(frees)
        # Which sums are broken is known to every caller.
        self._ended.wait(_FLAG_SECONDS)

    def close(self) -> None:
        self.abort()
        # A kernel that was let go of may still write: memory is used again, and gradients, after its end.
        for end in self._ends():
            if end.last is not None:
                self._queues.wait(end.last)
        self._standing.clear()
        self._tensor = self.tensor_group = None
        self._gloo.close()

    def _ends(self) -> list[_End]:
        """In the order in which they are aborted: nothing computed from what was cut off gets out."""
        tensor = [] if self._tensor is None else [self._tensor]
        return [*self._sums.values(), *self._outgoing, *tensor, *self._in.values()]

    @property
    def _outgoing(self) -> list[_End]:
        return [end for ends in self._out.values() for end in ends]

    def _look_at_sums(self) -> None:
        whole = {
            chunk
            for chunk, opened in list(self._open.items())
            if all(self._is_done(each.mark) for each in opened)
        }
        with self._lock:
            if not self._is_let_go:
                self.broken_sums -= whole

    def _watch_device(self) -> None:
        while not self._is_over:
            with self._lock:
                standing, opened = list(self._standing), [each for row in self._open.values() for each in row]
            for each in opened:
                each.is_known = each.is_known or self._is_done(each.mark)
            waits = [before for before, end in standing if not self._is_done(end)][:1]
            self.waits_on_device = bool(waits) and self._is_done(waits[0]) and not self._is_over
            time.sleep(_WATCH_EVERY)

    def _end_all(self) -> None:
        """No call of CUDA before kernels are let go of: it might wait for them."""
        with self._lock:
            self._is_let_go = True

        def end() -> None:
            self._ended.set()
            if self._sockets is not None:
                self._sockets.break_off()
                self._sockets.retire()

        ends = self._ends()
        try:
            self._library.abort(
                [each.communicator for each in ends],
                end,
                lambda: all(self._queues.is_idle(each.lane) for each in ends),
            )
        except RuntimeError as error:
            # What is left of them is never used again.
            _log.warning("communicators were not freed: %s", error)
        finally:
            self._ended.set()

    def _is_done(self, mark: Mark) -> bool:
        try:
            return self._queues.is_done(mark)
        except RuntimeError:
            # The device has an error of its own, which the main thread meets too.
            return False

    def _stand_behind(self, mark: Mark) -> None:
        """Computation waits for other workers."""
        # Outside of the lock: a queue of the device may be full, and an abort must not wait for that.
        before = self._queues.mark()
        while self._standing and self._is_done(self._standing[0][1]):
            with self._lock:
                self._standing.popleft()
        with self._lock:
            self._standing.append((before, mark))
        self._queues.wait(mark)

    def _fetch(self, slot: _Slot, specs: tuple[TensorSpec, ...], arrived: Mark) -> list[torch.Tensor]:
        self._stand_behind(arrived)
        return [piece.clone() for piece in message_pieces(slot.memory, specs)]

    # Joining, on the thread of a meeting.

    def _join(self, wanted: Sequence[_Wanted], most_blocks: int | None) -> list[Any]:
        """All communicators at the same time. Each is named by its first rank. Every process says in one
        message what it names, and how many blocks it has for a channel: both ends must take the same."""
        named = {each.label: self._library.unique_id().hex() for each in wanted if each.ranks[0] == self._me}
        told = {self._me: _Told(named, most_blocks)}
        self._store.set(f"told/{self._me}", json.dumps(told[self._me]))
        for rank in sorted({rank for each in wanted for rank in each.told_by} - {self._me}):
            key = f"told/{rank}"
            self._store.wait([key], self._timeout)
            told[rank] = _Told(*json.loads(self._store.get(key)))
        members = [
            Membership(
                bytes.fromhex(told[each.ranks[0]].named[each.label]),
                each.ranks.index(self._me),
                len(each.ranks),
                min(told[rank].most_blocks or _MOST_BLOCKS for rank in each.ranks)
                if each.is_channel
                else None,
            )
            for each in wanted
        ]
        return list(self._library.join(members)) if members else []

    def _use(
        self,
        sums: dict[int, Any],
        channels: Sequence[tuple[NcclChannel, Any]],
        tensor: Any,
        worker: Worker,
        waiting: dict[Worker, int],
    ) -> None:
        lane = self._queues.lane
        with self._lock:
            for number, (chunk, made) in enumerate(sums.items()):
                self._sums[chunk] = _End(made, lane("sum", number))
            for number, (channel, made) in enumerate(channels):
                if channel.sender == worker:
                    end = _End(made, lane("send", number), _UNDER_WAY)
                    self._out.setdefault(channel.receiver, []).append(end)
                else:
                    slots = waiting[channel.sender] + 1
                    self._in[channel.sender] = _End(made, lane("receive", number), slots)
            self._tensor = None if tensor is None else _End(tensor, lane("ranks", 0))
            is_late = self._is_over
        if is_late:
            _note_free(threading.current_thread())
            self._end_all()

    def _connect_all(self) -> None:
        """A first message makes connections: later on, nobody waits on the host for a process that is
        gone."""
        memory = self._first_messages = [self._queues.allocate(1) for _ in self._ends()]
        calls = [
            *(end.communicator.sum for end in self._sums.values()),
            *(partial(end.communicator.send, rank=_RECEIVER) for end in self._outgoing),
            *(end.communicator.sum for end in [self._tensor] if end is not None),
            *(partial(end.communicator.receive, rank=_SENDER) for end in self._in.values()),
        ]
        posts: list[Post] = [
            (end.lane, lambda stream, call=call, own=own: call(own, stream=stream))
            for end, call, own in zip(self._ends(), calls, memory, strict=True)
        ]
        made = [end.communicator for end in self._ends()]
        marks = self._queues.post_together(posts, partial(self._library.together, made))
        for end, mark in zip(self._ends(), marks, strict=True):
            end.last = mark
            self._queues.finish(mark)
        for chunk, end in self._sums.items() if self._grid.has_shards else ():
            # Holders of a chunk send each other shards.
            holders = range(len(self._grid.holders(chunk)))
            memory = [self._queues.allocate(1) for _ in holders]
            self._first_messages += memory
            pairs = [(giver, taker) for giver in holders for taker in holders if giver != taker]
            sums = [PeerSum(memory[giver], (giver,), (taker,)) for giver, taker in pairs]
            call = partial(self._sum_together, chunk, end.communicator, sums)
            self._queues.finish(self._posted(end, [call]))


ENVIRONMENT = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "CUDA_MODULE_LOADING": "EAGER",
    "NCCL_RUNTIME_CONNECT": "0",
}
"""Communicators wait on the GPU. With few hardware queues a computation may stand behind such a wait, and
loading a kernel at its first use may wait for all that runs; both could make two GPUs wait for each other.
NCCL connects ranks for an algorithm when it is first used, unless told otherwise: that would wait on the
host, where no abort helps, for a rank that is gone."""

_MOST_CHANNELS = 28
"""The hardware has 32 queues; computation, sums and copies take some."""
_SHARE = 4
"""All channels of a worker together may take this fraction (one in so many) of the GPU while they wait."""


_WITHOUT = {"NCCL_RAS_ENABLE": "0"}
"""Threads and sockets of NCCL for a client that asks how communicators are; nobody does here."""


def set_environment() -> None:
    """Set environment variables that the user has not set; in time only before the first call of CUDA."""
    for name, value in (ENVIRONMENT | _WITHOUT).items():
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
    processors: int = torch.cuda.get_device_properties(device).multi_processor_count
    return NcclTransport(
        store,
        name,
        grid,
        worker,
        tp_rank,
        timeout,
        stream,
        nccl(),
        CudaQueues(device),
        prove,
        max(1, min(_MOST_BLOCKS, processors // (_SHARE * max(1, channels)))),
    )


_PRIORITY = {"send": -1, "receive": 0, "sum": 0, "ranks": -1}
"""Streams come from two pools of 32, by priority: a send never shares a stream with a receive."""
_lanes: dict[tuple[torch.device, str, int], torch.cuda.Stream] = {}
"""Of this process, for all its generations."""


class CudaQueues:
    """The current stream, and others beside it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def enter_thread(self) -> None:
        torch.cuda.set_device(self._device)

    def allocate(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8, device=self._device)

    def lane(self, kind: str, number: int) -> torch.cuda.Stream:
        key = self._device, kind, number
        if key not in _lanes:
            _lanes[key] = torch.cuda.Stream(self._device, priority=_PRIORITY[kind])
        return _lanes[key]

    def post(self, lane: Any, after: Sequence[Mark], call: Callable[[int], None]) -> Mark:
        for mark in after:
            lane.wait_event(mark)
        call(lane.cuda_stream)
        return _recorded(lane)

    def post_together(self, posts: Sequence[Post], run: Callable[[Callable[[], object]], None]) -> list[Mark]:
        begin = self.mark()
        for lane, _ in posts:
            lane.wait_event(begin)
        run(lambda: [call(lane.cuda_stream) for lane, call in posts])
        return [_recorded(lane) for lane, _ in posts]

    def mark(self) -> Mark:
        return _recorded(torch.cuda.current_stream(self._device))

    def wait(self, mark: Mark) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)

    def finish(self, mark: Mark) -> None:
        mark.synchronize()

    def is_done(self, mark: Mark) -> bool:
        return mark.query()

    def is_idle(self, lane: Any) -> bool:
        return lane.query()


def _recorded(stream: Any) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(stream)
    return event
