"""Jobs whose optimizer state is in shards: the real layers, optimizers and owners, on a few numbers each.

A layer is a short tensor of whole numbers in float64, so every sum is exact. Its optimizer has a state of
its own: whoever steps a number with anything but what its owners have kept ends with other numbers. The code
of production waits for other workers by blocking. Here it runs beside its coroutine (`blocking`), which waits
in its place.
"""

import math
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from greenlet import getcurrent, greenlet

from recycle_runtime.checkpoint.manifest import TENSORS_FILE, Manifest
from recycle_runtime.checkpoint.soundness import check_shard
from recycle_runtime.execution.chunk import Chunk, Setting, chunks_of
from recycle_runtime.execution.interpreter import RunAgain
from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.optimizer import StepPhase, Totals
from recycle_runtime.execution.optimizer.shards import stored_shard
from recycle_runtime.execution.session import Role
from recycle_runtime.execution.steps import WorkerSteps
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Instruction
from recycle_runtime.program.layers import layers_of
from recycle_runtime.program.loading import Program
from recycle_runtime.protocol.messages.checkpoints import CheckpointReply
from recycle_runtime.state import ownership
from recycle_runtime.state.image import packed, read_image
from recycle_runtime.state.layer_state import SHARDS, Clones, apply_states, needed, written_copies
from recycle_runtime.state.names import CheckpointError, optimizers_of
from recycle_runtime.state.ownership import Ownership, ShardCopy
from recycle_runtime.transport.interface import PeerSum
from recycle_runtime.worker.engine import Building
from recycle_runtime.worker.held_chunks import HeldChunks
from tests.runtime.world.arithmetic import (
    NumberData,
    Reference,
    first_value,
)
from tests.runtime.world.engine import Job, NumberEngine, NumberSession, NumberWriter
from tests.runtime.world.group import GroupSum, GroupTransport
from tests.runtime.world.processes import SimulatedProcess
from tests.runtime.world.standing import StandingTransport

_MODULUS = 1009
_COPY_BYTES = 128 << 20
"""Of every shard, for all that is said: two of them are copied between two steps."""
_CPU = torch.device("cpu")
_Result = TypeVar("_Result")


async def blocking(call: Callable[[], _Result]) -> _Result:
    """Run code that waits for others with `wait_here`."""
    fiber = greenlet(call)
    told: Any = fiber.switch()
    while not fiber.dead:
        try:
            value = await told
        except BaseException as error:
            told = fiber.throw(error)
        else:
            told = fiber.switch(value)
    return told


def wait_here(work: Awaitable[_Result]) -> _Result:
    """Within `blocking`."""
    parent = getcurrent().parent
    assert parent is not None
    return parent.switch(work)


# Numbers.


def numbers_in(layer: int, shards: int) -> int:
    """Some have fewer than there are shards, some more."""
    return max(1, shards - 1 + layer % 3)


def first_numbers(layer: int, rank: int, shards: int) -> list[int]:
    """Of a layer that has not been trained."""
    return [first_value(layer, rank) + 11 * place for place in range(numbers_in(layer, shards))]


def stepped(kept: int, gradient: int) -> int:
    """State of a number after a step, which the optimizer subtracts from it."""
    return (3 * kept + gradient) % _MODULUS


class KeepingOptimizer(torch.optim.Optimizer):
    """Steps every number by itself, with what it has kept of the steps before."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        super().__init__(parameters, {"lr": 1.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                kept = state.setdefault("kept", torch.zeros_like(parameter))
                kept.mul_(3).add_(parameter.grad).remainder_(_MODULUS)
                parameter.sub_(kept)


class ShardedReference(Reference):
    """The plain loop, with the optimizer's state in one piece."""

    def __init__(self, layers: int, per_step: int, skipped: frozenset[int], ranks: int, shards: int) -> None:
        self._per_step, self.skipped, self.ranks = per_step, skipped, ranks
        first = [[first_numbers(layer, rank, shards) for layer in range(layers)] for rank in range(ranks)]
        self._numbers = [first]
        """Before each step: by rank and layer."""
        self._kept = [[[[0] * len(numbers) for numbers in own] for own in first]]
        self._losses: list[float] = []

    def state(self, step: int, rank: int = 0) -> tuple[Any, ...]:
        self._go_to(step)
        return tuple(self._numbers[step][rank])

    def kept(self, step: int, rank: int = 0) -> list[list[int]]:
        """State of the optimizer of each layer before this step."""
        self._go_to(step)
        return self._kept[step][rank]

    def _go_to(self, step: int) -> None:
        while len(self._numbers) <= step:
            self._make_step()

    def _make_step(self) -> None:
        step, ranks, kept = len(self._numbers) - 1, self._numbers[-1], self._kept[-1]
        values = [sum(map(sum, column)) for column in zip(*ranks, strict=True)]
        sums, loss = self._gradients(step, values)
        if step not in self.skipped:
            count = self._per_step
            kept = [
                [
                    [stepped(one, total + count * place) for place, one in enumerate(layer)]
                    for layer, total in zip(own, totals, strict=True)
                ]
                for own, totals in zip(kept, sums, strict=True)
            ]
            ranks = [
                [
                    [number - change for number, change in zip(*pair, strict=True)]
                    for pair in zip(own, changes, strict=True)
                ]
                for own, changes in zip(ranks, kept, strict=True)
            ]
        self._numbers.append(ranks)
        self._kept.append(kept)
        self._losses.append(float(loss))


