"""Processes of `bench.gpu_memory`: each trains a few steps and says what memory they have taken.

Ours is a worker as it is in a run, with all that recovery needs. Torch's methods train the same layers under
bf16 autocast over float32 weights: DistributedDataParallel with gradients that are views of its buckets, the
same with ZeroRedundancyOptimizer, and FSDP2 with a gather and a reduction for every layer and micro-batch.
"""

import faulthandler
import gc
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from datetime import timedelta
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from bench.nccl_grid import PIPELINES, STAGES, Schedule, one_schedule, rounds_of
from recycle_runtime.execution.chunk import Chunk, Graphs, UndoMemory, build_chunks
from recycle_runtime.execution.optimizer.gradient_part import BUCKET_BYTES
from recycle_runtime.execution.session import Role, Session
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Instruction, Opcode
from recycle_runtime.profiler.measure import Options, profile
from recycle_runtime.program.host_random import seed_all
from recycle_runtime.program.loading import load_program
from recycle_runtime.state.ownership import ownership_of
from recycle_runtime.transport import choose
from recycle_runtime.transport.interface import grid_of

dist: Any = torch.distributed
_PATIENCE = timedelta(seconds=60)
_STANDS_SECONDS = 100.0
"""After so long a task says where its threads are."""


class Timing(NamedTuple):
    """Steps to make, and how they are timed."""

    steps: int
    left_out: int
    """Before the first round."""
    round: int
    """Steps that are timed together."""


class Task(NamedTuple):
    """Work that some processes do together."""

    name: str
    processes: int
    program: str
    method: str
    """Name of a function of METHODS."""
    timing: Timing
    plan: str = ""
    microbatches: int = 1
    """For each process, in methods of torch."""
    graphs: Graphs = "off"
    undo: UndoMemory = "device"
    schedule: Schedule | None = None
    """Of torch.distributed.pipelining."""
    shares_out: bool = False
    """True if that has its optimizer's state in shards."""


class Place(NamedTuple):
    """A process of a task."""

    rank: int
    store: Any
    """Of this task alone."""
    device: torch.device


Row = dict[str, Any]
"""Bytes by what they are; `rounds` are milliseconds of a step, `losses` those of steps, where known."""


def serve(rank: int, port: int, pipe: Connection, device: str, is_ours: bool) -> None:
    """Tasks from the pipe, one after the other, until somebody ends this process."""
    where = _start(device, is_ours)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    context = beside_torch() if where.type == "cuda" else 0
    pipe.send({})
    while True:
        number, task = pipe.recv()
        place = Place(rank, dist.PrefixStore(f"task/{number}", store), where)
        if where.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        # One that stands shows where.
        faulthandler.dump_traceback_later(_STANDS_SECONDS, exit=False)
        found = METHODS[task.method](task, place)
        faulthandler.cancel_dump_traceback_later()
        gc.collect()
        if where.type == "cuda":
            torch.cuda.empty_cache()
        pipe.send({**found, "context": context, "left": allocated(where)})


def _start(device: str, is_ours: bool) -> torch.device:
    """Ours sets what NCCL and CUDA read from the environment; torch's has all of it as it is.

    Threads of both sleep while they wait for the device: six that spin take the cores from NCCL's own.
    """
    # Threads of six processes beside each other take the cores from NCCL's own.
    torch.set_num_threads(1)
    if is_ours or device == "cpu":
        return choose.device_of(device)
    choose._sleep_while_waiting()  # pyright: ignore[reportPrivateUsage]
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)


def allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def beside_torch() -> int:
    """Bytes of the device that are used beside those that torch has reserved: CUDA's context, NCCL."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def bytes_in(tensors: Iterable[Any]) -> int:
    """Of what is here of tensors that may be in shards."""
    local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def bytes_in_one(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def state_tensors(optimizer: Any) -> list[torch.Tensor]:
    kept = [value for state in optimizer.state.values() for value in state.values()]
    return [value for value in kept if isinstance(value, torch.Tensor)]


class Watch:
    """Time and memory of the steps of one process."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self._timing, self._device = task.timing, device
        self._ends: list[float] = []
        self._before = allocated(device)
        self._start = 0
        """The most until the first timed step."""

    def train(self, step: Callable[[int], float | None], rest: Callable[[], Row]) -> Row:
        """All steps; `rest` says what is held between two of them."""
        timing, on_cuda = self._timing, self._device.type == "cuda"
        losses: list[float] = []
        for number in range(timing.steps):
            if number == timing.left_out and on_cuda:
                self._start = torch.cuda.max_memory_allocated() - self._before
                torch.cuda.reset_peak_memory_stats()
            loss = step(number)
            losses += [] if loss is None else [loss]
            if (
                on_cuda
                and number >= timing.left_out - 1
                and (number - timing.left_out + 1) % timing.round == 0
            ):
                torch.cuda.synchronize()
            self._ends.append(time.perf_counter())
        return {
            **rest(),
            **self._memory(),
            "rounds": rounds_of(self._ends, timing.left_out, timing.round),
            "losses": losses,
        }

    def _memory(self) -> Row:
        """On the device, since the task began or in all."""
        if self._device.type != "cuda":
            return {}
        return {
            "allocated": allocated(self._device) - self._before,
            "start": self._start,
            "highest": torch.cuda.max_memory_allocated() - self._before,
            "reserved": torch.cuda.memory_reserved(),
            "driver": beside_torch(),
            "device": torch.cuda.mem_get_info()[1],
        }


