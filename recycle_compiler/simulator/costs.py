"""Durations: the times of a job, or others that were measured, with jitter or without."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log1p, sqrt

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import Column
from recycle_compiler.simulator.streams import SERVICE, WORK, EngineStreams
from recycle_runtime.plan.isa import Opcode
from recycle_runtime.plan.overlap import StreamOp, overlapped

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SimulatedCosts:
    """In ticks, one value for each chunk."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    backward_input: tuple[float, ...]
    backward_weight: tuple[float, ...]
    reduce: tuple[float, ...]
    optimizer: tuple[float, ...]
    gather: tuple[float, ...]
    transfer: tuple[float, ...]
    """From each chunk to the next and back; one fewer than there are chunks."""
    exchange: tuple[float, ...] = ()
    """Part of a round in which W are computed; none where peers share no experts, or it is not known."""

    def measured(self, times: Mapping[tuple[Opcode, int], float]) -> "SimulatedCosts":
        """These costs but for what was measured: ticks by opcode and chunk."""
        values = {name: list(getattr(self, name)) for name in {opcode.name.lower() for opcode, _ in times}}
        for (opcode, chunk), ticks in times.items():
            values[opcode.name.lower()][chunk] = ticks
        return replace(self, **{name: tuple(row) for name, row in values.items()})


def costs_of(job: JobSpec) -> SimulatedCosts:
    """The times of the job itself; a coupled backward is both of its halves."""
    whole = tuple(map(sum, zip(job.backward_input, job.backward_weight, strict=True)))
    return SimulatedCosts(
        job.forward,
        whole,
        job.backward_input,
        job.backward_weight,
        job.reduce,
        job.optimizer,
        job.gather,
        job.transfer,
        job.exchange_left,
    )


def durations(streams: EngineStreams, costs: SimulatedCosts, slow: Mapping[Worker, float]) -> Floats:
    """Of every row. A slow worker takes so many times longer to compute; sums over peers are not its work."""
    table = np.zeros((max(Opcode) + 1, len(costs.forward)))
    table[Opcode.FORWARD] = costs.forward
    table[Opcode.BACKWARD] = costs.backward
    table[Opcode.BACKWARD_INPUT] = costs.backward_input
    table[Opcode.BACKWARD_WEIGHT] = costs.backward_weight
    table[list(SERVICE)] = table[list(WORK)]
    table[Opcode.REDUCE] = costs.reduce
    table[Opcode.OPTIMIZER] = costs.optimizer
    table[Opcode.GATHER] = costs.gather
    worker = streams.worker
    # What has no chunk takes no time.
    found = table[streams.opcode, streams.chunk]
    if slow:
        factor = np.array([slow.get(each, 1.0) for each in streams.workers])
        found = np.where(streams.is_any((Opcode.REDUCE, Opcode.GATHER)), found, found * factor[worker])
    return found - _overlapped(streams, costs, found) if any(costs.exchange) else found


def _overlapped(streams: EngineStreams, costs: SimulatedCosts, whole: Floats) -> Floats:
    """Of every row what is computed while rounds exchange tokens."""
    hidden = np.zeros(len(streams))
    is_weight = streams.is_any((Opcode.BACKWARD_WEIGHT, Opcode.SERVE_BACKWARD_WEIGHT))
    ticks = np.where(is_weight, whole, np.array(costs.exchange)[streams.chunk])
    computes = streams.is_any((*WORK, *SERVICE))
    for first, last in pairwise(streams.offsets.tolist()):
        rows = first + np.flatnonzero(computes[first:last])
        columns = (streams.buffer[rows], is_weight[rows], ticks[rows])
        hidden[rows] = overlapped(map(StreamOp, *(column.tolist() for column in columns)))
    return hidden


def in_ticks(times: Floats) -> Column:
    """Whole ticks, the nearest ones."""
    return np.rint(times).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Jitter:
    """Lognormal factors with mean 1. Workers that sum gradients together take the same time for it."""

    variation: float
    """Standard deviation over mean, by chance, of every op for itself; 0 is none at all."""
    seed: int = 0
    by_microbatch: float = 0.0
    """The same of all ops of a micro-batch together."""

    def __post_init__(self) -> None:
        for variation in (self.variation, self.by_microbatch):
            if not 0 <= variation < float("inf"):
                raise ValueError(f"the variation must be at least 0 and finite, got {variation}")
        if self.seed < 0:
            raise ValueError(f"the seed must be at least 0, got {self.seed}")

    def factors(self, iteration: int, count: int) -> Floats:
        """One for each of so many rows, in one iteration."""
        return _lognormal(self.variation, np.random.default_rng((self.seed, iteration)), count)

    def of_microbatches(self, iteration: int, microbatch: Column) -> Floats:
        """One for each row, by the number of its micro-batch; 1 for those without, whose number is -1."""
        random = np.random.default_rng((self.seed, iteration, _OF_MICROBATCHES))
        factors = _lognormal(self.by_microbatch, random, int(microbatch.max(initial=-1)) + 1)
        # The last entry is that of number -1.
        return np.append(factors, 1.0)[microbatch]

    @property
    def is_none(self) -> bool:
        return self.variation == 0 and self.by_microbatch == 0


_OF_MICROBATCHES = 1
"""Keeps their random numbers apart from those of ops."""


def _lognormal(variation: float, random: np.random.Generator, count: int) -> Floats:
    if variation == 0:
        return np.ones(count)
    spread = log1p(variation**2)
    return random.lognormal(-spread / 2, sqrt(spread), count)


def jitter_of(job: JobSpec, seed: int = 0, chance: float | None = None) -> Jitter:
    """As the job says how its op times vary; `chance` in place of what it says of single ops."""
    by_chance = job.jitter_ppm / 1e6 if chance is None else chance
    return Jitter(by_chance, seed, job.spread_ppm / 1e6)
