"""Bytes that a worker holds for every parameter: the one place that counts it.

For mixed-precision AdamW as the runtime has it: weights in bf16, gradients in fp32, and for every parameter a
master weight and two moments. With a staggered optimizer a step may have to be undone when the norm of all
gradients is known: what undoes it is kept, and the gradients with it, since a clipped step is made again.
Without stagger nobody steps before all can, so nothing is kept for that.

What belongs to the step is shared out where the optimizer's state is sharded.
"""

from dataclasses import replace
from typing import NamedTuple

from recycle_compiler.ir.job import JobSpec, Techniques


class Part(NamedTuple):
    """One kind of what a worker holds."""

    name: str
    size: int
    """Bytes for each parameter."""
    is_shared: bool = False
    """True if only owners of a shard have it, where the state is sharded."""


_ALWAYS = (Part("weights", 2), Part("gradients", 4), Part("optimizer state", 12, is_shared=True))
_STAGGERED = (Part("undo", 12, is_shared=True), Part("kept gradients", 4, is_shared=True))
COPIED = ("weights", "optimizer state")
"""Bytes that a worker that takes over a chunk must fetch."""
GRADIENT_BYTES = _ALWAYS[1].size
WEIGHT_BYTES = _ALWAYS[0].size


def state_parts(*, staggered: bool) -> tuple[Part, ...]:
    """All that is held for a parameter while training."""
    return (*_ALWAYS, *(_STAGGERED if staggered else ()))


def bytes_of_all(*, staggered: bool, sharded: bool) -> int:
    """For each parameter, what every worker that holds it has."""
    return sum(part.size for part in state_parts(staggered=staggered) if not (sharded and part.is_shared))


def bytes_of_shards(*, staggered: bool) -> int:
    """For each parameter, what all its shards have together."""
    return sum(part.size for part in state_parts(staggered=staggered) if part.is_shared)


def copied_bytes(parameters: int, owners: int, holders: int) -> int:
    """Bytes to fetch for a worker that takes over so many parameters; `owners` is 0 where state is whole."""
    weights, state = (part.size for part in _ALWAYS if part.name in COPIED)
    owned = -(-state * parameters * min(owners, holders) // holders) if owners else state * parameters
    return weights * parameters + owned


class Held(NamedTuple):
    """Bytes that a worker of one stage holds."""

    parameters: int
    parts: dict[str, int]
    """By kind, in the order people read them; `other` is what the job does not say more about."""
    activations: int | None
    """Room for activations; None is unlimited."""

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def held_by_stage(job: JobSpec) -> tuple[Held, ...]:
    """Bytes that the workers of each stage hold before any activation; nothing where the job does not say."""
    return tuple(_held(job, stage) for stage in range(job.stages)) if job.counts else ()


def _held(job: JobSpec, stage: int) -> Held:
    chunks, sharding, shared = job.held[stage], job.sharding, job.state_counts or job.counts
    found: dict[str, int] = {}
    for part in state_parts(staggered=job.techniques.stagger):
        if sharding is None or not part.is_shared:
            found[part.name] = sum(part.size * job.counts[chunk] for chunk in chunks)
            continue
        shares = (
            -(
                -part.size
                * shared[chunk]
                * sharding.owned(chunk, sharding.lost[chunk])
                // sharding.shards[chunk]
            )
            for chunk in chunks
        )
        found[part.name] = sum(shares)
    found["device and messages"] = job.overhead
    return Held(sum(job.counts[chunk] for chunk in chunks), found, job.capacity[stage])


def without_undo(job: JobSpec) -> JobSpec:
    """The job with the room that systems have which keep nothing to undo a step; its techniques stay."""
    unstaggered = with_techniques(job, replace(job.techniques, stagger=False))
    return replace(unstaggered, techniques=job.techniques)


def with_whole_state(job: JobSpec) -> JobSpec:
    """The job with the room and the copies of workers that hold all of the optimizer's state.

    There is less than no room where that does not fit.
    """
    sharding = job.sharding
    if sharding is None or not job.counts:
        return job
    size = bytes_of_shards(staggered=job.techniques.stagger)
    more = [
        size * count - sharding.kept(chunk, sharding.lost[chunk]) for chunk, count in enumerate(job.counts)
    ]
    capacity = tuple(
        None if room is None else room - sum(more[chunk] for chunk in held)
        for room, held in zip(job.capacity, job.held, strict=True)
    )
    copied = tuple(copied_bytes(count, 0, 1) for count in job.counts)
    return replace(job, sharding=None, capacity=capacity, parameters=copied)


def with_techniques(job: JobSpec, techniques: Techniques) -> JobSpec:
    """The job with other techniques. Where the job says how many parameters it has, a step that is not
    staggered leaves more room."""
    if job.techniques.stagger == techniques.stagger or not job.counts:
        return replace(job, techniques=techniques)
    sharded = job.sharding is not None
    before, after = (
        bytes_of_all(staggered=stagger, sharded=sharded)
        for stagger in (job.techniques.stagger, techniques.stagger)
    )
    costs = job.layer_costs
    if costs is not None:
        state = bytes_of_shards(staggered=techniques.stagger) if sharded else 0
        costs = replace(
            costs,
            resident=tuple(after * count for count in costs.counts),
            state=tuple(state * max(counts) for counts in zip(costs.counts, costs.state_counts, strict=True)),
        )
    capacity = [
        None if room is None else room + (before - after) * sum(job.counts[chunk] for chunk in held)
        for room, held in zip(job.capacity, job.held, strict=True)
    ]
    sharding = job.sharding
    if sharding is not None:
        state = bytes_of_shards(staggered=techniques.stagger)
        changed = replace(sharding, state=tuple(state * count for count in job.state_counts or job.counts))
        for stage, held in enumerate(job.held):
            room = capacity[stage]
            if room is not None:
                more = (changed.kept(c, sharding.lost[c]) - sharding.kept(c, sharding.lost[c]) for c in held)
                capacity[stage] = room - sum(more)
        sharding = changed
    return replace(job, techniques=techniques, capacity=tuple(capacity), layer_costs=costs, sharding=sharding)
