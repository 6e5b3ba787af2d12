"""A model as a row of layers, for policies that cut it into other stages than the job does.

A job in layers says what each costs. Others say what whole stages cost: a stage's share is divided evenly
among its layers; what the first and the last stage cost beyond that of the others is the embedding's and the
head's, and stays with the first and the last layer. Times are in ticks, memory is in the job's own unit.

Cutting takes time and memory that grow with the square of the layers. A model of very many is cut between
blocks of neighbouring ones, each within a stage of the job, so that the job's own cut stays possible.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import ceil, inf
from typing import NamedTuple

from recycle_compiler.fleet.setting import FleetSetting
from recycle_compiler.ir.expert_messages import message_ticks
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layers import LayerCosts
from recycle_compiler.ir.layout import ring_time
from recycle_compiler.ir.sharding import shares_of
from recycle_compiler.ir.state import without_undo

_STATE_PER_COPIED = 18 / 14
"""A worker holds a gradient as well, which is never copied: 18 bytes per parameter in place of 14."""

MOST_BLOCKS = 512
"""Unless the job has more stages."""

_ROUNDING = 1e-9
"""Sums of the same layers may differ by this."""

Row = tuple[float, ...]
"""One number for each layer."""


class Pace(NamedTuple):
    """Distances between micro-batches in one pipeline, in ticks."""

    each: float
    """From one to the next, on average."""
    early: float
    """So much before that the last one of a group comes."""


@dataclass(frozen=True)
class Layers:
    """Costs of each layer."""

    forward: Row
    backward: Row
    """Both halves together."""
    finish: Row
    """Reduction and optimizer."""
    activation: Row
    state: Row
    """Weights, gradients and optimizer state; 0 where the job does not say."""
    transfer: float
    """Between any two stages: the mean of the job's."""
    capacity: float | None
    """For state and activations together, on the smallest worker, and no less than 1F1B takes on any stage of
    the job; None is unlimited."""
    microbatches_per_stage: float = inf
    """Micro-batches of a pipeline for each of its stages: a longer one gets a larger part of the batch."""

    def __len__(self) -> int:
        return len(self.forward)

    @cached_property
    def work(self) -> Row:
        """Running sums of forward and backward: work[j] - work[i] is what layers i to j - 1 take."""
        both = (f + b for f, b in zip(self.forward, self.backward, strict=True))
        return tuple(accumulate(both, initial=0.0))

    def held(self, stages: int, stage: int) -> float:
        """Activations that 1F1B holds on one of so many stages, where memory does not limit it."""
        given = self.microbatches_per_stage * stages
        return min(given if given == inf else ceil(given * (1 - _ROUNDING)), stages - stage)

    def ahead(self, cuts: tuple[int, ...]) -> list[float]:
        """Activations that 1F1B holds on each stage between these boundaries; 0 where it has no room for one.

        The first boundary is 0.
        """
        stages = len(cuts) - 1
        return [self._room(begin, end, self.held(stages, s)) for s, (begin, end) in enumerate(pairwise(cuts))]

    def _room(self, begin: int, end: int, most: float) -> float:
        """Activations of these layers that fit beside their state."""
        if self.capacity is None:
            return most
        left = self.capacity * (1 + _ROUNDING) - sum(self.state[begin:end])
        each = sum(self.activation[begin:end])
        if left < 0:
            return 0
        return min(most, left // each) if each else most

    def fits(self, cuts: tuple[int, ...]) -> bool:
        """True if every stage between these boundaries has room for an activation."""
        return min(self.ahead(cuts)) >= 1

    def is_free(self, cuts: tuple[int, ...]) -> bool:
        """True if memory does not limit 1F1B on these stages."""
        return self.ahead(cuts) == [self.held(len(cuts) - 1, stage) for stage in range(len(cuts) - 1)]

    def pace(self, cuts: tuple[int, ...]) -> Pace:
        """Of 1F1B on these stages. Where memory does not limit it, the slowest stage sets it.

        A stage that holds no more than `ahead` micro-batches takes in another when one has gone to the last
        stage and come back. That takes as long as all stages from this one on and the ways between them, and
        so micro-batches come in groups.
        """
        work, stages = self.work, len(cuts) - 1
        slowest = max(work[end] - work[begin] for begin, end in pairwise(cuts))
        found = Pace(slowest, 0.0)
        for stage, (begin, ahead) in enumerate(zip(cuts, self.ahead(cuts), strict=False)):
            if not ahead:
                return Pace(inf, 0.0)
            back = work[-1] - work[begin] + 2 * self.transfer * (stages - 1 - stage)
            if ahead < self.held(stages, stage):
                found = max(found, Pace(back / ahead, max(0.0, (ahead - 1) * (back / ahead - slowest))))
        return found


def layer_costs_of(setting: FleetSetting) -> Layers:
    """The layers of a job: those that it gives, or as they follow from its stages.

    Policies that cut them keep nothing to undo a step.
    """
    job = without_undo(setting.job)
    costs = job.layer_costs
    if costs is not None and costs.count <= MOST_BLOCKS:
        return _as_given(job, costs)
    state = tuple(amount * _STATE_PER_COPIED for amount in job.parameters)
    known = [room + held for room, held in zip(job.capacity, state, strict=True) if room is not None]
    backward = tuple(i + w for i, w in zip(job.backward_input, job.backward_weight, strict=True))
    finish = tuple(r + o for r, o in zip(job.reduce, job.optimizer, strict=True))
    layers = Layers(
        forward=_blocks(job.forward, setting.layers),
        backward=_blocks(backward, setting.layers),
        finish=_blocks(finish, setting.layers),
        activation=_blocks(job.activation, setting.layers),
        state=_blocks(state, setting.layers),
        transfer=sum(job.transfer) / len(job.transfer) if job.transfer else 0.0,
        capacity=min(known) if len(known) == job.stages else None,
        microbatches_per_stage=job.microbatches / job.stages,
    )
    if layers.capacity is None:
        return layers
    stages = zip(job.capacity, state, job.activation, strict=True)
    taken = [
        held + min(layers.held(job.stages, stage), (room or 0) // activation) * activation
        for stage, (room, held, activation) in enumerate(stages)
        if activation
    ]
    return replace(layers, capacity=max(layers.capacity, *taken, 0.0))


def _as_given(job: JobSpec, costs: LayerCosts) -> Layers:
    # Tokens and experts travel between as many workers as a stage of the job has.
    exchange = tuple(ring_time(ticks, job.pipelines) for ticks in costs.exchange)
    backward = zip(costs.backward_input, costs.backward_weight, exchange, strict=True)
    pairs = zip(costs.slot_transfer, costs.expert_counts, strict=True)
    messages = [sum(message_ticks(*pair, job.slots or 1, job.pipelines, job.owners)) for pair in pairs]
    stepped, state = costs.optimizer, costs.resident
    if job.sharding is not None:
        stepped = shares_of(costs.optimizer, job.sharding.owners, job.pipelines)
        shares = shares_of(costs.state, job.sharding.owners, job.pipelines)
        state = tuple(map(sum, zip(costs.resident, shares, strict=True)))
    gather = costs.gather or (0,) * costs.count
    finish = zip(costs.reduce, gather, stepped, messages, strict=True)
    return Layers(
        forward=tuple(map(sum, zip(costs.forward, exchange, strict=True))),
        backward=tuple(map(sum, backward)),
        finish=tuple(
            ring_time(sums + weights, job.pipelines) + step + sent for sums, weights, step, sent in finish
        ),
        activation=costs.activation,
        state=state,
        transfer=sum(costs.transfer) / len(costs.transfer) if costs.transfer else 0.0,
        capacity=costs.capacity,
        microbatches_per_stage=job.microbatches / job.stages,
    )


def _blocks(stages: tuple[float, ...], layers: tuple[int, ...]) -> Row:
    """The value of every layer, or of every block where they are too many."""
    row = _apart(stages, layers)
    if len(row) <= MOST_BLOCKS:
        return row
    most = max(1, MOST_BLOCKS // len(layers))
    borders = [0]
    for count in layers:
        first, blocks = borders[-1], min(count, most)
        borders += [first + count * block // blocks for block in range(1, blocks + 1)]
    return tuple(sum(row[begin:end]) for begin, end in pairwise(borders))


def _apart(stages: tuple[float, ...], layers: tuple[int, ...]) -> Row:
    """The value of every layer, from those of whole stages."""
    each = [value / count for value, count in zip(stages, layers, strict=True)]
    inner = sorted(each[1:-1] or each)
    usual = inner[len(inner) // 2]
    shares: list[list[float]] = []
    for stage, (value, count) in enumerate(zip(stages, layers, strict=True)):
        at_end = stage in (0, len(stages) - 1)
        layer = min(each[stage], usual) if at_end else each[stage]
        row = [layer] * count
        row[0 if stage == 0 else -1] += value - layer * count
        shares.append(row)
    return tuple(value for row in shares for value in row)
