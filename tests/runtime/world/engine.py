"""Sessions of simulated worker processes, and their meetings with others: numbers, and wires."""

import json
import random
import zlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from recycle_runtime.checkpoint.manifest import SHARD_FILE, SHARD_KIND, TENSORS_FILE, Manifest, write_sealed
from recycle_runtime.checkpoint.soundness import check_shard
from recycle_runtime.execution.chunk import Chunk, Setting, chunks_of
from recycle_runtime.execution.interpreter import RunAgain, StreamError
from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.optimizer import StepPhase
from recycle_runtime.execution.session import Role, StepReport
from recycle_runtime.execution.steps import WorkerSteps
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import NONE, Instruction, Opcode
from recycle_runtime.plan.worker_ids import Worker, numbered_worker
from recycle_runtime.program.loading import Program
from recycle_runtime.protocol.channel import PROVED_WITHIN
from recycle_runtime.protocol.messages.checkpoints import (
    CheckpointFailed,
    CheckpointMissed,
    CheckpointReply,
    CheckpointWritten,
)
from recycle_runtime.protocol.messages.steps import ChunkGradients, NotFinite
from recycle_runtime.protocol.messages.store import StoreGet, StoreOpen, StoreRefusal, StoreSet, StoreValue
from recycle_runtime.protocol.near import AGENT_SECONDS
from recycle_runtime.protocol.remote_store import StoreError
from recycle_runtime.protocol.surroundings import Line
from recycle_runtime.state.names import CheckpointError, layer_shard_name
from recycle_runtime.transport.guarded import Waits
from recycle_runtime.transport.sockets import Ends
from recycle_runtime.worker.engine import Building, Counts, MeetingPlace, coordinator_line
from recycle_runtime.worker.held_chunks import HeldChunks
from recycle_runtime.worker.options import ProcessOptions
from recycle_runtime.worker.state_transfer import StatePair
from tests.runtime.world.arithmetic import (
    NumberChunk,
    NumberData,
    NumberLayer,
    Reference,
    backward,
    data_of,
    forward,
    loss_of,
    weight_gradient,
)
from tests.runtime.world.group import (
    GroupConnections,
    GroupTransport,
    Listener,
    PeerSum,
    Ports,
    SimulatedPair,
    Wire,
)
from tests.runtime.world.loop import Pending
from tests.runtime.world.processes import SimulatedProcess
from tests.runtime.world.standing import Queued, StandingTransport, StandingWire

_CPU = torch.device("cpu")
_OP_SECONDS = 0.004
_BETWEEN_STEPS = (StepPhase.ACCUMULATING, StepPhase.UNSETTLED)


class Job(NamedTuple):
    """Facts that all workers of a world have in common."""

    bundle: Bundle
    path: str
    reference: Reference
    ports: Ports
    note_wrong: Callable[[str], None]
    """Called when a state is not as it must be."""
    tell: Callable[[str], None]
    """Adds a line to the story."""
    standing: bool
    """True if calls stand until they are aborted: see `standing`."""
    chance: random.Random
    """For what aborts leave behind."""


class SimulatedStore:
    """A connection to the coordinator's store."""

    def __init__(self, line: Line) -> None:
        self._line = line
        line.send(StoreOpen())

    async def set(self, key: str, value: str) -> None:
        self._line.send(StoreSet(key, value))

    async def get(self, key: str) -> bytes:
        self._line.send(StoreGet(key))
        answer = await self._line.receive()
        if isinstance(answer, StoreRefusal):
            raise StoreError(answer.why)
        assert isinstance(answer, StoreValue)
        return answer.value.encode()

    def renew(self) -> bool:
        # It is closed when its group is left.
        return False

    def close(self) -> None:
        self._line.close()


