"""The bounds of a stage taken apart: the numbers that add up to what no plan can beat.

Bounds are known by their reason, `load of stage 2` or `tail of stage 2 through stage 0`. The parts follow the
arguments of assign_slots/bounds.py; what they do not account for is stated as the rest, so parts always
add up to the bound. A reason that is not known here has no parts.
"""

import re
from dataclasses import dataclass

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.program import Claims
from recycle_compiler.passes.assign_slots.bounds import Bound, ramp_up, round_trip, stage_bounds
from recycle_compiler.passes.assign_slots.problem import UNLIMITED, Problem
from recycle_compiler.viz.units import memory_text, plural, time_text

_REASON = re.compile(r"(?P<kind>\w+) of stage (?P<stage>\d+)(?: through stage (?P<first>\d+))?")


@dataclass(frozen=True, slots=True)
class Part:
    """A share of a bound; below zero where it makes the bound smaller."""

    ticks: int
    what: str


@dataclass(frozen=True, slots=True)
class Proof:
    """Why no plan has a shorter period."""

    reason: str
    period: int
    parts: tuple[Part, ...]


def binding_proof(problem: Problem, job: JobSpec, claims: Claims) -> Proof:
    """The bound that the plan claims."""
    named = _REASON.fullmatch(claims.reason)
    known = (
        stage_bounds(problem, int(named["stage"])) if named and int(named["stage"]) < problem.stages else []
    )
    period = next((bound.period for bound in known if bound.reason == claims.reason), claims.lower_bound)
    proof = _proof(problem, job, Bound(period, claims.reason))
    if period == claims.lower_bound:
        return proof
    rest = Part(claims.lower_bound - period, "rounded up to a sum of whole ops")
    return Proof(claims.reason, claims.lower_bound, (*proof.parts, rest))


def stage_proofs(problem: Problem, job: JobSpec, stage: int) -> tuple[Proof, ...]:
    """The best bound of each kind that this stage imposes, largest first."""
    best: dict[str, Bound] = {}
    for bound in stage_bounds(problem, stage):
        kind = bound.reason.partition(" ")[0]
        if kind not in best or bound.period > best[kind].period:
            best[kind] = bound
    ordered = sorted(best.values(), key=lambda bound: -bound.period)
    return tuple(_proof(problem, job, bound) for bound in ordered)


def bottleneck_stage(problem: Problem, claims: Claims) -> int:
    """The stage that the binding bound is about, or else the one with the largest bound."""
    named = _REASON.search(claims.reason)
    if named is not None and int(named["stage"]) < problem.stages:
        return int(named["stage"])
    largest = [max(bound.period for bound in stage_bounds(problem, s)) for s in range(problem.stages)]
    return largest.index(max(largest))


def _proof(problem: Problem, job: JobSpec, bound: Bound) -> Proof:
    named = _REASON.fullmatch(bound.reason)
    taken_apart = {"load": _load, "tail": _tail, "memory": _memory}
    if named is None or named["kind"] not in taken_apart:
        return Proof(bound.reason, bound.period, ())
    stage = int(named["stage"])
    first = int(named["first"] or stage)
    known, rest = taken_apart[named["kind"]](problem, job, stage, first, bound)
    parts = (*known, *_ends(problem, stage, first))
    left = bound.period - sum(part.ticks for part in parts)
    return Proof(bound.reason, bound.period, tuple(p for p in (*parts, Part(left, rest)) if p.ticks))


def _load(
    problem: Problem, job: JobSpec, stage: int, first: int, bound: Bound
) -> tuple[tuple[Part, ...], str]:
    return (_work(problem, job, stage), _ramp_up(problem, job, stage)), "drain: idle time after the last F"


def _tail(
    problem: Problem, job: JobSpec, stage: int, first: int, bound: Bound
) -> tuple[tuple[Part, ...], str]:
    way_up = sum(problem.backward[j] + problem.transfer[j] for j in range(first, stage))
    parts = (
        _work(problem, job, stage),
        _ramp_up(problem, job, stage),
        Part(way_up, f"the last backward on its way up to stage {first}"),
        Part(problem.weight[first], f"W of stage {first} after it"),
    )
    known = sum(part.ticks for part in (*parts, *_ends(problem, stage, first)))
    if known > bound.period:
        return parts, f"less the work that stage {stage} can leave for that time"
    return parts, "drain: idle time after the last F"


def _memory(
    problem: Problem, job: JobSpec, stage: int, first: int, bound: Bound
) -> tuple[tuple[Part, ...], str]:
    share = _share(problem, stage)
    held = problem.forward[stage] + round_trip(problem, stage) + problem.backward[stage]
    rounds = -(-share // max(1, min(share, _fitting(problem, stage))))
    last_weight = problem.weight[stage]
    if problem.kept[stage] == problem.activation[stage]:
        held, last_weight = held + last_weight, 0
    in_turn = rounds * held + last_weight
    if in_turn + sum(part.ticks for part in _ends(problem, stage, first)) == bound.period:
        each = f"each for {time_text(job, held)}"
        what = f"{plural(rounds, 'activation')} one after another in the same place, {each}"
        return (Part(rounds * held, what), Part(last_weight, "the last W")), "the rest"
    room = memory_text(job, problem.capacity[stage])
    return (), f"{plural(share, 'activation')} in memory for their round trips, in a capacity of {room}"


def _work(problem: Problem, job: JobSpec, stage: int) -> Part:
    share = _share(problem, stage)
    names = ("F", "I", "W") if problem.split[stage] else ("F", "B")
    times = (problem.forward[stage], problem.backward[stage], problem.weight[stage])
    each = " + ".join(f"{name} {time_text(job, time)}" for name, time in zip(names, times, strict=False))
    return Part(share * sum(times), f"work: {plural(share, 'micro-batch')} x ({each})")


def _ramp_up(problem: Problem, job: JobSpec, stage: int) -> Part:
    share = _share(problem, stage)
    ahead = min(share, _fitting(problem, stage)) - 1
    trip = time_text(job, round_trip(problem, stage))
    return Part(ramp_up(problem, stage, share), f"ramp-up: a round trip of {trip} less {ahead} further F")


def _ends(problem: Problem, stage: int, first: int) -> tuple[Part, Part]:
    """What lies before the work of a stage, and after everybody's, in the window that opens at `first`."""
    begin = first if problem.staggered else 0
    down = sum(problem.forward[j] + problem.transfer[j] for j in range(begin, stage))
    finish = problem.finish[first] if problem.staggered else max(problem.finish)
    return (
        Part(down, f"the first F on its way down from stage {begin}"),
        Part(finish, "reduction and optimizer"),
    )


def _share(problem: Problem, stage: int) -> int:
    """Micro-batches that some worker of the stage must run."""
    return -(-problem.units // len(problem.hosts[stage]))


def _fitting(problem: Problem, stage: int) -> int:
    """Activations that fit at once."""
    if problem.capacity[stage] == UNLIMITED or problem.activation[stage] == 0:
        return problem.units
    return problem.capacity[stage] // problem.activation[stage]
