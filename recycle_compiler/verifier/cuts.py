"""Plans under other cuts, held against the job that they are plans of.

Such a plan is a plan of a job of its own, whose stages are sums of layers; all rules hold for it as for any.
Here is what it owes to the job with the layers: the same model and micro-batches, stages that cost what their
layers cost, enough workers that hold each layer, room for the state of the layers, and honest bounds.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import NamedTuple

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layers import LayerCosts
from recycle_compiler.verifier.index import verify_index, workable_job
from recycle_compiler.verifier.plan import PlanClaims, PlanSource
from recycle_compiler.verifier.report import PlanReport, VerifierRule, Violation
from recycle_compiler.verifier.shards import message_time, part_of_all, reduce_time

_SAME = (
    *("name", "tensor", "unit", "memory_unit", "techniques", "redundancy", "tied", "tied_reduce", "owners"),
    *("slots", "placed_every"),
)
"""Fields that are the same under another cut."""
_TIMES = ("forward", "backward_input", "backward_weight")
"""Fields that take half as long, and a little more, where micro-batches are split in two."""
_HALVES = ("transfer", "activation", "kept_for_weight")
"""Fields that are half as large where micro-batches are split in two."""
_SUMS = (
    "forward",
    "backward_input",
    "backward_weight",
    "activation",
    "kept_for_weight",
    "parameters",
)
"""Costs of a stage that are the sums of those of its layers."""


def in_cut(violations: Iterable[Violation], number: int) -> tuple[Violation, ...]:
    """The same, as violations of a plan under another cut."""
    return tuple(replace(violation, cut=number) for violation in violations)


def verify_cuts(source: PlanSource) -> Iterator[Violation]:
    """Yield what is wrong with other cuts before any of their streams is read."""
    job = workable_job(source)
    if isinstance(job, str):
        return
    fallbacks = {fallback for recut in source.recuts for fallback in _groups_of(recut)}
    for number, recut in enumerate(source.recuts):
        yield from in_cut((*verify_index(recut), *_verify_cut(job, recut, fallbacks)), number)
    yield from _bounds_over_cuts(source, job)


_Stages = tuple[tuple[tuple[int, int], int], ...]
"""Of each stage its layers, first and beyond the last, and its workers."""


def _groups_of(recut: PlanSource) -> Iterator[_Stages]:
    """Each group of pipelines of a cut: what a job goes on with where the others have lost a stage."""
    other = workable_job(recut)
    if isinstance(other, str) or not other.groups or not recut.plans:
        return
    workers, ranges = _workers_per_stage(other, recut.plans[0].failed), _stage_ranges(other)
    for group in other.groups:
        yield tuple((ranges[stage], workers[stage]) for stage in dict.fromkeys(group))


def _verify_cut(job: JobSpec, recut: PlanSource, fallbacks: Collection[_Stages]) -> Iterator[Violation]:
    costs, other = job.layer_costs, workable_job(recut)
    if isinstance(other, str):
        return
    if costs is None:
        yield _of_cut(VerifierRule.CUT_MODEL, "the job has no costs by layer, so it has no other cuts")
        return
    yield from (_of_cut(VerifierRule.CUT_MODEL, what) for what in _other_model(job, costs, other))
    if sum(other.cut) != costs.count or not _has_known_shape(other):
        return
    workers = _workers_per_stage(other, recut.plans[0].failed if recut.plans else ())
    if _units(other) == 2 * _units(job) and job.split_ppm is not None:
        costs = _of_halves(costs, job.split_ppm)
    yield from (_of_cut(VerifierRule.CUT_COSTS, what) for what in _wrong_costs(costs, other, workers))
    yield from (_of_cut(VerifierRule.CUT_COSTS, what) for what in _wrong_shards(costs, other, workers))
    if not other.groups and tuple(zip(_ranges(other), workers, strict=True)) in fallbacks:
        return
    for chunk, stages in enumerate(other.holders):
        holders = sum(workers[stage] for stage in stages)
        if holders < job.redundancy:
            first, end = _ranges(other)[chunk]
            message = f"layers {first} to {end - 1} have {holders} holders, the job asks for {job.redundancy}"
            yield Violation(VerifierRule.CUT_REDUNDANCY, 0, None, None, message)


def _of_cut(rule: VerifierRule, message: str) -> Violation:
    return Violation(rule, None, None, None, message)


def _other_model(job: JobSpec, costs: LayerCosts, other: JobSpec) -> Iterator[str]:
    """Differences between a job and another cut of it in values that they must share."""
    for name in _SAME:
        if getattr(other, name) != getattr(job, name):
            yield f"has {name.replace('_', ' ')} {getattr(other, name)}, the job has {getattr(job, name)}"
    if sum(other.cut) != costs.count:
        yield f"has {sum(other.cut)} layers, the job has {costs.count}"
    # Each may be split in two, if the job allows it.
    allowed = (_units(job),) if job.split_ppm is None else (_units(job), 2 * _units(job))
    if _units(other) not in allowed:
        yield f"has {_units(other)} micro-batches in all, the job has {_units(job)}"
    elif _units(other) != other.parts * _units(job):
        yield f"has {_units(other)} micro-batches in all, of {_units(job)} in {other.parts} parts each"
    if not _has_known_shape(other):
        yield f"does not have one range of layers on each stage, but {other.chunk_stages}"


def _has_known_shape(job: JobSpec) -> bool:
    """True if every stage has one range of layers: all in order, or those of each group."""
    return job.has_chunk_per_stage or bool(job.groups)


def _units(job: JobSpec) -> int:
    """Micro-batches of all pipelines."""
    return job.pipelines * job.microbatches


def _of_halves(costs: LayerCosts, over_ppm: int) -> LayerCosts:
    """Costs of layers for half of a micro-batch, rounded up: times are longer by so many millionths."""
    changed = {
        name: [-(-time * (10**6 + over_ppm) // (2 * 10**6)) for time in getattr(costs, name)]
        for name in _TIMES
    }
    changed |= {name: [(amount + 1) // 2 for amount in getattr(costs, name)] for name in _HALVES}
    return replace(costs, **{name: tuple(values) for name, values in changed.items()})


def _wrong_costs(costs: LayerCosts, other: JobSpec, workers: Sequence[int]) -> Iterator[str]:
    """Costs of chunks that are not those of their layers; a stage has one, unless there are groups."""
    noun = "chunk" if other.groups else "stage"
    for chunk, (first, end) in enumerate(_ranges(other)):
        expected = {name: sum(getattr(costs, name)[first:end]) for name in _SUMS}
        if end < costs.count:
            expected["transfer"] = costs.transfer[end - 1]
        # A ring of n workers sends (n - 1) / n of what very many send.
        whole, step = sum(costs.reduce[first:end]), sum(costs.optimizer[first:end])
        ring = sum(workers[stage] for stage in other.holders[chunk])
        expected["optimizer"] = part_of_all(step, other.owners, ring) if other.owners and ring > 0 else step
        if ring > 0:
            messages = message_time(
                sum(costs.slot_transfer[first:end]), costs.expert_counts[first:end], other, ring
            )
            expected["reduce"] = reduce_time(whole, ring, other.owners) + messages.sum
            gathered = reduce_time(sum(costs.gather[first:end]), ring, 0) + messages.gather
            expected["gather"] = gathered if other.owners else 0
            # Of n workers each keeps one token of n.
            travels = reduce_time(sum(costs.exchange[first:end]), ring, 0)
            expected["forward"] += travels
            expected["backward_input"] += travels
            if other.slots:
                yield from _wrong_experts(costs, other, chunk, travels)
            # With the sum of what is shared, unless all of it lies on this stage.
            shares = sum(first <= layer < end for layer in other.tied)
            expected["reduce"] += other.tied_reduce if 0 < shares < len(other.tied) else 0
        for name, value in expected.items():
            if (stated := getattr(other, name)[chunk]) != value:
                yield f"{name} of {noun} {chunk} is {stated}, its layers {first} to {end - 1} give {value}"
    for stage, (first, end) in enumerate(_stage_ranges(other)):
        room = None if costs.capacity is None else costs.capacity - sum(costs.resident[first:end])
        if room is not None:
            room -= sum(_kept(costs, other, chunk, workers) for chunk in other.held[stage])
        if (stated := other.capacity[stage]) != room:
            said, left = ("unlimited" if value is None else value for value in (stated, room))
            yield f"stage {stage} has {said} for activations, the state of its layers leaves {left}"


def _wrong_experts(costs: LayerCosts, other: JobSpec, chunk: int, travels: int) -> Iterator[str]:
    """Numbers of a chunk with experts that are not those of its layers; what is said of none is not known."""
    first, end = _ranges(other)[chunk]
    expected = {
        "exchange": travels,
        "expert_counts": max(costs.expert_counts[first:end]),
        "slot_transfer": sum(costs.slot_transfer[first:end]),
        "state_counts": sum(costs.state_counts[first:end]),
    }
    for name, value in expected.items():
        stated = getattr(other, name) or (0,) * other.chunks
        if stated[chunk] != value:
            yield f"{name} of chunk {chunk} is {stated[chunk]}, its layers {first} to {end - 1} give {value}"


def _wrong_shards(costs: LayerCosts, other: JobSpec, workers: Sequence[int]) -> Iterator[str]:
    """Shards that are not the state of the layers, or not among all that hold them."""
    known = other.sharding
    for chunk, (first, end) in enumerate(_ranges(other) if known else ()):
        expected = {
            "shards": sum(workers[stage] for stage in other.holders[chunk]),
            "step": sum(costs.optimizer[first:end]),
            "state": sum(costs.state[first:end]),
        }
        for name, value in expected.items():
            if (stated := getattr(known, name)[chunk]) != value:
                yield f"{name} of chunk {chunk} is {stated}, its layers {first} to {end - 1} give {value}"


def _kept(costs: LayerCosts, other: JobSpec, chunk: int, workers: Sequence[int]) -> int:
    """Part of the state of a chunk that a worker keeps, where that is shared out."""
    first, end = _ranges(other)[chunk]
    ring = sum(workers[stage] for stage in other.holders[chunk])
    return part_of_all(sum(costs.state[first:end]), other.owners, ring) if other.owners and ring > 0 else 0


def _ranges(job: JobSpec) -> tuple[tuple[int, int], ...]:
    """The first layer of each stage, and the first beyond it."""
    return tuple(pairwise(accumulate(job.cut, initial=0)))


def _stage_ranges(job: JobSpec) -> tuple[tuple[int, int], ...]:
    """The same for each stage, which may have several neighbouring chunks."""
    ranges = _ranges(job)
    return tuple((ranges[chunks[0]][0], ranges[chunks[-1]][1]) for chunks in job.held)


def _workers_per_stage(job: JobSpec, failed: Sequence[tuple[int, int]]) -> list[int]:
    counts = [job.pipelines] * job.stages
    for _, stage in failed:
        if 0 <= stage < job.stages:
            counts[stage] -= 1
    return counts


def _keeps_redundancy(job: JobSpec, failed: Sequence[tuple[int, int]], redundancy: int) -> bool:
    """True if so many workers hold every layer, and all but one of them may fail without leaving the others
    too few slots for its experts."""
    workers = _workers_per_stage(job, failed)
    holders = [sum(workers[stage] for stage in stages) for stages in job.holders]
    experts = job.expert_counts or (0,) * job.chunks
    return all(
        count >= redundancy and (count - redundancy + 1) * job.slots >= most
        for count, most in zip(holders, experts, strict=True)
    )


def check_state_and_activations(
    source: PlanSource, recut: PlanSource, report: PlanReport
) -> Iterator[Violation]:
    """Yield workers whose layers and activations, together, are more than a worker of the job can hold."""
    job, other = workable_job(source), workable_job(recut)
    if isinstance(job, str) or isinstance(other, str) or job.layer_costs is None:
        return
    costs = job.layer_costs
    if costs.capacity is None or sum(other.cut) != costs.count or not _has_known_shape(other):
        return
    ranges = _stage_ranges(other)
    workers = _workers_per_stage(other, recut.plans[0].failed)
    kept = [_kept(costs, other, chunk, workers) for chunk in range(other.chunks)]
    for worker, held in report.peak_memory:
        first, end = ranges[worker.stage]
        state = sum(costs.resident[first:end]) + sum(kept[chunk] for chunk in other.held[worker.stage])
        if state + held > costs.capacity:
            message = (
                f"the state of layers {first} to {end - 1} takes {state}, activations up to {held}, "
                f"capacity is {costs.capacity}"
            )
            yield Violation(VerifierRule.CUT_MEMORY, report.plan, worker, None, message)


class _Claim(NamedTuple):
    """A plan of any cut, and how many workers it needs."""

    cut: int | None
    plan: int
    workers: int
    entry: PlanClaims
    keeps_redundancy: bool
    """True if as many workers hold each layer as the job asks for, and all but one of these may fail without
    leaving too few slots for its experts: a bound over cuts is about such plans."""

    def __str__(self) -> str:
        return f"plan {self.plan}" if self.cut is None else f"plan {self.plan} of cut {self.cut}"


def _bounds_over_cuts(source: PlanSource, job: JobSpec) -> Iterator[Violation]:
    """A bound over all cuts is at most that of any one, and nothing with as many workers beats it.

    Where plans in which groups of pipelines have cuts of their own have one, it is about these too.
    """
    claims: list[_Claim] = []
    for cut, one in ((None, source), *enumerate(source.recuts)):
        other = workable_job(one)
        for plan, entry in enumerate(one.plans):
            if one.groups and not entry.bound_over_cuts:
                continue
            workers = one.stages * one.pipelines - len(entry.failed)
            keeps = isinstance(other, str) or _keeps_redundancy(other, entry.failed, job.redundancy)
            claims.append(_Claim(cut, plan, workers, entry, keeps))
    for claim in claims:
        bound = claim.entry.bound_over_cuts
        if bound == 0:
            continue
        for what in _false_bound(bound, claim, claims, job):
            yield Violation(VerifierRule.CLAIM_OVER_CUTS, claim.plan, None, None, what, claim.cut)


def _false_bound(bound: int, claim: _Claim, claims: Sequence[_Claim], job: JobSpec) -> Iterator[str]:
    if job.layer_costs is None:
        yield "a job without costs by layer has no other cuts, so no bound over all of them"
        return
    if not 0 < bound <= claim.entry.lower_bound:
        yield (
            f"claims {bound} as a bound over all cuts, which must be between 1 and the bound of its own cut, "
            f"{claim.entry.lower_bound}"
        )
    others = [other for other in claims if other.workers <= claim.workers and other.keeps_redundancy]
    fastest = min(others, key=lambda other: other.entry.period, default=None)
    if fastest is not None and fastest.entry.period < bound:
        yield (
            f"claims that no plan of any cut for {claim.workers} workers beats {bound}, but {fastest}, with "
            f"{fastest.workers} workers, takes {fastest.entry.period}"
        )