class NumberEngine:
    """Instead of `worker.engine.TorchEngine`."""

    device = _CPU
    tracer = None

    def __init__(
        self, process: SimulatedProcess, job: Job, tp_rank: int = 0, options: ProcessOptions | None = None
    ) -> None:
        self._process, self._job, self._rank, self._options = process, job, tp_rank, options
        self._connections = GroupConnections()
        self.session_now: NumberSession | None = None

    def resumed(self) -> None: ...

    def take_times(self) -> dict[str, float]:
        return {}

    def on_new_thread(self) -> None: ...

    def let_go(self) -> None: ...

    def read_bundle(self, path: str) -> Bundle:
        return self._job.bundle

    def build(self, program: Program, bundle: Bundle, stage: int, built: Building) -> HeldChunks:
        setting = Setting(program, built.seed, _CPU, self._rank, built.group)
        data = NumberData()
        made: dict[int, Chunk] = {}
        first = 0
        for number, layers in enumerate(bundle.cut):
            if number in chunks_of(bundle, stage):
                here = [NumberLayer(layer, self._rank) for layer in range(first, first + layers)]
                made[number] = NumberChunk(setting, bundle, number, here, data)
            first += layers
        return HeldChunks(made)

    def layers(self, setting: Setting, first: int, last: int) -> list[Layer]:
        return cast("list[Layer]", [NumberLayer(number, self._rank) for number in range(first, last)])

    async def connect(self, seconds: float = AGENT_SECONDS) -> Line:
        if self._options is None:
            return await self._process.connect("", 0, self._process.token)
        return await coordinator_line(self._options, self._process, seconds)

    async def meeting_place(self) -> MeetingPlace:
        store = SimulatedStore(await self.connect(PROVED_WITHIN))
        self._connections.use(store.close)
        return store

    def connections(self) -> GroupConnections:
        self._connections = GroupConnections()
        return self._connections

    async def meet(self, store: MeetingPlace, number: int, role: Role) -> GroupTransport:
        process, grid, connections = self._process, role.grid, self._connections
        port, listener = self._job.ports.listen(process, process.node)
        connections.add(listener)
        mine = grid.rank(role.worker, self._rank)
        await store.set(f"g{number}/all/{mine}", str(port))
        wires: dict[Worker, Wire] = {}
        ranks: dict[int, Wire] = {}
        far: list[Wire] = []
        for place in range(grid.size):
            if place == mine:
                continue
            told = int(await store.get(f"g{number}/all/{place}"))
            wire = await self._wire(listener, told, place, mine)
            worker, rank = grid.workers[place // grid.tensor], place % grid.tensor
            if worker == role.worker:
                # A collective of the user's program: whoever waits there is always told.
                ranks[rank] = wire
                continue
            wire.is_forgetful = process.is_forgetful
            if rank == self._rank:
                wires[worker] = wire
            else:
                far.append(wire)
        if not self._job.standing:
            return GroupTransport(grid, role.worker, wires, ranks, far)
        transport = StandingTransport(grid, role.worker, wires, ranks, far, self._job.chance)
        # Before the meeting is over: an order to leave calls it off.
        connections.use(transport)
        await transport.join()
        return transport

    async def _wire(self, listener: Listener, place: int, rank: int, mine: int) -> Wire:
        """Of two processes the one with the lower rank connects."""
        process = self._process
        if mine < rank:
            make = partial(StandingWire, self._job.chance) if self._job.standing else Wire
            return await self._job.ports.connect(process, process.node, place, mine, make)
        if rank not in listener.connected:
            if not listener.is_open:
                raise RuntimeError("the group is broken off")
            waiting = listener.waits[rank] = Pending()
            await waiting
        return listener.connected[rank]

    def guarded(self, transport: GroupTransport, waits: Waits) -> GroupTransport:
        transport.waits = waits
        return transport

    def session(
        self,
        role: Role,
        chunks: Mapping[int, Chunk],
        transport: GroupTransport,
        store: MeetingPlace,
        number: int,
        before: Callable[[int], None],
    ) -> "NumberSession":
        kind = self.session_kind()
        self.session_now = kind(self._process, self._job, role, chunks, transport, before)
        return self.session_now

    def session_kind(self) -> "type[NumberSession]":
        return NumberSession

    async def pair(self, store: MeetingPlace, name: str, rank: int) -> StatePair:
        process = self._process
        if rank == 1:
            port, listener = self._job.ports.listen(process, process.node)
            self._connections.add(listener)
            waiting = listener.waits["donor"] = Pending()
            await store.set(f"{name}/port", str(port))
            await waiting
            return SimulatedPair(listener.connected["donor"])
        place = int(await store.get(f"{name}/port"))
        wire = await self._job.ports.connect(process, process.node, place, "donor")
        self._connections.use(wire.close)
        return SimulatedPair(wire)

    def look(self, sockets: dict[int, int]) -> Ends:
        return self._process.ends()

    def writer(self, folder: Path, say: Callable[[CheckpointReply], None]) -> "NumberWriter":
        return NumberWriter(self._process, folder, say)

    def restore(self, chunk: Chunk, checkpoint: Path, step: int) -> list[str]:
        manifest = Manifest.read(checkpoint)
        if manifest.step != step:
            raise CheckpointError(f"{checkpoint}: of step {manifest.step}, not {step}")
        for layer in chunk.layers:
            folder = checkpoint / layer_shard_name(layer.number, self._rank)
            check_shard(folder, manifest.shards[folder.name])
            fields = json.loads((folder / TENSORS_FILE).read_text())
            layer.load(fields)
            chunk.stepper.load_state_dict(fields["stepper"])
        chunk.is_whole, chunk.is_fresh = True, False
        return []

    @staticmethod
    def value_of(layer: Any) -> Any:
        """Value of a layer, as `Reference.state` has it."""
        return layer.state()["value"]

    async def save(self, folder: Path, worker: Worker, chunks: HeldChunks) -> None:
        node = self._process.node
        await self._process.sleep(20 * node.disk_seconds)
        if node.is_disk_full:
            raise OSError(28, "No space left on device")
        values = {layer.number: self.value_of(layer) for layer in chunks.layers}
        name = f"worker-{worker[0]}-{worker[1]}-{self._rank}.json"
        (folder / name).write_text(json.dumps({"rank": self._rank, "values": values}))


class NumberWriter:
    """Instead of `checkpoint.writer.BackgroundWriter`: copies at once, and writes when the disk has time."""

    def __init__(
        self, process: SimulatedProcess, folder: Path, say: Callable[[CheckpointReply], None]
    ) -> None:
        self._process, self._folder, self._say = process, folder, say
        self._is_busy = False

    def prepare(self, chunks: Collection[Chunk]) -> None: ...

    def write(self, chunks: Collection[Chunk], step: int, name: str) -> None:
        if any(chunk.applied != step for chunk in chunks) or self._is_busy:
            self._say(CheckpointMissed(name))
            return
        texts = self.texts(chunks)
        self._is_busy = True
        self._process.start_thread(lambda: self._write(texts, name))

    def texts(self, chunks: Collection[Chunk]) -> dict[str, str]:
        """Numbers that are written, by the names of shards of a checkpoint."""
        return {
            layer_shard_name(layer.number, chunk.tp_rank): json.dumps(
                {**layer.state(), "stepper": chunk.stepper.state_dict()}
            )
            for chunk in chunks
            for layer in chunk.layers
        }

    async def _write(self, texts: dict[str, str], name: str) -> None:
        written: dict[str, int] = {}
        node = self._process.node
        for shard, text in texts.items():
            await self._process.sleep(node.disk_seconds)
            folder = self._folder / name / shard
            try:
                if node.is_disk_full:
                    raise OSError(28, "No space left on device")
                written[shard] = _write_shard(folder, text)
            except OSError as error:
                self._is_busy = False
                self._say(CheckpointFailed(name, str(error)))
                return
        self._is_busy = False
        self._say(CheckpointWritten(name, written, 0))


def _write_shard(folder: Path, text: str) -> int:
    """As the real one writes it; its checksum."""
    folder.mkdir()
    (folder / TENSORS_FILE).write_text(text)
    tensors = {"state": {"offset": 0, "size": len(text), "crc32": zlib.crc32(text.encode())}}
    return write_sealed(folder / SHARD_FILE, SHARD_KIND, {"tensors": tensors})


class _Held:
    """A micro-batch in a buffer."""

    __slots__ = ("gradient", "inputs", "output", "values", "work")

    def __init__(self) -> None:
        self.inputs: list[int] = []
        self.output = 0
        self.gradient = 0
        self.work: list[int] = []
        self.values: list[int] = []
        """Of the layers that it passes, summed over ranks."""


class _Sums:
    """The transport as `WorkerSteps` uses it: by the time it asks, everything has arrived."""

    def __init__(self, transport: GroupTransport) -> None:
        self._transport = transport
        self.peers = PeerSum()

    @property
    def broken_sums(self) -> frozenset[int]:
        return self._transport.broken_sums

    def start_sum(self, own: Any) -> Any:
        return self._transport.start_sum(own)

    def start_peer_sum(self, chunk: int, gradients: Any) -> None:
        self.peers.start(gradients)


class NumberSession:
    """Instead of `execution.session.Session`: runs the real stream of a plan, on numbers."""

    def __init__(
        self,
        process: SimulatedProcess,
        job: Job,
        role: Role,
        chunks: Mapping[int, Chunk],
        transport: GroupTransport,
        before: Callable[[int], None],
    ) -> None:
        self._process, self._job, self._role, self._chunks = process, job, role, chunks
        self._transport, self._before = transport, before
        self._position: int | None = None
        """The instruction under way."""
        if isinstance(transport, StandingTransport):
            transport.queued = self._queued
        self.loads: list[int] = []
        self.counts = Counts(0, 0)
        self._step = 0
        self._ranks = role.grid.tensor
        self._rank = next(iter(chunks.values())).tp_rank
        self._loss = 0.0
        self._has_loss = any(chunk.is_last for chunk in chunks.values())
        self._buffers: dict[int, _Held] = {}
        self._inboxes: dict[int, Any] = {}
        self._sums = _Sums(transport)
        answers_for = {number: role.grid.holders(number)[0] == role.worker for number in chunks}
        sums: Any = self._sums
        self._steps = WorkerSteps(chunks, sums, answers_for, role.grid.tied_sum)
        self._handlers: dict[Opcode, Callable[[Instruction], Any]] = {
            opcode: getattr(self, f"_{opcode.name.lower()}") for opcode in Opcode
        }

    @property
    def is_midway(self) -> bool:
        """True in the middle of a stream: weights of a step that counts as made may be on their way."""
        return self._position is not None

    @property
    def loss(self) -> float | None:
        return self._loss if self._has_loss else None

    def not_finite(self, step: int) -> tuple[NotFinite, ...]:
        return ()

    def gradients(self, step: int) -> tuple[ChunkGradients, ...]:
        return tuple(
            ChunkGradients(number, len(chunk.layers), 0, (), gives_back=True)
            for number, chunk in self._chunks.items()
        )

    async def run(self, step: int, ends_at: int | None) -> StepReport:
        began, repeated = self._process.now(), 0
        self._step = step
        while True:
            self.drop()
            try:
                await self._stream()
            except RunAgain:
                repeated += 1
                continue
            return StepReport(step, self.loss, self._process.now() - began, repeated)

    async def _stream(self) -> None:
        position, transport = 0, self._transport
        try:
            for position, instruction in enumerate(self._role.stream):
                self._position = position
                if transport.queued_left:
                    transport.queued_left -= 1
                else:
                    self._before(position)
                under_way = self._handlers[instruction.opcode](instruction)
                if under_way is not None:
                    await under_way
        except RunAgain:
            raise
        except Exception as cause:
            raise StreamError(f"instruction {position} of step {self._step}: {cause}") from cause
        finally:
            self._position = None

    def _queued(self, most: int) -> Queued:
        """The next instructions, up to one at which the host waits: for other workers, or for the loss that
        is told before gradients are summed."""
        count, sums = 0, set[int]()
        position = len(self._role.stream) if self._position is None else self._position + 1
        for instruction in self._role.stream[position : position + most]:
            if instruction.opcode is Opcode.REDUCE:
                if self._has_loss or not self._can_reduce(instruction.chunk):
                    break
                sums.add(instruction.chunk)
            count += 1
            if instruction.opcode in (Opcode.BARRIER, Opcode.VALIDATE):
                break
        return Queued(count, frozenset(sums))

    def _can_reduce(self, chunk: int) -> bool:
        """True if the verdict on the last step is known, and lets it stand."""
        stepper: Any = self._chunks[chunk].stepper
        if stepper.phase is not StepPhase.UNSETTLED:
            return True
        under_way = stepper.norm.under_way
        return under_way.is_whole and stepper.options.accepts(under_way.total())

    async def agree(self, on_change: Any, go_on: Any) -> None:
        """Every worker has the whole of its optimizer state."""

    async def evaluate(self, data: Any, before: Callable[[int], None]) -> float | None:
        raise AssertionError("a world has no scripts, and nobody else asks for an evaluation")

    async def arrive(self) -> None:
        """Weights are nowhere but here."""

    async def settle(self) -> None:
        await self._norm_arrives()
        self._steps.finish()
        self._check()

    def close(self) -> None:
        self.drop()
        self._steps.drop()
        self._transport.close()

    def take_back_broken(self) -> None:
        made = {number: chunk.applied for number, chunk in self._chunks.items()}
        self._steps.take_back_broken()
        for number, chunk in self._chunks.items():
            if chunk.applied < made[number]:
                self._job.tell(f"{self._process.name} takes back step {chunk.applied}")

    def drop(self) -> None:
        self._buffers.clear()
        self._inboxes.clear()
        self._loss = 0.0

    # Instructions.

    def _load(self, instruction: Instruction) -> None: ...

    def _recv_activation(self, instruction: Instruction) -> None:
        self._inboxes[instruction.inbox] = self._transport.receive(self._neighbour(instruction))

    _recv_gradient = _recv_activation

    async def _forward(self, instruction: Instruction) -> None:
        held = self._buffers[instruction.buffer] = _Held()
        if instruction.inbox != NONE:
            value = await self._transport.arrived(self._inboxes.pop(instruction.inbox))
        else:
            value = data_of(self._step, self._index(instruction))
        await self._round(instruction)
        values = held.values = self._weights(instruction.chunk)
        if self._ranks > 1:
            values = held.values = await self._sum_over_ranks(values)
        for weight in values:
            held.inputs.append(value)
            value = forward(weight, value)
        held.output = value
        if self._chunks[instruction.chunk].is_last:
            self._loss += loss_of(value)

    def _send_activation(self, instruction: Instruction) -> None:
        self._send(instruction, self._buffers[instruction.buffer].output)

    def _send_gradient(self, instruction: Instruction) -> None:
        self._send(instruction, self._buffers[instruction.buffer].gradient)

    def _send(self, instruction: Instruction, value: int) -> None:
        self._transport.send(self._neighbour(instruction), value)

    async def _backward_input(self, instruction: Instruction) -> None:
        held = self._buffers[instruction.buffer]
        gradient = 1
        if instruction.inbox != NONE:
            gradient = await self._transport.arrived(self._inboxes.pop(instruction.inbox))
        await self._round(instruction)
        values = held.values
        if self._ranks > 1:
            values = await self._sum_over_ranks(self._weights(instruction.chunk))
        held.work = [0] * len(values)
        for place in reversed(range(len(values))):
            held.work[place] = weight_gradient(held.inputs[place], gradient, self._rank)
            gradient = backward(values[place], gradient)
        held.gradient = gradient

    async def _sum_over_ranks(self, own: list[int]) -> list[int]:
        """Sum over this worker's ranks of each layer."""
        return [sum(column) for column in zip(*await self._transport.gather(own), strict=True)]

    async def _backward_weight(self, instruction: Instruction) -> None:
        await self._compute()
        self._add(instruction)

    async def _backward(self, instruction: Instruction) -> None:
        await self._backward_input(instruction)
        self._add(instruction)

    def _round(self, instruction: Instruction) -> Awaitable[None]:
        """Compute, with all other holders of the chunk where they share experts."""
        return self._meet(instruction) if self._role.bundle.slots else self._compute()

    async def _meet(self, instruction: Instruction) -> None:
        await self._transport.peer_sums(instruction.chunk, ())
        await self._compute()

    _serve_forward = _serve_backward = _serve_backward_input = _round

    async def _serve_backward_weight(self, _: Instruction) -> None:
        await self._compute()

    def _add(self, instruction: Instruction) -> None:
        work = self._buffers[instruction.buffer].work
        is_skipped = self._step in self._job.reference.skipped and self._index(instruction) == 0
        for layer, gradient in zip(self._layers(instruction.chunk), work, strict=True):
            self._add_gradient(layer, float("inf") if is_skipped else gradient)

    def _value(self, layer: Any) -> Any:
        return layer.weight.value

    def _weights(self, chunk: int) -> list[int]:
        """Work of each layer on a micro-batch."""
        return [layer.weight.value for layer in self._layers(chunk)]

    def _add_gradient(self, layer: Any, gradient: float) -> None:
        layer.weight.sum = (layer.weight.sum or 0) + gradient

    async def _barrier(self, _: Instruction) -> None:
        await self._transport.barrier()

    async def _reduce(self, instruction: Instruction) -> None:
        chunk = instruction.chunk
        gradients: Any = self._chunks[chunk].stepper.gradients
        await self._norm_arrives()
        if self._can_reduce(chunk):
            # Else the step is run again, and nobody sums anything.
            self._sums.peers.shares = await self._transport.peer_sums(chunk, gradients.sums)
        is_made = self._steps.reduce(chunk)
        self._check()
        if not is_made:
            raise RunAgain

    async def _optimizer(self, instruction: Instruction) -> None:
        stepper: Any = self._chunks[instruction.chunk].stepper
        await self._compute()
        if not stepper.waits_for_norm:
            self._steps.step(instruction.chunk)
            return
        assert len(self._chunks) == 1
        stepper.start_norm(self._sums.start_sum)
        await stepper.norm.under_way.arrive()
        stepper.step(self._sums.start_sum, stepper.norm.wait())
        self._check()

    def _gather(self, instruction: Instruction) -> None:
        self._steps.gather(instruction.chunk)

    def _validate(self, _: Instruction) -> None:
        self._steps.validate()

    async def _norm_arrives(self) -> None:
        for chunk in self._chunks.values():
            norm: Any = chunk.stepper.norm
            if chunk.stepper.phase is StepPhase.UNSETTLED and norm.under_way is not None:
                await norm.under_way.arrive()

    def _compute(self) -> Pending:
        process = self._process
        return process.loop.sleep(process, _OP_SECONDS * process.node.slowness)

    def _layers(self, chunk: int) -> Any:
        return self._chunks[chunk].layers

    def _neighbour(self, instruction: Instruction) -> Worker:
        return numbered_worker(instruction.neighbour, self._role.bundle.pipelines)

    def _index(self, instruction: Instruction) -> int:
        return instruction.pipeline * self._role.bundle.microbatches + instruction.microbatch

    def _check(self) -> None:
        """The last step is settled: the state is that of a plain loop after as many steps."""
        for chunk in self._chunks.values():
            if not chunk.is_part_of_run or chunk.stepper.phase not in _BETWEEN_STEPS:
                continue
            expected = self._job.reference.state(chunk.applied, self._rank)
            for layer in self._layers(chunk.number):
                if self._value(layer) != expected[layer.number]:
                    self._job.note_wrong(
                        f"{self._process.name}: layer {layer.number} is {self._value(layer)} after "
                        f"{chunk.applied} steps, and {expected[layer.number]} in a plain loop"
                    )
