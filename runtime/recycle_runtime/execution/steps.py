"""Reduction, optimizer and validation as a stream asks for them, in one group of workers.

REDUCE and OPTIMIZER stand once for every chunk of a worker, VALIDATE once for the worker: the norm is one
number of the whole model, so a worker adds up what its chunks have before all workers add up what they have.
A step that waits for the norm is made when the last of the worker's chunks is to be stepped.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.execution.optimizer import StartSum, StepPhase, Verdict
from recycle_runtime.transport.interface import Pending, Transport

_BETWEEN_STEPS = (StepPhase.ACCUMULATING, StepPhase.UNSETTLED)


class OwnersLacking(NamedTuple):
    """See `messages.steps.ShardOwners`."""

    chunk: int
    shards: int
    owners: int
    lacking: int
    seconds: float


class Owners(Protocol):
    """Of the shards of a chunk's optimizer state: see `state.ownership`."""

    on_change: Callable[[OwnersLacking | None], None] | None
    """Called when other shards are held here than before; also when owners are missing, and when they are not
    any more."""

    go_on: Callable[[], None]
    """Raises an error if the group is to be left: called before anything is made of what has come."""

    def agree(self) -> None:
        """Agree on owners of shards when a generation begins."""
        ...

    def gather(self) -> None:
        """Weights begin to go from owners to all peers."""
        ...

    def stepped(self) -> None:
        """A step is made: the same, to where the next one wants them."""
        ...

    def arrive(self) -> bool:
        """Wait for all weights that are on their way."""
        ...

    def when_here(self, call: Callable[[], None]) -> None:
        """Call once they are here."""
        ...

    def drop(self) -> None:
        """Let go of them."""
        ...

    @property
    def is_complete(self) -> bool:
        """True if all shards are where they should be."""
        ...

    def settled(self) -> None:
        """The last step stands, and nothing of the next one has been used."""
        ...


class _Together(NamedTuple):
    """Several things that were started."""

    started: Sequence[Pending]

    def wait(self) -> None:
        for each in self.started:
            each.wait()


