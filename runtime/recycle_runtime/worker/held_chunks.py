"""The chunks of one worker process, one or several, as what the process has: between two steps they stand
where the least of them stands."""

from collections.abc import Callable, Iterator, Mapping

import torch

from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.execution.chunk import Chunk, Setting
from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.optimizer import StepRecord
from recycle_runtime.execution.optimizer.undo import option_groups
from recycle_runtime.experts.shared import most_experts
from recycle_runtime.program.loading import Program
from recycle_runtime.protocol.messages.generations import HeldState, LayerExperts, LayerShards, Sums


class HeldChunks(Mapping[int, Chunk]):
    """By number, in the order of the model; at least one."""

    def __init__(self, chunks: Mapping[int, Chunk]) -> None:
        self._chunks = dict(chunks)
        self._first = next(iter(self._chunks.values()))
        by_rank = zip(*(chunk.beside for chunk in self._chunks.values()), strict=True)
        self.beside = tuple(HeldChunks(dict(zip(self._chunks, row, strict=True))) for row in by_rank)
        """The same as further ranks have them, for which this process stands too."""

    def __getitem__(self, number: int) -> Chunk:
        return self._chunks[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._chunks)

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def of_ranks(self) -> "tuple[HeldChunks, ...]":
        """These, and those of every further rank for which this process stands."""
        return (self, *self.beside)

    @property
    def all(self) -> list[Chunk]:
        """Of all ranks for which this process stands."""
        return [chunk for held in self.of_ranks for chunk in held.values()]

    @property
    def fewer_ranks(self) -> tuple[int, ...] | None:
        """With how many ranks a worker could go on that has lost some; None as long as that is not known."""
        if not self.program.ranks:
            return ()
        tensor = self._first.tensor
        fewer = tuple(each for each in self.program.ranks if each < tensor and tensor % each == 0)
        if not fewer or any(chunk.why_all_ranks for chunk in self.values()):
            return ()
        return fewer if all(chunk.gives_alike for chunk in self.values()) else None

    @property
    def experts(self) -> tuple[LayerExperts, ...]:
        """Of each layer with experts that peers share."""
        is_layered = self.program.is_layered
        return tuple(
            LayerExperts(layer.number if is_layered else None, most)
            for layer in self.layers
            if (most := most_experts(layer.computing))
        )

    @property
    def kind(self) -> type[Chunk]:
        """Of all of them."""
        return type(self._first)

    @property
    def setting(self) -> Setting:
        return self._first.setting

    @property
    def program(self) -> Program:
        return self.setting.program

    @property
    def cut(self) -> tuple[int, ...]:
        return self._first.cut

    @property
    def data(self) -> MicroBatches:
        """All chunks of a process draw from the same."""
        return self._first.data

    @property
    def layers(self) -> list[Layer]:
        return [layer for chunk in self.values() for layer in chunk.layers]

    @property
    def last(self) -> Chunk | None:
        """The last one of the model, where losses are computed, if it is here."""
        return next((chunk for chunk in self.values() if chunk.is_last), None)

    @property
    def state_bytes(self) -> int:
        return sum(chunk.state_bytes for chunk in self.values())

    @property
    def is_fresh(self) -> bool:
        """As built from the seed, and no part of any run yet."""
        return any(chunk.is_fresh for chunk in self.values())

    @property
    def is_part_of_run(self) -> bool:
        """False for those of a worker that waits to join."""
        return all(chunk.is_part_of_run for chunk in self.values())

    @property
    def applied(self) -> int:
        """Steps that the parameters of all of them have seen."""
        return min(chunk.applied for chunk in self.values())

    @property
    def record(self) -> StepRecord | None:
        """Outcome of the last settled step; the same for all chunks."""
        return self._first.stepper.record

    @property
    def corrections(self) -> int:
        """Number of steps that a late validation has corrected; the same for all workers in the same step."""
        return self._first.stepper.progress.redone

    def outlook(self) -> StepRecord | None:
        """Outcome that the last step will have when all workers have made it; the same for all chunks."""
        return self._first.stepper.outlook()

    @property
    def rate(self) -> float | None:
        """The learning rate of the first group of the last one's optimizer, as it is now."""
        groups = option_groups(list(self.values())[-1].stepper.optimizer)
        rate = groups[0].get("lr") if groups else None
        return None if rate is None else float(rate)

    @property
    def stepper_state(self) -> dict[str, int]:
        """State of a stepper after a settled step; the same for all chunks."""
        return self._first.stepper.state_dict()

    def expect_state(self) -> None:
        """That of another is on its way here."""
        for chunk in self.all:
            chunk.expect_state()

    def stand(self, step: int, sums: Sums | None) -> None:
        """Go back to where `step` begins, with the verdict on the step before it."""
        for chunk in self.all:
            chunk.stand(step, sums)

    def know(self, sums: Sums | None) -> None:
        """Keep the verdict on the last step."""
        for chunk in self.all:
            chunk.know(sums)

    def watch(self, settled: Callable[[], None]) -> None:
        """Called when the last step of all of them stands and nothing of the next one has been used."""
        # All are settled before the first is told so.
        self._first.on_settled = settled

    @property
    def are_shared_out(self) -> bool:
        """True once no shard of optimizer state is on its way to an owner any more."""
        return all(chunk.is_shared_out for chunk in self.values())

    def report(self) -> HeldState:
        """State that this process can offer when the survivors agree on a step to continue from."""
        reports = [chunk.report() for chunk in self.values()]
        if any(report.applied is None for report in reports):
            return HeldState(None, is_fresh=False)
        # A chunk that is ahead goes back, so what counts is the verdict that those behind wait for.
        behind = [report for report in reports if report.applied == self.applied]
        open_sums = [report.unsettled for report in behind if report.unsettled is not None]
        if not open_sums:
            can_go_forward = all(report.can_go_forward for report in behind)
            return behind[0]._replace(can_go_forward=can_go_forward, shards=self.shards)
        squares = sum(sums.squares for sums in open_sums)
        unsettled = Sums(squares, sum(sums.not_finite for sums in open_sums))
        return behind[0]._replace(unsettled=unsettled, shards=self.shards)

    @property
    def shards(self) -> tuple[LayerShards, ...]:
        """Of optimizer state: those that are here."""
        return tuple(each for chunk in self.values() for each in chunk.shards)

    @property
    def shard_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Bytes of each of them."""
        layers = {layer.number: layer for layer in self.layers}
        return tuple(tuple(map(layers[each.layer].shard_bytes, each.held)) for each in self.shards)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Of their modules; where several are whole stages, each name begins with the number of its chunk."""
        states = {number: chunk.module_state() for number, chunk in self.items()}
        return {self._named(number, name): state[name] for number, state in states.items() for name in state}

    @property
    def residents(self) -> dict[str, list[int]]:
        """By the names of stacked parameters of experts: which these are, where not all of them are here."""
        return {
            self._named(number, layer.parameter_names[each.number]): list(each.experts.resident or ())
            for number, chunk in self.items()
            for layer in chunk.layers
            for each in layer.experts.stacked.values()
        }

    def _named(self, number: int, name: str) -> str:
        return name if self.program.is_layered or len(self) == 1 else f"{number}.{name}"