# Ours.


def ours(task: Task, place: Place) -> Row:
    """A worker of a plan."""
    device, watch, began = place.device, Watch(task, place.device), time.monotonic()
    bundle = Bundle.read(task.plan)
    worker = bundle.workers(0)[place.rank]
    stream, grid = bundle.stream(0, worker), grid_of(bundle, bundle.workers(0))
    transport = choose.connect(place.store, grid, worker, 0, stream, device, _PATIENCE)
    chunks = build_chunks(
        load_program(task.program), bundle, worker[1], 0, device, graphs=task.graphs, undo=task.undo
    )
    built = time.monotonic()
    held: list[int] = []
    is_watched = False

    def before(position: int) -> None:
        if is_watched:
            held.append(allocated(device))

    role, store = Role(bundle, 0, worker, stream, grid), place.store
    owners = ownership_of(role, chunks, transport)
    session = Session(role, chunks, transport, store, device, before=before, ownership=owners)
    # One more than are timed: to look at memory before every instruction takes time.
    next(iter(chunks.values())).data.ends_at = task.timing.steps + 1
    session.agree()
    synchronize(device)
    agreed = time.monotonic()
    row = watch.train(lambda number: session.run(number).loss, lambda: held_between_steps(chunks.values()))
    rest, is_watched = allocated(device), True
    session.run(task.timing.steps)
    session.settle()
    # Whoever leaves cuts off what another is still to get.
    transport.barrier()
    session.close()
    messages = gathered_bytes(chunks.values()) if bundle.owners else 0
    return {
        **row,
        "held": max(held) - rest,
        "messages": messages,
        "seconds to build": built - began,
        "seconds to agree": agreed - built,
    }


def gathered_bytes(chunks: Iterable[Chunk]) -> int:
    """The most memory of weights on their way from owners: those of two messages."""
    most = 0
    for chunk in chunks:
        sizes = [sum(map(bytes_in_one, layer.parameters)) for layer in chunk.layers if layer.shards]
        groups = [0]
        for size in sizes:
            groups[-1] += size
            if groups[-1] >= BUCKET_BYTES:
                groups.append(0)
        most = max(most, *(one + other for one, other in pairwise([0, *groups])))
    return most


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def held_between_steps(chunks: Iterable[Chunk]) -> Row:
    """Of a worker, by what it is for."""
    row: dict[str, int] = {}
    for chunk in chunks:
        stepper, module = chunk.stepper, chunk.module
        sums = bytes_in([*stepper.gradients.buffers, *stepper.gradients.tied_buffers])
        parts = {
            "parameters": sum(parameter.numel() for parameter in module.parameters()),
            "weights": bytes_in([*module.parameters(), *module.buffers()]) + chunk.split.bytes_held,
            "gradients": sums,
            "kept": stepper.gradients.bytes_held - sums,
            "optimizer": sum(each.state_bytes for layer in chunk.layers for each in layer.steppers),
            "undo": stepper.undo.bytes_held,
            "undo on the host": stepper.undo.bytes_held if chunk.setting.undo_on_host else 0,
        }
        row = {name: row.get(name, 0) + size for name, size in parts.items()}
    return row


def planned(task: Task, place: Place) -> Row:
    """Bytes that a micro-batch holds, as a profile has them: `saved` from F on, `kept` after I."""
    costs = profile(load_program(task.program), Options(stages=1, device=place.device.type, repeat=2)).stages[
        0
    ]
    return {"saved": costs.saved_bytes, "kept": costs.kept_bytes, "working": costs.working_bytes}


def most_held(stream: Sequence[Instruction], saved: int, kept: int) -> int:
    """The most that the buffers of a stream hold at once, with these bytes of a micro-batch."""
    now = most = 0
    for each in stream:
        if each.opcode is Opcode.FORWARD:
            now += saved
        elif each.opcode is Opcode.BACKWARD_INPUT:
            now += kept - saved
        elif each.opcode is Opcode.BACKWARD_WEIGHT:
            now -= kept
        elif each.opcode is Opcode.BACKWARD:
            now -= saved
        most = max(most, now)
    return most


# Torch's.


