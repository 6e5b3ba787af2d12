"""Engine of a worker process, for training and for meeting others: torch, behind one interface.

A simulated world has another engine: arithmetic, and a network of its own.
"""

import gc
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from recycle_runtime.execution.chunk import Chunk, Setting, build_chunks
from recycle_runtime.execution.evaluation import EvaluationData
from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.op_times import OpTimes
from recycle_runtime.execution.session import Role, Session, StepReport
from recycle_runtime.execution.steps import OwnersLacking
from recycle_runtime.execution.tracing import Tracer
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.program.loading import Program
from recycle_runtime.protocol.address import address_now
from recycle_runtime.protocol.channel import PROVED_WITHIN
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.messages.checkpoints import CheckpointReply
from recycle_runtime.protocol.messages.steps import ChunkGradients, NotFinite
from recycle_runtime.protocol.near import AGENT_SECONDS
from recycle_runtime.protocol.remote_store import RemoteStore
from recycle_runtime.protocol.surroundings import ChannelLine, Line, Surroundings
from recycle_runtime.state.ownership import ownership_of
from recycle_runtime.transport.choose import connect
from recycle_runtime.transport.guarded import GuardedTransport, Waits
from recycle_runtime.transport.peer_proof import prover
from recycle_runtime.transport.sockets import Ends, keep, look, not_after_fork
from recycle_runtime.worker.connections import GroupConnections
from recycle_runtime.worker.held_chunks import HeldChunks
from recycle_runtime.worker.layer_transfer import built_layers
from recycle_runtime.worker.options import ProcessOptions
from recycle_runtime.worker.saved_state import save_state
from recycle_runtime.worker.state_transfer import Pair, StatePair


class MeetingPlace(Protocol):
    """A connection of its own to the coordinator's store, where the workers of a group find each other."""

    async def set(self, key: str, value: str) -> None: ...

    async def get(self, key: str) -> bytes:
        """As soon as it is there."""
        ...

    def renew(self) -> bool:
        """True if the next group can meet here too: nobody waits for an answer any more."""
        ...


class GroupResources(Protocol):
    """Resources of a group: see `connections.GroupConnections`."""

    def opening(self) -> AbstractContextManager[None]: ...
    def opens_more(self) -> None: ...
    def use(self, transport: Any) -> None: ...
    def break_off(self) -> None: ...
    def close(self) -> None: ...
    def opened(self) -> dict[int, int]: ...


class Counts(NamedTuple):
    """Inputs that a worker has loaded for a step, and choices of experts: see `messages.steps.StepDone`."""

    samples: int
    tokens: int
    choices: int = 0
    dropped: int = 0


class Building(NamedTuple):
    """Setting in which chunks are built."""

    seed: int
    per_step: int
    """Micro-batches of a step."""
    group: Any
    """Of the worker's tensor-parallel ranks."""
    shards: int
    """Of each layer's optimizer state, where it is in shards."""


class TrainingSession(Protocol):
    """Steps, with the chunks of one worker in one group."""

    @property
    def loads(self) -> list[int]:
        """The micro-batches of a step that this worker loads."""
        ...

    @property
    def loss(self) -> float | None:
        """Share of this worker in the loss of the step so far; None where losses are not computed."""
        ...

    @property
    def counts(self) -> Counts: ...

    def not_finite(self, step: int) -> tuple[NotFinite, ...]: ...

    def gradients(self, step: int) -> tuple[ChunkGradients, ...]:
        """Parameters that gradients of this step, which is the last one, have reached, by chunk."""
        ...

    async def agree(
        self, on_change: Callable[[OwnersLacking | None], None], go_on: Callable[[], None]
    ) -> None:
        """Before the first step: who owns which shards of optimizer state, and all have the weights."""
        ...

    async def run(self, step: int, ends_at: int | None) -> StepReport:
        """One step; nothing is drawn ahead for steps from `ends_at` on."""
        ...

    async def evaluate(self, data: EvaluationData, before: Callable[[int], None]) -> float | None: ...

    async def settle(self) -> None:
        """Nothing of the last step is open any more."""
        ...

    async def arrive(self) -> None:
        """Weights of others that are on their way are here."""
        ...

    def take_back_broken(self) -> None:
        """The group was aborted: no step counts that was made with what an abort has left."""
        ...

    def close(self) -> None:
        """Leave the group; what was under way is dropped."""
        ...

    def drop(self) -> None:
        """Drop the work under way, but not the group."""
        ...


