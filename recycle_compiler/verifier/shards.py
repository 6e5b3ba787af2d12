"""Steps and memory of a plan with a sharded optimizer state: the fewer are left, the more each owns.

A chunk has as many shards as workers held it in the beginning. With n of them left, every worker owns at most
the share of `owners` shards in n, rounded up to whole shards: so much of a step it makes, of state it keeps.

Where n workers share experts, one token of n has its expert where it is, and the others travel.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil

from recycle_compiler.ir.expert_messages import MessageTicks, message_ticks
from recycle_compiler.ir.job import JobSpec


def job_of_plan(job: JobSpec, failed: Sequence[tuple[int, int]]) -> JobSpec:
    """The job with the steps, capacities and exchanges of workers that are left; the same where state is
    whole."""
    if job.sharding is None:
        return job
    known = job.sharding
    parts = [_part(job, chunk, failed) for chunk in range(job.chunks)]
    first = [_part(job, chunk, None) for chunk in range(job.chunks)]
    room: list[int | None] = []
    for stage, capacity in enumerate(job.capacity):
        held = [chunk for chunk, stages in enumerate(job.holders) if stage in stages]
        grown = sum(ceil(known.state[c] * parts[c]) - ceil(known.state[c] * first[c]) for c in held)
        room.append(None if capacity is None else capacity - grown)
    steps = tuple(ceil(known.step[chunk] * part) for chunk, part in enumerate(parts))
    changed = _with_messages(replace(job, optimizer=steps, capacity=tuple(room)), failed)
    if not job.exchange:
        return changed
    travels = [ceil(_travels(job, chunk, failed) * ticks) for chunk, ticks in enumerate(job.exchange)]
    less = [now - before for now, before in zip(travels, job.exchange, strict=True)]
    return replace(
        changed,
        exchange=tuple(travels),
        forward=tuple(map(sum, zip(job.forward, less, strict=True))),
        backward_input=tuple(map(sum, zip(job.backward_input, less, strict=True))),
    )


def _with_messages(job: JobSpec, failed: Sequence[tuple[int, int]]) -> JobSpec:
    """With the sums and gathers of experts by those that are left."""
    known = job.sharding
    if known is None or not job.slot_transfer:
        return job
    reduce, gather = list(job.reduce), list(known.gather)
    for chunk, (ticks, experts) in enumerate(zip(job.slot_transfer, job.expert_counts, strict=True)):
        for sign, gone in ((-1, None), (1, failed)):
            took = message_ticks(ticks, experts, job.slots, _left(job, chunk, gone), known.owners)
            reduce[chunk] += sign * took.sum
            gather[chunk] += sign * took.gather
    return replace(job, reduce=tuple(reduce), sharding=replace(known, gather=tuple(gather)))


def _travels(job: JobSpec, chunk: int, failed: Sequence[tuple[int, int]]) -> Fraction:
    """Tokens that go to other workers, beside those that do while all are there."""
    now, first = _left(job, chunk, failed), _left(job, chunk, None)
    if now in (0, first):
        return Fraction(1)
    return Fraction(now - 1, now) / Fraction(first - 1, first)


def _left(job: JobSpec, chunk: int, failed: Sequence[tuple[int, int]] | None) -> int:
    """Workers that hold a chunk; None: while all are there."""
    known = job.sharding
    assert known is not None
    left = known.shards[chunk]
    for stage in job.holders[chunk] if failed is not None else ():
        gone = sum(at == stage for _, at in failed or ())
        left -= max(0, gone - known.absent[stage])
    return left


def _part(job: JobSpec, chunk: int, failed: Sequence[tuple[int, int]] | None) -> Fraction:
    """Most of a chunk's state that one worker has; None: while all are there."""
    known = job.sharding
    assert known is not None
    shards = known.shards[chunk]
    owned = ceil(Fraction(known.owners * shards, max(_left(job, chunk, failed), 1)))
    return Fraction(min(owned, shards), shards)


def wrong_steps(job: JobSpec) -> Iterator[str]:
    """Chunks whose step is not the part of one worker, in a job that no worker has left yet."""
    known = job.sharding
    if known is None:
        return
    if any(known.lost):
        yield f"the job is one of which workers have failed already: {known.lost}"
    for chunk, step in enumerate(known.step):
        if (part := ceil(step * _part(job, chunk, None))) != job.optimizer[chunk]:
            yield f"optimizer of chunk {chunk} is {job.optimizer[chunk]}, its shards give {part}"


def message_time(ticks: int, experts: Sequence[int], job: JobSpec, workers: int) -> MessageTicks:
    """Of experts of some layers, one of which takes so long, between so many workers."""
    most = max(experts, default=0)
    return message_ticks(ticks, most, job.slots, workers, job.owners) if job.slots else MessageTicks()


def reduce_time(whole: int, workers: int, owners: int) -> int:
    """Of so many workers, where very many take `whole`: a sum for all, or for the owners of each shard."""
    sent = Fraction(workers - 1, workers)
    if owners:
        sent += Fraction(min(owners, workers) - 1, workers)
    return ceil(whole * sent)


def part_of_all(state: int, owners: int, workers: int) -> int:
    """Part of each of so many workers in a state that all of them share out."""
    return ceil(Fraction(state * min(owners, workers), workers))