class TorchLoop:
    """The program's model and data, trained by a method of torch."""

    def __init__(self, task: Task, place: Place) -> None:
        self.program, self._task, self._place = load_program(task.program), task, place
        seed_all(0)
        self.model: Any = torch.nn.Sequential(*(layer for _, layer in self.program.layers()))
        self.model.to(place.device)
        self._data: Iterator[tuple[torch.Tensor, torch.Tensor]] = self.program.batches(place.rank)
        self.optimizer: Any = None

    def step(self, number: int) -> float:
        """One; gradients are summed with the last micro-batch, where the method can wait for that."""
        device, count = self._place.device, self._task.microbatches
        total = torch.zeros((), device=device)
        for microbatch in range(count):
            waits = microbatch < count - 1 and hasattr(self.model, "no_sync")
            value, target = (each.to(device) for each in next(self._data))
            with self.model.no_sync() if waits else nullcontext():
                with torch.autocast(device.type, torch.bfloat16):
                    loss = self.program.loss(self.model(value), target) / count
                torch.autograd.backward(loss)
            total += loss.detach()
        assert self.program.clip_norm is not None
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.program.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        return float(total)

    def rest(self) -> Row:
        """Bytes held between two steps, but buckets and buffers of messages."""
        parameters = list(self.model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        inner = getattr(self.optimizer, "optim", self.optimizer)
        return {
            "parameters": sum(parameter.numel() for parameter in parameters),
            "weights": bytes_in([*parameters, *self.model.buffers()]),
            "gradients": bytes_in(gradients),
            "optimizer": bytes_in(state_tensors(inner)),
        }


def _joined(task: Task, place: Place) -> None:
    backend = "nccl" if place.device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, store=place.store, rank=place.rank, world_size=task.processes, timeout=_PATIENCE
    )


def _left(place: Place) -> None:
    if place.device.type == "cuda":
        torch.cuda.synchronize()
    dist.destroy_process_group()


def in_shards(made: Any, group: Any = None) -> Any:
    """The same optimizer, with its state shared out over processes: ZeroRedundancyOptimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    known = inspect.signature(type(made).__init__).parameters
    options = {name: value for name, value in made.defaults.items() if name in known}
    parameters = [parameter for each in made.param_groups for parameter in each["params"]]
    make: Any = ZeroRedundancyOptimizer
    return make(parameters, type(made), process_group=group, parameters_as_bucket_view=True, **options)


def ddp(task: Task, place: Place) -> Row:
    """DistributedDataParallel, and the whole state or shards of it."""
    _joined(task, place)
    watch, loop = Watch(task, place.device), TorchLoop(task, place)
    made = loop.program.optimizer(list(loop.model.parameters()))
    loop.optimizer = in_shards(made) if task.shares_out else made
    devices = [0] if place.device.type == "cuda" else None
    loop.model = torch.nn.parallel.DistributedDataParallel(
        loop.model, device_ids=devices, gradient_as_bucket_view=True
    )
    row = watch.train(loop.step, loop.rest)
    del loop
    _left(place)
    return row


def fsdp(task: Task, place: Place) -> Row:
    """FSDP2: weights, gradients and state in shards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    _joined(task, place)
    watch, loop = Watch(task, place.device), TorchLoop(task, place)
    shard: Any = fully_shard
    mesh = init_device_mesh(place.device.type, (task.processes,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    count = sum(parameter.numel() for parameter in loop.model.parameters())
    for layer in loop.model:
        shard(layer, mesh=mesh, mp_policy=policy)
    shard(loop.model, mesh=mesh, mp_policy=policy)
    loop.optimizer = loop.program.optimizer(list(loop.model.parameters()))
    row = {**watch.train(loop.step, loop.rest), "parameters": count}
    del loop
    _left(place)
    return row


def pipelining(task: Task, place: Place) -> Row:
    """A schedule of torch.distributed.pipelining, with gradients summed over pipelines."""
    assert task.schedule is not None
    _joined(task, place)
    torch.set_num_threads(1)
    pipeline, stage = divmod(place.rank, STAGES)
    own = [dist.new_group([p * STAGES + s for s in range(STAGES)]) for p in range(PIPELINES)][pipeline]
    peers = [dist.new_group([p * STAGES + s for p in range(PIPELINES)]) for s in range(STAGES)][stage]
    where = (pipeline, stage, own, peers, task.program, place.device.type)
    shared = {"shared": in_shards} if task.shares_out else {}
    rounds, losses = one_schedule(task.schedule, *where, **shared)
    _left(place)
    highest = torch.cuda.max_memory_allocated() if place.device.type == "cuda" else 0
    return {"rounds": rounds, "losses": losses, "highest": highest}


METHODS: dict[str, Callable[[Task, Place], Row]] = {
    "ours": ours,
    "planned": planned,
    "ddp": ddp,
    "fsdp": fsdp,
    "pipelining": pipelining,
}