class Writer(Protocol):
    """Puts shards of a checkpoint on disk, beside training: see `checkpoint.writer.BackgroundWriter`."""

    def prepare(self, chunks: Any) -> None: ...
    def write(self, chunks: Any, step: int, name: str) -> None: ...


class Engine(Protocol):
    """Of one worker process."""

    @property
    def device(self) -> torch.device: ...

    @property
    def tracer(self) -> Tracer | None: ...

    def resumed(self) -> None:
        """A wait for other workers is over."""
        ...

    def take_times(self) -> dict[str, float]:
        """Seconds of the ops since the last time."""
        ...

    def on_new_thread(self) -> None:
        """Another thread goes on with the work."""
        ...

    def let_go(self) -> None:
        """Nothing refers to the group that was left any more."""
        ...

    def read_bundle(self, path: str) -> Bundle: ...

    def build(self, program: Program, bundle: Bundle, stage: int, built: Building) -> HeldChunks:
        """The chunks of a stage, as built from the seed."""
        ...

    def layers(self, setting: Setting, first: int, last: int) -> list[Layer]:
        """Layers first .. last - 1, as built from the seed."""
        ...

    async def connect(self) -> Line:
        """To the coordinator."""
        ...

    async def meeting_place(self) -> MeetingPlace: ...

    def connections(self) -> GroupResources: ...

    async def meet(self, store: MeetingPlace, number: int, role: Role) -> Any:
        """The transport of a group, when all are there."""
        ...

    def guarded(self, transport: Any, waits: Waits) -> Any:
        """The same, with errors that blame others."""
        ...

    def session(
        self,
        role: Role,
        chunks: Mapping[int, Chunk],
        transport: Any,
        store: MeetingPlace,
        number: int,
        before: Callable[[int], None],
    ) -> TrainingSession: ...

    async def pair(self, store: MeetingPlace, name: str, rank: int) -> StatePair:
        """Two processes that meet under a name, 0 to send and 1 to receive."""
        ...

    def look(self, sockets: dict[int, int]) -> Ends:
        """Hosts that do not answer."""
        ...

    def writer(self, folder: Any, say: Callable[[CheckpointReply], None]) -> Writer: ...

    def restore(self, chunk: Chunk, checkpoint: Any, step: int) -> list[str]:
        """Become what the checkpoint holds, and say what should be known; CheckpointError when it does not
        fit."""
        ...

    async def save(self, folder: Path, worker: Worker, chunks: HeldChunks) -> None:
        """Write parameters to the folder of `--save`; OSError if that cannot be done."""
        ...