def _whole(tensor: torch.Tensor) -> list[int]:
    """A step with a gradient that is not finite leaves no numbers; it is undone, or never made."""
    numbers = cast("list[float]", tensor.tolist())  # pyright: ignore[reportUnknownMemberType]
    return [int(each) if math.isfinite(each) else -1 for each in numbers]


# Workers.


class NumbersModule(torch.nn.Module):
    """A layer."""

    def __init__(self, layer: int, rank: int, shards: int) -> None:
        super().__init__()
        first = torch.tensor(first_numbers(layer, rank, shards), dtype=torch.float64)
        self.weight = torch.nn.Parameter(first)
        # Ranks have numbers of their own.
        cast(Any, self.weight).tensor_parallel = True


class ShardedWriter(NumberWriter):
    """Numbers that owners write, each byte once."""

    def texts(self, chunks: Collection[Chunk]) -> dict[str, str]:
        return {
            state.name: bytes(packed(state.name, [state]).numpy()).hex()
            for state in written_copies(chunks, Clones())
        }


class ShardedEngine(NumberEngine):
    """Instead of `worker.engine.TorchEngine`, with real layers."""

    def build(self, program: Program, bundle: Bundle, stage: int, built: Building) -> HeldChunks:
        setting = Setting(program, built.seed, _CPU, self._rank, built.group, shards=built.shards)
        data: Any = NumberData()
        ranges = layers_of(bundle.cut)
        made = {
            number: Chunk(
                setting, bundle, number, self.layers(setting, ranges[number].start, ranges[number].stop), data
            )
            for number in chunks_of(bundle, stage)
        }
        return HeldChunks(made)

    def layers(self, setting: Setting, first: int, last: int) -> list[Layer]:
        return [
            setting.layer(number, f"layers.{number}", NumbersModule(number, self._rank, setting.shards))
            for number in range(first, last)
        ]

    @staticmethod
    def value_of(layer: Any) -> Any:
        return _whole(layer.parameters[0].detach())

    def session_kind(self) -> "type[ShardedSession]":
        return ShardedSession

    def writer(self, folder: Path, say: Callable[[CheckpointReply], None]) -> ShardedWriter:
        return ShardedWriter(self._process, folder, say)

    def restore(self, chunk: Chunk, checkpoint: Path, step: int) -> list[str]:
        manifest = Manifest.read(checkpoint)
        if manifest.step != step:
            raise CheckpointError(f"{checkpoint}: of step {manifest.step}, not {step}")

        def read(name: str) -> Any:
            folder = checkpoint / name
            check_shard(folder, manifest.shards[name])
            data = bytearray.fromhex((folder / TENSORS_FILE).read_text())
            image = read_image(torch.frombuffer(data, dtype=torch.uint8))
            assert image is not None
            return image.state(name)

        states = {name: read(name) for name in needed(chunk, step)}
        for name in states:
            states[name][SHARDS] = [stored_shard(read(each)) for each in optimizers_of(name, manifest.shards)]
        apply_states(chunk, states, checkpoint)
        return []


class _HostName:
    """Stands for the module `socket` until it is asked once."""

    def __init__(self, name: str) -> None:
        self._name = name

    def gethostname(self) -> str:
        ownership.socket = socket
        return self._name