class WorkerSteps:
    """The steps of all chunks of a worker."""

    def __init__(
        self,
        chunks: Mapping[int, Chunk],
        transport: Transport,
        answers_for: Mapping[int, bool],
        tied_sum: int | None = None,
        *,
        has_peers: bool = True,
        ownership: Mapping[int, Owners] | None = None,
        sums: int = 0,
    ) -> None:
        """`answers_for` says of each chunk whether this worker adds its gradients to the norm, `tied_sum` is
        the number of the sum over the holders of all tied chunks, `has_peers` whether any worker of the group
        sums gradients with others, `ownership` of each chunk who owns its shards, where there are any. There
        are so many `sums` for each rank that this process stands for (`Grid.sum_groups`)."""
        self._chunks, self._transport, self._tied_sum = chunks, transport, tied_sum
        self._has_peers, self._ownership = has_peers, ownership or {}
        self._due: list[int] = []
        """Chunks that wait for the norm before they are stepped."""
        self._gathers: list[int] = []
        """Those of them whose weights are wanted by their peers after that."""
        self._is_settled = False
        """The last step was found to stand before the first REDUCE of this one."""
        self._sums = sums
        self._steppers = [each.stepper for chunk in chunks.values() for each in chunk.of_ranks]
        for number, chunk in chunks.items():
            for each in chunk.of_ranks:
                each.stepper.norm.first_peer = answers_for[number]

    def agree(
        self,
        on_change: Callable[[OwnersLacking | None], None] | None = None,
        go_on: Callable[[], None] | None = None,
    ) -> None:
        """Agree on owners of shards once the group has formed, so that all have the same weights."""
        for ownership in self._ownership.values():
            ownership.on_change, ownership.go_on = on_change, go_on or ownership.go_on
            ownership.agree()

    def begin_sums(self, chunk: int, complete: Sequence[Any]) -> None:
        """Before REDUCE, start sums of gradients of a chunk that are complete: a mark of device work for each
        of its first buckets. Nothing is started where the last step has to be made again, or where shards
        are on their way: workers wait for each other then, and other work of theirs may wait for this one."""
        if not complete or not self._has_peers:
            return
        if not all(ownership.is_complete for ownership in self._ownership.values()):
            return
        if not all(stepper.will_stand for stepper in self._steppers):
            return
        if not self._is_settled and all(stepper.phase in _BETWEEN_STEPS for stepper in self._steppers):
            self._settle()
            self._is_settled = True
        self._start_counts(chunk)
        start = partial(self._transport.start_peer_sums, chunk)
        self._chunks[chunk].stepper.begin_sums(start, complete)

    def reduce(self, chunk: int) -> bool:
        """Sum the gradients of a chunk over its holders; False if the last step was made again, and this one
        must be too."""
        is_first_of_step = all(stepper.phase in _BETWEEN_STEPS for stepper in self._steppers)
        is_settled, self._is_settled = self._is_settled, False
        if is_first_of_step and not is_settled and not self._settle():
            for stepper in self._steppers:
                stepper.discard()
            return False
        start, held = self._transport.start_peer_sum, self._chunks[chunk]
        sums = partial(self._transport.start_peer_sums, chunk) if self._ownership else None
        self._start_counts(chunk)
        # Before gradients are there, with which the step may be made without this group.
        for each in held.step_counts:
            each.finish()
        for rank, each in enumerate(held.of_ranks):
            more = rank * self._sums
            tied = None if self._tied_sum is None else partial(start, self._tied_sum + more)
            each.stepper.reduce(partial(start, chunk + more), tied, sums)
        return True

    def _start_counts(self, chunk: int) -> None:
        """Sums of what forwards have counted come before those of gradients: peers must begin all sums of a
        chunk in the same order, however many gradients are summed before REDUCE here."""
        held, start = self._chunks[chunk], partial(self._start_for_all, chunk)
        for each in held.step_counts:
            each.start(start)
        for each in held.of_ranks:
            each.stepper.expect_sums()

    def _start_for_all(self, chunk: int, tensor: torch.Tensor) -> Pending:
        """The same sum for every rank that this process stands for; all of them get the same."""
        started: list[Pending | None] = []
        for rank in range(len(self._chunks[chunk].of_ranks)):
            own = tensor.clone() if rank else tensor
            started.append(self._transport.start_peer_sum(chunk + rank * self._sums, own))
        return _Together([each for each in started if each is not None])

    @property
    def meets_all(self) -> bool:
        """True if all workers wait for the norm before anybody steps, and for nothing else before that: then
        a barrier would be a second wait for the same. Waits of peers count as work of a reduction, so their
        barrier stays."""
        options = (stepper.options for stepper in self._steppers)
        return not self._has_peers and all(each.validate and not each.staggered for each in options)

    def step(self, chunk: int) -> None:
        """At once, or with those of the worker's other chunks when the norm has to be known first."""
        if not self._chunks[chunk].stepper.waits_for_norm:
            for each in self._chunks[chunk].of_ranks:
                each.stepper.step(self._transport.start_sum)
            return
        self._due.append(chunk)
        if len(self._due) < len(self._chunks):
            return
        self._due.clear()
        together = self._sum_of_chunks()
        for stepper in self._steppers:
            stepper.start_norm(together)
        totals = [stepper.norm.wait() for stepper in self._steppers]
        for stepper, known in zip(self._steppers, totals, strict=True):
            stepper.step(together, known)
        while self._gathers:
            self._ownership[self._gathers.pop(0)].stepped()

    def gather(self, chunk: int) -> None:
        """Send weights from the owners of their shards to all peers, once the chunk is stepped."""
        if chunk in self._due:
            self._gathers.append(chunk)
        else:
            self._ownership[chunk].stepped()

    def when_here(self, chunk: int, call: Callable[[], None]) -> None:
        """Once the weights of a chunk have come from the owners of their shards."""
        self._ownership[chunk].when_here(call)

    def arrive(self) -> None:
        """Weights that are on their way are here before anything that is done from now on."""
        for ownership in self._ownership.values():
            ownership.arrive()

    def validate(self) -> None:
        together = self._sum_of_chunks()
        for stepper in self._steppers:
            stepper.validate(together)

    def finish(self) -> None:
        """At a boundary: the last step stands, or is made again."""
        self._settle()

    def take_back_broken(self) -> None:
        """The group was aborted: a step that was made with a sum which was cut off has never been made."""
        broken = self._transport.broken_sums
        for number, chunk in self._chunks.items():
            for rank, each in enumerate(chunk.of_ranks):
                sums = {number + rank * self._sums}
                if self._tied_sum is not None and each.stepper.gradients.tied_buffers:
                    sums.add(self._tied_sum + rank * self._sums)
                if sums & broken and not each.stepper.take_back():
                    each.is_whole = False

    def drop(self) -> None:
        """Let go of sums under way: they would keep the group alive, and the group would wait for them."""
        for ownership in self._ownership.values():
            ownership.drop()
        self._due.clear()
        self._gathers.clear()
        for chunk in self._chunks.values():
            for each in chunk.step_counts:
                each.sum.drop()
        for stepper in self._steppers:
            stepper.norm.drop()
            stepper.drop_sums()

    def _settle(self) -> bool:
        """True if the last step stands as it was made; all chunks of all workers see the same norm."""
        self.arrive()
        stands = all([stepper.settle() is not Verdict.REDO for stepper in self._steppers])
        for ownership in self._ownership.values():
            if not stands:
                ownership.gather()
                ownership.arrive()
            ownership.settled()
        for chunk in self._chunks.values():
            chunk.settled()
        return stands

    def _sum_of_chunks(self) -> StartSum:
        steppers = len(self._steppers)
        if steppers == 1:
            return self._transport.start_sum
        return _SumOfChunks(steppers, self._transport.start_sum).add


class _SumOfChunks:
    """One sum over all workers of what each chunk of this worker adds to it; all chunks get the whole."""

    def __init__(self, chunks: int, start_sum: StartSum) -> None:
        self._missing, self._start_sum = chunks, start_sum
        self._total: torch.Tensor | None = None
        self._pending: Pending | None = None

    def add(self, tensor: torch.Tensor) -> Pending:
        """Of one chunk; the sum over all workers starts with the last of them."""
        self._total = tensor.clone() if self._total is None else self._total.add_(tensor)
        self._missing -= 1
        if self._missing == 0:
            self._pending = self._start_sum(self._total)
        return _ShareOfSum(self, tensor)

    def wait(self) -> torch.Tensor:
        assert self._total is not None and self._missing == 0, "a chunk has not added its share"
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
        return self._total


class _ShareOfSum:
    """Pending sum of one chunk: it waits for the sum over all chunks."""

    def __init__(self, whole: _SumOfChunks, tensor: torch.Tensor) -> None:
        self._whole, self._tensor = whole, tensor

    def wait(self) -> None:
        self._tensor.copy_(self._whole.wait())