@dataclass(frozen=True, slots=True)
class TorchEngine:
    """The real one."""

    options: ProcessOptions
    tp_rank: int
    surroundings: Surroundings
    device: torch.device
    op_times: OpTimes
    tracer: Tracer | None

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self.options.timeout)

    def resumed(self) -> None:
        self.op_times.resume()

    def take_times(self) -> dict[str, float]:
        return self.op_times.take()

    def on_new_thread(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def let_go(self) -> None:
        # Groups go when nothing refers to them, and others wait for that.
        gc.collect()

    def read_bundle(self, path: str) -> Bundle:
        return Bundle.read(path)

    def build(self, program: Program, bundle: Bundle, stage: int, built: Building) -> HeldChunks:
        return HeldChunks(
            build_chunks(
                program,
                bundle,
                stage,
                built.seed,
                self.device,
                tp_rank=self.tp_rank,
                ranks=bundle.tensor // (self.options.ranks or bundle.tensor),
                group=built.group,
                per_step=built.per_step,
                graphs=self.options.graphs,
                undo=self.options.undo,
                shards=built.shards,
            )
        )

    def layers(self, setting: Setting, first: int, last: int) -> list[Layer]:
        return built_layers(setting, first, last)

    async def connect(self) -> Line:
        return await connect_to_coordinator(self.options, self.surroundings)

    async def meeting_place(self) -> MeetingPlace:
        line = await coordinator_line(self.options, self.surroundings, PROVED_WITHIN)
        assert isinstance(line, ChannelLine)
        not_after_fork(line.fileno())
        return _Store(RemoteStore(line.channel))

    def connections(self) -> GroupResources:
        return GroupConnections()

    async def meet(self, store: MeetingPlace, number: int, role: Role) -> Any:
        own = _of_group(store, number)
        standstill = self.options.heartbeat_timeout
        place = (role.grid, role.worker, self.tp_rank, role.stream, self.device)
        return connect(own, *place, self.timeout, standstill, prover(self.options.token, number))

    def guarded(self, transport: Any, waits: Waits) -> GuardedTransport:
        return GuardedTransport(transport, waits)

    def session(
        self,
        role: Role,
        chunks: Mapping[int, Chunk],
        transport: Any,
        store: MeetingPlace,
        number: int,
        before: Callable[[int], None],
    ) -> TrainingSession:
        own = _of_group(store, number)
        return _Session(
            Session(
                role,
                chunks,
                transport,
                own,
                self.device,
                self.tracer,
                before,
                self.op_times,
                ownership_of(role, chunks, transport),
            )
        )

    async def pair(self, store: MeetingPlace, name: str, rank: int) -> StatePair:
        assert isinstance(store, _Store)
        return Pair(store.inner, name, rank, self.timeout, self.options.token)

    def look(self, sockets: dict[int, int]) -> Ends:
        return look(sockets, self.options.port)

    def writer(self, folder: Any, say: Callable[[CheckpointReply], None]) -> Writer:
        # Only workers that write checkpoints load what that takes.
        from recycle_runtime.checkpoint.writer import BackgroundWriter

        return BackgroundWriter(folder, say)

    def restore(self, chunk: Chunk, checkpoint: Any, step: int) -> list[str]:
        from recycle_runtime.checkpoint.writer import restore

        return restore(chunk, checkpoint, step, accepts_changes=self.options.accepts_changes)

    async def save(self, folder: Path, worker: Worker, chunks: HeldChunks) -> None:
        for held in chunks.of_ranks:
            save_state(folder, worker, held.setting.tp_rank, self.options, held)


async def connect_to_coordinator(options: ProcessOptions, surroundings: Surroundings) -> Line:
    """The line of a worker process, which belongs to no group."""
    line = await coordinator_line(options, surroundings, AGENT_SECONDS)
    keep(line.fileno())
    return line


async def coordinator_line(options: ProcessOptions, surroundings: Surroundings, seconds: float) -> Line:
    """Through the agent, where it passes on what is said and answers in time; else, and when it is gone, a
    connection of its own, which stays until it ends."""
    if options.relay_name:
        with suppress(WireError):
            return await surroundings.connect_near(options.relay_name, options.token, seconds)
    return await surroundings.connect(*address_now(options), options.token)


def _of_group(store: MeetingPlace, number: int) -> Any:
    assert isinstance(store, _Store)
    return store.of_group(number)


class _Store:
    """A store of torch, as coroutines use it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self._own: dict[int, Any] = {}

    def of_group(self, number: int) -> Any:
        """The part of it that belongs to a generation."""
        return self._own.setdefault(number, dist.PrefixStore(f"g{number}", self.inner))

    async def set(self, key: str, value: str) -> None:
        self.inner.set(key, value)

    async def get(self, key: str) -> bytes:
        return self.inner.get(key)

    def renew(self) -> bool:
        self._own.clear()
        return self.inner.renew()


class _Session:
    """The same for steps."""

    def __init__(self, inner: Session) -> None:
        self._inner = inner

    @property
    def loads(self) -> list[int]:
        return self._inner.loads

    @property
    def loss(self) -> float | None:
        return self._inner.handlers.loss

    @property
    def counts(self) -> Counts:
        handlers = self._inner.handlers
        return Counts(handlers.samples, handlers.tokens, *handlers.choices)

    def not_finite(self, step: int) -> tuple[NotFinite, ...]:
        return self._inner.handlers.finiteness.found(step)

    def gradients(self, step: int) -> tuple[ChunkGradients, ...]:
        return self._inner.gradients(step)

    async def agree(
        self, on_change: Callable[[OwnersLacking | None], None], go_on: Callable[[], None]
    ) -> None:
        self._inner.agree(on_change, go_on)

    async def run(self, step: int, ends_at: int | None) -> StepReport:
        self._inner.data.ends_at = ends_at
        return self._inner.run(step)

    async def evaluate(self, data: EvaluationData, before: Callable[[int], None]) -> float | None:
        return self._inner.evaluate(data, before)

    async def settle(self) -> None:
        self._inner.settle()

    async def arrive(self) -> None:
        self._inner.steps.arrive()

    def take_back_broken(self) -> None:
        self._inner.take_back_broken()

    def close(self) -> None:
        self._inner.close()

    def drop(self) -> None:
        self._inner.drop()