class WorldOwnership(Ownership):
    """The real one, on a simulated node; it never holds more than plans count with."""

    host = ""
    note_wrong: Callable[[str], None]
    _began_with = 0

    def agree(self) -> None:
        cast(Any, ownership).socket = _HostName(self.host)
        super().agree()
        self._began_with = self._most_held()
        self._check_share()

    def settled(self) -> None:
        super().settled()
        self._check_share()

    def _most_held(self) -> int:
        return max((len(layer.held) for layer in self._layers), default=0)

    def _check_share(self) -> None:
        """While shards are on their way, those that leave this worker are still here."""
        found = self._most_held()
        owned = max(sum(peer in owners for owners in self._wanted) for peer in range(self._peers))
        able = len({peer for owners in self._wanted for peer in owners})
        shards = len(self._wanted)
        most = min(shards, -(-self._owners * shards // max(1, able)))
        bound = max(most, self._began_with) if self._copies else most
        if owned > most or found > bound:
            self.note_wrong(f"{found} of {shards} shards are held, and {most} are a worker's part")

    def _bytes_of(self, copy: ShardCopy) -> int:
        return _COPY_BYTES


class CheckedSteps(WorkerSteps):
    """Says when the last step stands."""

    on_settled: Callable[[], None]

    def _settle(self) -> bool:
        stands = super()._settle()
        self.on_settled()
        return stands


class TensorSums:
    """The transport as `WorkerSteps` and owners use it."""

    def __init__(self, group: GroupTransport) -> None:
        self._group = group

    @property
    def broken_sums(self) -> frozenset[int]:
        return self._group.broken_sums

    def start_sum(self, tensor: torch.Tensor) -> "NormArrival":
        squares, not_finite = cast("list[float]", tensor.tolist())  # pyright: ignore[reportUnknownMemberType]
        return NormArrival(self._group.start_sum(Totals(squares, not_finite)), tensor)

    def start_peer_sum(self, chunk: int, tensor: torch.Tensor) -> "Arrivals | None":
        return self.start_peer_sums(chunk, [PeerSum(tensor)])

    def start_peer_sums(
        self, chunk: int, sums: Sequence[PeerSum], *, goes_on: bool = False, after: Any = None
    ) -> "Arrivals | None":
        holders = self._group.grid.holders(chunk)
        me = holders.index(self._group.worker)
        shares: list[list[torch.Tensor | None]] = [
            [
                each.tensor.clone() if _is_among(me, each.sources) and _is_among(peer, each.takers) else None
                for each in sums
            ]
            for peer in range(len(holders))
        ]
        key = self._group.start_shares(
            chunk, [None if peer == me else own for peer, own in enumerate(shares)]
        )
        return Arrivals(self._group, chunk, key, sums, me, shares[me])


class NormArrival:
    """A sum over all workers."""

    def __init__(self, under_way: GroupSum, tensor: torch.Tensor) -> None:
        self._sum, self._tensor = under_way, tensor

    def wait(self) -> None:
        wait_here(self._sum.arrive())
        self._tensor.copy_(torch.tensor(self._sum.total(), dtype=self._tensor.dtype))


class Arrivals:
    """Sums among the holders of a chunk; what is no business of this worker is spoiled."""

    def __init__(
        self,
        group: GroupTransport,
        chunk: int,
        key: Any,
        sums: Sequence[PeerSum],
        me: int,
        own: Sequence[torch.Tensor | None],
    ) -> None:
        self._group, self._chunk, self._key, self._sums, self._me, self._own = (
            group,
            chunk,
            key,
            sums,
            me,
            own,
        )
        self._is_over = False

    def wait(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        peers = len(self._group.grid.holders(self._chunk))
        wanted = {
            peer
            for each in self._sums
            if _is_among(self._me, each.takers)
            for peer in each.sources or range(peers)
            if peer != self._me
        }
        are_sums = any(not each.is_copy for each in self._sums)
        found = wait_here(self._group.shares(self._chunk, self._key, wanted, are_sums=are_sums))
        if found is None:
            self._spoil()
            return
        found[self._me] = self._own
        for place, each in enumerate(self._sums):
            if each.tensor.is_meta:
                continue
            shares = [found[peer][place] for peer in each.sources or range(peers) if peer in found]
            with torch.no_grad():
                if _is_among(self._me, each.takers):
                    each.tensor.copy_(reduce(torch.add, shares))
                elif each.tensor.is_floating_point():
                    each.tensor.fill_(float("nan"))

    def _spoil(self) -> None:
        """An abort has left anything in what this worker was to get."""
        assert isinstance(self._group, StandingTransport)
        for each in self._sums:
            if not each.tensor.is_meta and _is_among(self._me, each.takers):
                with torch.no_grad():
                    each.tensor.fill_(self._group.drawn() % 256)


def _is_among(peer: int, named: Sequence[int]) -> bool:
    return not named or peer in named


class ShardedSession(NumberSession):
    """Runs the real stream of a plan, with the real owners."""

    def __init__(
        self,
        process: SimulatedProcess,
        job: Job,
        role: Role,
        chunks: Mapping[int, Chunk],
        transport: GroupTransport,
        before: Callable[[int], None],
    ) -> None:
        super().__init__(process, job, role, chunks, transport, before)
        grid, sums = role.grid, cast(Any, TensorSums(transport))
        owners: dict[int, Ownership] = {}
        for number, chunk in chunks.items():
            holders, start = grid.holders(number), partial(sums.start_peer_sums, number)
            made = WorldOwnership(chunk, role.bundle.owners, holders.index(role.worker), len(holders), start)
            made.host, made.note_wrong = process.node.name, job.note_wrong
            owners[number] = made
        answers_for = {number: grid.holders(number)[0] == role.worker for number in chunks}
        steps = self._steps = CheckedSteps(
            chunks, sums, answers_for, grid.tied_sum, has_peers=grid.has_peers, ownership=owners
        )
        steps.on_settled = self._check

    @property
    def is_midway(self) -> bool:
        is_behind = not all(chunk.arrive(-1) for chunk in self._chunks.values())
        return super().is_midway or (is_behind and self._process.is_stopped)

    async def arrive(self) -> None:
        """Work that comes after them on the device waits for them, and so does a host that reads them."""
        await blocking(self._steps.arrive)

    def _can_reduce(self, chunk: int) -> bool:
        # The host reads the verdict on the last step.
        return self._chunks[chunk].stepper.phase is not StepPhase.UNSETTLED

    async def agree(self, on_change: Any, go_on: Any) -> None:
        await blocking(lambda: self._steps.agree(on_change, go_on))

    async def settle(self) -> None:
        await self.arrive()
        await blocking(self._steps.finish)

    async def _forward(self, instruction: Instruction) -> None:
        await self.arrive()
        await super()._forward(instruction)

    async def _reduce(self, instruction: Instruction) -> None:
        await self.arrive()
        if not await blocking(lambda: self._steps.reduce(instruction.chunk)):
            raise RunAgain

    async def _optimizer(self, instruction: Instruction) -> None:
        await self._compute()
        await blocking(lambda: self._steps.step(instruction.chunk))
        self._check_owned(instruction.chunk)

    async def _gather(self, instruction: Instruction) -> None:  # pyright: ignore
        await blocking(lambda: self._steps.gather(instruction.chunk))

    def _value(self, layer: Any) -> Any:
        return ShardedEngine.value_of(layer)

    def _weights(self, chunk: int) -> list[int]:
        return [sum(_whole(layer.parameters[0].detach())) for layer in self._layers(chunk)]

    def _add_gradient(self, layer: Any, gradient: float) -> None:
        parameter = layer.parameters[0]
        with torch.no_grad():
            parameter.grad.add_(torch.arange(parameter.numel(), dtype=parameter.dtype)).add_(gradient)

    def _check(self) -> None:
        if isinstance(self._transport, StandingTransport) and self._transport.is_over:
            # Weights that were on their way are gathered again in the next group.
            return
        super()._check()
        for chunk in self._chunks:
            self._check_owned(chunk)

    def _check_owned(self, number: int) -> None:
        """Rows that are stepped here, and their state; weights of others may be on their way."""
        chunk = self._chunks[number]
        if not chunk.is_part_of_run or chunk.stepper.phase is not StepPhase.ACCUMULATING:
            return
        reference = self._job.reference
        assert isinstance(reference, ShardedReference)
        numbers = reference.state(chunk.applied, self._rank)
        kept = reference.kept(chunk.applied, self._rank)
        for layer in chunk.layers:
            for shard, optimizer in layer.owned.items():
                rows = layer.shards[shard][0]
                expected = numbers[layer.number][rows.first : rows.last]
                keeps = kept[layer.number][rows.first : rows.last]
                states = list(optimizer.optimizer.state.values())
                here = _whole(rows.of(layer.parameters[0].detach()))
                found = [here, _whole(states[0]["kept"]) if states else [0] * len(keeps)]
                if found != [expected, keeps]:
                    self._job.note_wrong(
                        f"{self._process.name}: shard {shard} of layer {layer.number} is {found} after "
                        f"{chunk.applied} steps, and {[expected, keeps]} in a plain loop"
                    )
