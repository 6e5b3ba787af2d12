"""Messages and reductions between processes with a device each, over the transport that training uses.

This process is worker 0:0 of a grid like the job's, as far as there are devices for one; the others are
started here. They join as workers do, so messages have the streams, slots and communicators of training. Over
NCCL that matters twice: several reductions share the host's network, so those of all stages run at once; and
while a message crosses it takes a few multiprocessors, so ops are measured beside a receive too.
"""

import logging
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from recycle_runtime.devices import Device, WorkerDevices
from recycle_runtime.experts.among_peers import AmongPeers
from recycle_runtime.experts.placement import Placement
from recycle_runtime.plan.isa import Instruction, Opcode
from recycle_runtime.plan.worker_ids import Worker, cell_number, numbered_worker
from recycle_runtime.profiler.links import Receive, TokenRows
from recycle_runtime.profiler.meters import NOTHING, Timing
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.transport.choose import connect, device_of
from recycle_runtime.transport.interface import Grid, PeerSum, TensorSpec, Transport

MOST_BYTES = 256 << 20
"""More than this is not sent to measure it."""
_WARM_UP = 2
_HEAD_START = 2_000_000
"""Cycles of the GPU, about 1 ms: the host queues a message while the GPU is busy, as in training."""
_PATIENCE = timedelta(seconds=120)
_WAITS_AT_MOST = 30.0
"""Seconds. A receive ends after them even if nobody releases it, as when something waits for the device."""
_OVER = {"cpu": "gloo", "cuda": "NCCL"}
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_HERE = "127.0.0.1"

_log = logging.getLogger(__name__)


class GridShape(NamedTuple):
    """A grid of processes: a worker of each stage in each pipeline."""

    stages: int
    pipelines: int

    @property
    def size(self) -> int:
        return self.stages * self.pipelines

    def worker(self, number: int) -> Worker:
        return numbered_worker(number, self.pipelines)

    def grid(self) -> Grid:
        return Grid([self.worker(number) for number in range(self.size)], 1, self.pipelines)


