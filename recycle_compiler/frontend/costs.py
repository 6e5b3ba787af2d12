"""Costs of a job: stage by stage, or layer by layer before it is cut into stages."""

from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, pairwise
from operator import sub
from typing import NamedTuple, Protocol

from recycle_compiler.diagnostics import Span
from recycle_compiler.ir.layers import LayerCosts
from recycle_compiler.ir.layout import ring_time

Cut = tuple[int, ...]
"""Number of layers on each stage."""


class Variation(NamedTuple):
    """Standard deviations of op times, in millionths of what they should be."""

    spread_ppm: int = 0
    """By micro-batch: all ops of one are longer or shorter together."""
    jitter_ppm: int = 0
    """By chance, of every op for itself."""


STEADY = Variation()
_NOT_PER_STAGE = ("unit", "memory_unit", "resident", "span", "gather", "state", "variation")


@dataclass(frozen=True, slots=True)
class ChunkCosts:
    """Per stage, in ticks and in bytes or thousandths of an activation, as a JobSpec has them."""

    unit: str
    memory_unit: str
    forward: tuple[int, ...]
    backward_input: tuple[int, ...]
    backward_weight: tuple[int, ...]
    optimizer: tuple[int, ...]
    reduce: tuple[int, ...]
    transfer: tuple[int, ...]
    activation: tuple[int, ...]
    kept_for_weight: tuple[int, ...]
    parameters: tuple[int, ...]
    """Bytes that a worker that moves to the stage must copy."""
    resident: tuple[int, ...]
    """Part of the capacity that is taken before the first activation."""
    span: Span = field(compare=False)
    """Span in the job that names the source of its costs."""
    gather: tuple[int, ...] = ()
    """Ticks until all workers of the stage have the new weights, where the optimizer's state is sharded."""
    state: tuple[int, ...] = ()
    """Part of the capacity that all shards take; `optimizer` is for all of them too."""
    counts: tuple[int, ...] = ()
    """Parameters on one GPU; empty where that is not known."""
    exchange: tuple[int, ...] = ()
    """Part of `forward`, and as much of `backward_input`, in which tokens go to their experts and back."""
    state_counts: tuple[int, ...] = ()
    """Parameters whose state is shared out, where workers do not have all of them."""
    expert_counts: tuple[int, ...] = ()
    """Experts of each mixture layer; empty where that is not known."""
    slot_transfer: tuple[int, ...] = ()
    """Ticks of one expert of each mixture layer to another worker; empty where that is not known."""
    variation: Variation = STEADY
    """Variation of op times, if measured."""

    def per_stage(self) -> dict[str, tuple[int, ...]]:
        """The tuples that go into a JobSpec as they are, by field name."""
        kept = (one.name for one in fields(self) if one.name not in _NOT_PER_STAGE)
        return {name: getattr(self, name) for name in kept}


class LayeredCosts(Protocol):
    """A job in layers, before it is known how they are cut."""

    @property
    def unit(self) -> str: ...

    @property
    def memory_unit(self) -> str: ...

    @property
    def costs(self) -> LayerCosts:
        """Costs of each layer; the capacity is not known yet."""
        ...

    @property
    def span(self) -> Span: ...

    @property
    def overhead(self) -> int:
        """Part of a worker's memory that is neither state nor activations."""
        ...

    def usual_cut(self, stages: int) -> Cut | None:
        """Usual cut of such a model where the job gives none; None leaves it to the costs."""
        ...

    def stage_costs(self, cut: Cut, pipelines: int) -> ChunkCosts:
        """The costs of the stages of a cut, each on so many workers."""
        ...


@dataclass(frozen=True, slots=True)
class MeasuredLayers:
    """Layers whose costs are known as numbers: those of a stage are their sum."""

    unit: str
    memory_unit: str
    measured: LayerCosts
    """As given: `reduce` is what so many workers take."""
    reduce_workers: int | None
    """Number of workers that the given `reduce` is for; None is very many."""
    span: Span = field(compare=False)
    split_ppm: int | None = None
    """Extra time of two halves of a micro-batch over the whole, in millionths, if measured."""
    owners: int = 0
    """Of each shard of the optimizer's state; 0 where it is whole."""
    overhead: int = 0
    """Part of a worker's memory that is neither state nor activations."""
    variation: Variation = STEADY
    """Variation of op times, if measured."""
    exchange: tuple[int, ...] = ()
    """Of each layer, between so many workers as the given `reduce` is for; `measured` has it in `forward` and
    `backward_input`."""

    @property
    def costs(self) -> LayerCosts:
        workers = self.reduce_workers
        if self.exchange:
            forward, back = (
                tuple(map(sub, times, self.exchange))
                for times in (self.measured.forward, self.measured.backward_input)
            )
            given = replace(self.measured, forward=forward, backward_input=back, exchange=self.exchange)
        else:
            given = self.measured
        if workers is None or workers < 2:
            return given
        # Rounded down, so that so many workers take again what was measured.
        sent = workers - 1 + max(0, min(self.owners, workers) - 1)
        whole = tuple(time * workers // sent for time in given.reduce)
        gather, exchange = (
            tuple(time * workers // (workers - 1) for time in times)
            for times in (given.gather, given.exchange)
        )
        return replace(given, reduce=whole, gather=gather, exchange=exchange)

    def usual_cut(self, stages: int) -> Cut | None:
        return None

    def stage_costs(self, cut: Cut, pipelines: int) -> ChunkCosts:
        given = self.measured
        ranges = tuple(pairwise(accumulate(cut, initial=0)))

        def summed(values: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(sum(values[first:end]) for first, end in ranges)

        if self.reduce_workers == pipelines:
            reduce, gather = summed(given.reduce), summed(given.gather)
        else:
            whole = self.costs
            reduce = tuple(ring_time(time, pipelines, self.owners) for time in summed(whole.reduce))
            gather = tuple(ring_time(time, pipelines) for time in summed(whole.gather))
        return ChunkCosts(
            unit=self.unit,
            memory_unit=self.memory_unit,
            forward=summed(given.forward),
            backward_input=summed(given.backward_input),
            backward_weight=summed(given.backward_weight),
            optimizer=summed(given.optimizer),
            reduce=reduce,
            transfer=tuple(given.transfer[end - 1] for _, end in ranges[:-1]),
            activation=summed(given.activation),
            kept_for_weight=summed(given.kept_for_weight),
            parameters=summed(given.parameters),
            resident=summed(given.resident),
            span=self.span,
            gather=gather,
            state=summed(given.state),
            counts=summed(given.counts) if any(given.counts) else (),
            exchange=summed(self.exchange) if any(self.exchange) else (),
            expert_counts=tuple(max(given.expert_counts[first:end]) for first, end in ranges)
            if any(given.expert_counts)
            else (),
            slot_transfer=summed(given.slot_transfer) if any(given.slot_transfer) else (),
        )