def transfer_shape(stages: int | None, pipelines: int, devices: int) -> GridShape:
    """The grid that messages are measured in: as many stages as there can be, then pipelines.

    Layers have no number of stages (None): two are enough for a message.
    """
    stages = min(stages or 2, devices)
    return GridShape(stages, max(1, min(pipelines, devices // stages)))


def sum_shape(stages: int | None, pipelines: int, devices: int) -> GridShape:
    """The grid that reductions are measured in: as many peers as there can be, then stages."""
    pipelines = min(pipelines, devices)
    return GridShape(max(1, min(stages or devices, devices // pipelines)), pipelines)


def ring_factor(wanted: int, measured: int) -> float:
    """Factor of a reduction's time among more ranks: each passes on 2 (n - 1) / n of the bytes."""
    return (1 - 1 / wanted) / (1 - 1 / measured)


def neighbour_stream(shape: GridShape, worker: Worker) -> list[Instruction]:
    """One micro-batch of a worker: both directions to each neighbouring stage."""
    pipeline, stage = worker
    stream: list[Instruction] = []

    def add(opcode: Opcode, other: int, inbox: int = -1) -> None:
        neighbour = cell_number((pipeline, other), shape.pipelines)
        stream.append(Instruction(opcode, stage, pipeline, 0, inbox=inbox, neighbour=neighbour))

    if stage > 0:
        add(Opcode.RECV_ACTIVATION, stage - 1, inbox=0)
        stream.append(Instruction(Opcode.FORWARD, stage, pipeline, 0, inbox=0))
        add(Opcode.SEND_GRADIENT, stage - 1)
    if stage < shape.stages - 1:
        add(Opcode.SEND_ACTIVATION, stage + 1)
        add(Opcode.RECV_GRADIENT, stage + 1, inbox=1)
        stream.append(Instruction(Opcode.BACKWARD, stage, pipeline, 0, inbox=1))
    return stream


class _Member:
    """One process, with its device."""

    def __init__(self, number: int, device: torch.device, store: Any, pipe: Connection | None) -> None:
        self.number, self.device, self.pipe = number, device, pipe
        self._store = store
        self._transports: dict[GridShape, Transport] = {}

    def transport(self, shape: GridShape) -> Transport:
        """All processes of the grid must ask for it at the same time, when they do so first."""
        if shape not in self._transports:
            worker = shape.worker(self.number)
            store = dist.PrefixStore(f"{shape.stages}x{shape.pipelines}", self._store)
            stream = neighbour_stream(shape, worker)
            self._transports[shape] = connect(store, shape.grid(), worker, 0, stream, self.device, _PATIENCE)
        return self._transports[shape]

    def time(self, work: Callable[[], object]) -> int:
        """Nanoseconds on the device, from the end of what was computed before."""
        if self.device.type == "cpu":
            began = time.perf_counter_ns()
            work()
            return time.perf_counter_ns() - began
        torch.cuda._sleep(_HEAD_START)  # pyright: ignore[reportPrivateUsage]
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return round(start.elapsed_time(end) * 1e6)

    def finish(self) -> None:
        """Wait for what was computed."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def close(self) -> None:
        for transport in self._transports.values():
            transport.close()


class _Join(NamedTuple):
    """Connect the processes of a grid."""

    shape: GridShape

    def run(self, member: _Member) -> list[int]:
        member.transport(self.shape).barrier()
        return []


class _RoundTrips(NamedTuple):
    """Messages from a stage to the next and back, in all pipelines at once."""

    shape: GridShape
    stage: int
    size: int
    rounds: int

    def run(self, member: _Member) -> list[int]:
        transport, (pipeline, stage) = member.transport(self.shape), self.shape.worker(member.number)
        message = torch.zeros(self.size, dtype=torch.uint8, device=member.device)
        specs = [TensorSpec.of(message)]
        transport.barrier()
        if stage == self.stage:
            other = pipeline, stage + 1

            def there_and_back() -> None:
                back = transport.receive(other, specs)
                _send(transport, other, [message])
                back.wait()

            return [member.time(there_and_back) for _ in range(self.rounds)]
        if stage == self.stage + 1:
            # The host runs ahead of all messages, and the GPU sends one back when it has come.
            other = pipeline, stage - 1
            for _ in range(self.rounds):
                _send(transport, other, transport.receive(other, specs).wait())
            transport.flush()
            member.finish()
        return []


class _Sums(NamedTuple):
    """Reductions of several stages at once, so many bytes on each."""

    shape: GridShape
    work: tuple[int, ...]
    """Bytes, by stage."""
    rounds: int

    def run(self, member: _Member) -> list[int]:
        transport, (_, stage) = member.transport(self.shape), self.shape.worker(member.number)
        size = self.work[stage] if stage < len(self.work) else 0
        gradients = torch.zeros(-(-size // 4), device=member.device)

        def add_up() -> None:
            pending = transport.start_peer_sum(stage, gradients)
            assert pending is not None, "a ring of one"
            pending.wait()

        times: list[int] = []
        for _ in range(self.rounds):
            transport.barrier()
            if size:
                times.append(member.time(add_up))
        return times


class _Exchanges(NamedTuple):
    """Exchanges of a forward and of its backward, for several stages at once."""

    shape: GridShape
    work: tuple[tuple[TokenRows, ...], ...]
    """Of each layer, by stage."""
    rounds: int

    def run(self, member: _Member) -> list[int]:
        transport, (peer, stage) = member.transport(self.shape), self.shape.worker(member.number)
        layers = self.work[stage] if stage < len(self.work) else ()
        peers = self.shape.pipelines
        placement, start = (
            Placement([[number] for number in range(peers)]),
            partial(transport.start_peer_sums, stage),
        )
        exchanges = [AmongPeers(number, peer, start, placement) for number in range(len(layers))]
        tokens: list[torch.Tensor] = []
        counts: list[torch.Tensor] = []
        for each in layers:
            tokens.append(torch.zeros(each.number, each.width, dtype=each.dtype, device=member.device))
            shares = [(each.number + number) // peers for number in range(peers)]
            counts.append(torch.tensor(shares, device=member.device)[:, None])

        def forward_and_backward() -> None:
            backs: list[torch.Tensor] = []
            for exchange, rows, count in zip(exchanges, tokens, counts, strict=True):
                there, arriving = exchange.exchange(rows.requires_grad_(), count)
                backs.append(exchange.exchange(there, arriving, count)[0])
            for back, rows in zip(reversed(backs), reversed(tokens), strict=True):
                torch.autograd.grad(back, rows, torch.zeros_like(back))

        times: list[int] = []
        for _ in range(self.rounds):
            transport.barrier()
            if layers:
                times.append(member.time(forward_and_backward))
        return times


class _Copies(NamedTuple):
    """A message of each peer to the next one, of several stages at once."""

    shape: GridShape
    work: tuple[int, ...]
    """Bytes, by stage."""
    rounds: int

    def run(self, member: _Member) -> list[int]:
        transport, (peer, stage) = member.transport(self.shape), self.shape.worker(member.number)
        peers, size = self.shape.pipelines, self.work[stage] if stage < len(self.work) else 0
        own, other = (torch.zeros(size, dtype=torch.uint8, device=member.device) for _ in range(2))
        tensors = [own.to("meta")] * peers
        tensors[peer], tensors[peer - 1] = own, other
        copies = [PeerSum(each, (giver,), ((giver + 1) % peers,)) for giver, each in enumerate(tensors)]

        def pass_on() -> None:
            pending = transport.start_peer_sums(stage, copies)
            assert pending is not None, "a peer alone"
            pending.wait()

        times: list[int] = []
        for _ in range(self.rounds):
            transport.barrier()
            if size:
                times.append(member.time(pass_on))
        return times


class _LetWait(NamedTuple):
    """A message to worker 0:0 when the process is ordered to send it, or has waited too long."""

    shape: GridShape
    size: int

    def run(self, member: _Member) -> list[int]:
        transport, pipe = member.transport(self.shape), member.pipe
        assert pipe is not None, "worker 0:0 lets nobody wait"
        message = torch.zeros(self.size, dtype=torch.uint8, device=member.device)
        is_in_time = pipe.poll(_WAITS_AT_MOST)
        _send(transport, (0, 0), [message])
        transport.flush()
        member.finish()
        if not is_in_time:
            pipe.poll(None)
        pipe.recv()
        return [int(is_in_time)]


_AtOnce = _Sums | _Exchanges | _Copies
_Command = _Join | _RoundTrips | _AtOnce | _LetWait


def _send(transport: Transport, worker: Worker, tensors: Sequence[torch.Tensor]) -> None:
    pending = transport.send(worker, tensors)
    if pending is not None:
        pending.wait()


class GridLinks:
    """Links between workers with a device each."""

    def __init__(
        self, member: _Member, pipes: Sequence[Connection], stages: int | None, pipelines: int, devices: int
    ) -> None:
        self._member, self._pipes, self._pipelines = member, pipes, pipelines
        self._transfer = transfer_shape(stages, pipelines, devices)
        self._sum = sum_shape(stages, pipelines, devices)

    @property
    def rings(self) -> int:
        return self._sum.stages

    @property
    def how(self) -> dict[str, str]:
        over = _OVER[self._member.device.type]
        peers = f"{self._sum.stages} x {self._sum.pipelines} processes"
        if self._sum.pipelines < self._pipelines:
            peers += f", scaled to {self._pipelines} peers"
        return {
            "ops_measured": f"alone and beside a receive over {over} that waits, by the time in which "
            "messages cross; layers alone",
            "transfer_measured": f"one way of a round trip over {over} between processes with a device each, "
            f"in {self._transfer.pipelines} pipelines at once, with the copies to and from the transport's "
            "slots",
            "reduce_measured": f"all-reduce of float32 over {over}, those of all stages at once: {peers}",
            "exchange_measured": "equally many rows for each peer, half the time of a forward and a backward "
            f"over {over} that compute nothing, those of all stages at once: {peers}",
            "slot_transfer_measured": f"messages over {over} from each peer to the next, all stages at once",
        }

    def waiting_receive(self, size: int) -> Receive | None:
        shape = self._transfer
        return None if shape.stages < 2 or size == 0 else partial(self._waiting, shape, size)

    @contextmanager
    def _waiting(self, shape: GridShape, size: int) -> Generator[None]:
        self._together(_Join(shape), shape)
        specs = [TensorSpec((size,), torch.uint8)]
        sender = shape.worker(shape.pipelines)
        pipe = self._pipes[shape.pipelines - 1]
        pipe.send(_LetWait(shape, size))
        arrival = self._member.transport(shape).receive(sender, specs)
        try:
            yield
        finally:
            pipe.send(None)
            arrival.wait()
            self._member.finish()
            if not _answer(pipe)[0]:
                _log.warning("ops were measured without a receive beside them: one of them waited for it")

    def transfers(self, sizes: Sequence[int], repeat: int) -> list[Timing]:
        return [self._one_way(number, size, repeat) for number, size in enumerate(sizes)]

    def reductions(self, sizes: Sequence[int], ranks: int, repeat: int) -> list[Timing]:
        if ranks < 2:
            return [NOTHING] * len(sizes)
        more = ring_factor(ranks, self._sum.pipelines)
        return [each.scaled(more) for each in self._by_parts(_Sums, sizes, repeat)]

    def copies(self, sizes: Sequence[int], ranks: int, repeat: int) -> list[Timing]:
        return self._by_parts(_Copies, sizes, repeat) if ranks > 1 else [NOTHING] * len(sizes)

    def _by_parts(
        self, command: type[_Sums] | type[_Copies], sizes: Sequence[int], repeat: int
    ) -> list[Timing]:
        """Those of as many stages at once as there are rings, of a part of the bytes where these are many."""
        found: list[Timing] = []
        for first in range(0, len(sizes), self.rings):
            some = sizes[first : first + self.rings]
            parts = tuple(min(size, MOST_BYTES) for size in some)
            timings = self._at_once(command(self._sum, parts, _WARM_UP + repeat))
            scales = [size / part if size else 0.0 for size, part in zip(some, parts, strict=True)]
            found += [timing.scaled(scale) for timing, scale in zip(timings, scales, strict=True)]
        return found

    def exchanges(self, rows: Sequence[Sequence[TokenRows]], ranks: int, repeat: int) -> list[Timing]:
        found: list[Timing] = []
        if ranks < 2 or not any(rows):
            return [NOTHING] * len(rows)
        for first in range(0, len(rows), self.rings):
            some = tuple(map(tuple, rows[first : first + self.rings]))
            timings = self._at_once(_Exchanges(self._sum, some, _WARM_UP + repeat))
            found += [timing.scaled(0.5 * ring_factor(ranks, self._sum.pipelines)) for timing in timings]
        return found

    def _one_way(self, number: int, size: int, repeat: int) -> Timing:
        shape = self._transfer
        if size == 0 or shape.stages < 2:
            return NOTHING
        part, stage = min(size, MOST_BYTES), number % (shape.stages - 1)
        rows = self._together(_RoundTrips(shape, stage, part, _WARM_UP + repeat), shape)
        measured = [time for row in rows for time in row[_WARM_UP:]]
        return Timing.of(measured).scaled(size / part / 2)

    def _at_once(self, command: _AtOnce) -> list[Timing]:
        """One timing for each ring: nothing where nothing was to be done."""
        rows, pipelines = self._together(command, self._sum), self._sum.pipelines
        found: list[Timing] = []
        for stage in range(len(command.work)):
            ring = rows[stage * pipelines : (stage + 1) * pipelines]
            # A round is over when the last rank is done.
            last = [max(times) for times in zip(*ring, strict=True)][_WARM_UP:]
            found.append(Timing.of(last) if last else NOTHING)
        return found

    def _together(self, command: _Command, shape: GridShape) -> list[list[int]]:
        """Run a command on each process of a grid; return the times of all, this process's first."""
        others = self._pipes[: shape.size - 1]
        for pipe in others:
            pipe.send(command)
        own = command.run(self._member)
        return [own, *map(_answer, others)]


def _answer(pipe: Connection) -> list[int]:
    if not pipe.poll(_PATIENCE.total_seconds()):
        raise TimeoutError(f"a process that measures links is silent for {_PATIENCE.total_seconds():.0f} s")
    return pipe.recv()


@contextmanager
def grid_links(
    device: str, devices: Sequence[Device], stages: int | None, pipelines: int
) -> Generator[GridLinks]:
    """Links between processes with one of these devices each; this process has the first. ProgramError if
    another of them ends.

    On a CPU the devices are only counted.
    """
    if "lo" in [name for _, name in socket.if_nameindex()]:
        os.environ.setdefault(_GLOO_INTERFACE, "lo")
    count = len(devices)
    shapes = transfer_shape(stages, pipelines, count), sum_shape(stages, pipelines, count)
    size = max(shape.size for shape in shapes)
    places = None if device == "cpu" else WorkerDevices(tuple(devices[:size]), size)
    store: Any = dist.TCPStore(_HERE, 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    processes: list[Any] = []
    pipes: list[Connection] = []
    member: _Member | None = None
    over = threading.Event()
    try:
        for number in range(1, size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(number, places, store.port, theirs), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        member = _Member(0, device_of(device), store, None)
        threading.Thread(target=_watch, args=(processes, member, over), daemon=True).start()
        yield GridLinks(member, pipes, stages, pipelines, count)
    except (EOFError, OSError, RuntimeError) as error:
        if isinstance(error, ProgramError) or all(process.is_alive() for process in processes):
            raise
        raise ProgramError(f"a process that measures links has ended: see above ({error})") from None
    finally:
        over.set()
        if member is not None:
            member.close()
        for process in processes:
            process.kill()
        for process, pipe in zip(processes, pipes, strict=True):
            process.join()
            pipe.close()


def _watch(processes: Sequence[Any], member: _Member, over: threading.Event) -> None:
    """Nobody else wakes a GPU that waits for a process which is gone."""
    wait([process.sentinel for process in processes])
    if not over.is_set():
        member.close()


def _serve(number: int, places: WorkerDevices | None, port: int, pipe: Connection) -> None:
    device = device_of("cpu" if places is None else places.use(number))
    member = _Member(number, device, dist.TCPStore(_HERE, port, is_master=False), pipe)
    while True:
        try:
            command: _Command = pipe.recv()
        except EOFError:
            return
        pipe.send(command.run(member))
