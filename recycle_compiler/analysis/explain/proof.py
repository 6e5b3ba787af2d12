"""A bound taken apart: the terms that add up to a period that no plan can go below.

Bounds are known by their reason, `load of stage 2`, `tail of stage 2 through stage 0` (whose window it is) or
`feed of stage 0 to stage 1` (likewise). The parts follow the arguments of scheduling/bounds.py and
scheduling/pool_bounds.py; what they do not account for is stated as the rest, so parts always add up to the
bound. A reason that is not known here has no parts.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.streams import Claims
from recycle_compiler.ir.units import ending_words, memory_text, plural, time_text
from recycle_compiler.scheduling.bounds import Bound, ramp_up, stage_bounds, until_last_forward
from recycle_compiler.scheduling.pool_bounds import pooled_idle
from recycle_compiler.scheduling.problem import Problem
from recycle_compiler.scheduling.ways import head, round_trip, up

_REASON = re.compile(r"(?P<kind>[\w ]+) of stage (?P<stage>\d+)(?: (?:through|to) stage (?P<window>\d+))?")


@dataclass(frozen=True, slots=True)
class BoundTerm:
    """A share of a bound; below zero where it makes the bound smaller."""

    ticks: int
    what: str


def stage_of(problem: Problem, reason: str) -> int | None:
    """The stage that a reason names, if it names one of the problem."""
    named = _REASON.search(reason)
    if named is None or int(named["stage"]) >= problem.chunks:
        return None
    return int(named["stage"])


def period_of(problem: Problem, stage: int, reason: str) -> int | None:
    """What the bound of this name says; None if the stage has no such bound."""
    return next((bound.period for bound in stage_bounds(problem, stage) if bound.reason == reason), None)


def parts_of(problem: Problem, job: JobSpec, bound: Bound) -> tuple[BoundTerm, ...]:
    """The parts of a bound, without those that are zero."""
    named = _REASON.fullmatch(bound.reason)
    if named is None or named["kind"] not in _TAKEN_APART:
        return ()
    stage = int(named["stage"])
    window = int(named["window"] or stage)
    known, rest = _TAKEN_APART[named["kind"]](problem, job, stage, window, bound)
    parts = (*known, *_ends(problem, job, max(stage, window), window))
    left = bound.period - sum(part.ticks for part in parts)
    return tuple(part for part in (*parts, BoundTerm(left, rest)) if part.ticks)


def _load(
    problem: Problem, job: JobSpec, stage: int, first: int, bound: Bound
) -> tuple[tuple[BoundTerm, ...], str]:
    parts = (
        _work(problem, job, stage),
        _ramp_up(problem, job, stage),
        _waiting_in_rounds(problem, stage, bound),
    )
    return parts, "drain: idle time after the last F"


def _tail(
    problem: Problem, job: JobSpec, stage: int, first: int, bound: Bound
) -> tuple[tuple[BoundTerm, ...], str]:
    way_up = sum(problem.backward[j] + problem.transfer[j] for j in range(first, stage))
    parts = (
        _work(problem, job, stage),
        _ramp_up(problem, job, stage),
        _waiting_in_rounds(problem, stage, bound),
        BoundTerm(way_up, f"the last backward on its way up to stage {first}"),
        BoundTerm(problem.weight[first], f"W of stage {first} after it"),
    )
    known = sum(part.ticks for part in (*parts, *_ends(problem, job, stage, first)))
    if known > bound.period:
        return parts, f"less the work that stage {stage} can leave for that time"
    return parts, "drain: idle time after the last F"


def _both_ends(
    problem: Problem, job: JobSpec, stage: int, first: int, bound: Bound
) -> tuple[tuple[BoundTerm, ...], str]:
    live = len(problem.hosts[stage])
    at_start, at_end = pooled_idle(problem, stage)
    work = problem.units * sum(_times(problem, stage))
    # Rounded up one after another, so that they add up to the whole rounded up.
    sums = [-(-ticks // live) for ticks in (work, work + at_start, work + at_start + at_end)]
    what = f"work: {plural(problem.units, 'micro-batch')} x ({_each(problem, job, stage)})"
    parts = (
        BoundTerm(sums[0], what if live == 1 else f"{what}, shared by {live} workers"),
        BoundTerm(
            sums[1] - sums[0], "idle at the start, for want of work that has arrived or fits in memory"
        ),
        BoundTerm(sums[2] - sums[1], "idle at the end, for want of work that can be left until then"),
    )
    return parts, "the rest"


def _memory(
    problem: Problem, job: JobSpec, stage: int, first: int, bound: Bound
) -> tuple[tuple[BoundTerm, ...], str]:
    share = _share(problem, stage)
    held = problem.forward[stage] + round_trip(problem, stage) + problem.backward[stage]
    rounds = -(-share // max(1, min(share, problem.holdable(stage))))
    last_weight = problem.weight[stage]
    if problem.kept[stage] == problem.activation[stage]:
        held, last_weight = held + last_weight, 0
    in_turn = rounds * held + last_weight
    if in_turn + sum(part.ticks for part in _ends(problem, job, stage, first)) == bound.period:
        each = f"each for {time_text(job, held)}"
        what = f"{plural(rounds, 'activation')} one after another in the same place, {each}"
        return (BoundTerm(rounds * held, what), BoundTerm(last_weight, "the last W")), "the rest"
    room = memory_text(job, problem.capacity[stage])
    return (), f"{plural(share, 'activation')} in memory for their round trips, in a capacity of {room}"


def _rounds(
    problem: Problem, job: JobSpec, stage: int, first: int, bound: Bound
) -> tuple[tuple[BoundTerm, ...], str]:
    return (), "micro-batches that pass workers in turn and wait for each other's room, from end to end"


def _feed(
    problem: Problem, job: JobSpec, stage: int, later: int, bound: Bound
) -> tuple[tuple[BoundTerm, ...], str]:
    there = problem.forward[later] + round_trip(problem, later) + problem.backward[later]
    parts = (
        BoundTerm(there, f"the first micro-batch from stage {later} on and back"),
        BoundTerm(up(problem, later, stage), f"its way up to stage {stage}"),
        BoundTerm(until_last_forward(problem, stage), f"work of stage {stage} before its last F has room"),
        BoundTerm(head(problem, stage, later), f"that F on its way down to stage {later}"),
        BoundTerm(there, f"the last micro-batch from stage {later} on and back"),
        BoundTerm(problem.weight[later], f"W of stage {later} after it"),
    )
    return parts, "the rest"


def _work(problem: Problem, job: JobSpec, stage: int) -> BoundTerm:
    share = _share(problem, stage)
    what = f"work: {plural(share, 'micro-batch')} x ({_each(problem, job, stage)})"
    return BoundTerm(share * sum(_times(problem, stage)), what)


def _each(problem: Problem, job: JobSpec, stage: int) -> str:
    """`F 1 + I 1 + W 1`: the ops of one micro-batch."""
    names = ("F", "I", "W") if problem.split[stage] else ("F", "B")
    times = zip(names, _times(problem, stage), strict=False)
    return " + ".join(f"{name} {time_text(job, time)}" for name, time in times)


def _times(problem: Problem, stage: int) -> tuple[int, int, int]:
    return problem.forward[stage], problem.backward[stage], problem.weight[stage]


def _ramp_up(problem: Problem, job: JobSpec, stage: int) -> BoundTerm:
    share = _share(problem, stage)
    ahead = min(share, problem.holdable(stage)) - 1
    trip = time_text(job, round_trip(problem, stage))
    return BoundTerm(
        ramp_up(problem, stage, share), f"ramp-up: a round trip of {trip} less {ahead} further F"
    )


def _waiting_in_rounds(problem: Problem, stage: int, bound: Bound) -> BoundTerm:
    """What the bound owes to a stage with fewer workers, which those of this one have to pass in rounds."""
    everyone = tuple(range(problem.units))

    def period(narrow: int) -> int:
        """The bound, if every stage but this one and `narrow` had a worker for each micro-batch."""
        kept = (stage, narrow)
        hosts = tuple(own if other in kept else everyone for other, own in enumerate(problem.hosts))
        return period_of(replace(problem, hosts=hosts), stage, bound.reason) or 0

    waiting = bound.period - period(stage)
    if waiting == 0:
        return BoundTerm(0, "no waiting in rounds")
    where = max((other for other in range(problem.chunks) if other != stage), key=period)
    crowd = plural(_full_shares(problem, stage), "micro-batch")
    live = plural(len(problem.hosts[where]), "worker")
    return BoundTerm(waiting, f"waiting in rounds at stage {where}: {crowd} at a time for {live}")


def _full_shares(problem: Problem, stage: int) -> int:
    """Workers that must run as many micro-batches as any, if no worker runs more than the fair share."""
    live = len(problem.hosts[stage])
    return problem.units - live * (_share(problem, stage) - 1)


def _ends(problem: Problem, job: JobSpec, stage: int, first: int) -> tuple[BoundTerm, BoundTerm]:
    """What lies before the work of a stage and after that of all, in the window that opens at `first`."""
    begin = first if problem.staggered else 0
    down = sum(problem.forward[j] + problem.transfer[j] for j in range(begin, stage))
    finish = problem.finish[first] if problem.staggered else max(problem.finish)
    return (
        BoundTerm(down, f"the first F on its way down from stage {begin}"),
        BoundTerm(finish, ending_words(job)),
    )


def _share(problem: Problem, stage: int) -> int:
    """Micro-batches that some worker of the stage must run."""
    return -(-problem.units // len(problem.hosts[stage]))


_TakeApart = Callable[[Problem, JobSpec, int, int, Bound], tuple[tuple[BoundTerm, ...], str]]
_TAKEN_APART: dict[str, _TakeApart] = {
    "load": _load,
    "tail": _tail,
    "memory": _memory,
    "both ends": _both_ends,
    "rounds": _rounds,
    "feed": _feed,
}
"""For each kind of bound, its parts between the ends of the window, and what the rest is called."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Why no plan has a shorter period."""

    reason: str
    period: int
    parts: tuple[BoundTerm, ...]
    """They add up to the period; none where the bound cannot be taken apart."""


def binding_proof(problem: Problem, job: JobSpec, claims: Claims) -> Proof:
    """The bound that the plan claims."""
    stage = stage_of(problem, claims.reason)
    found = None if stage is None else period_of(problem, stage, claims.reason)
    period = claims.lower_bound if found is None else found
    proof = _proof(problem, job, Bound(period, claims.reason))
    if period == claims.lower_bound:
        return proof
    rest = BoundTerm(claims.lower_bound - period, "rounded up to a sum of whole ops")
    return Proof(claims.reason, claims.lower_bound, (*proof.parts, rest))


def stage_proofs(problem: Problem, job: JobSpec, stage: int) -> tuple[Proof, ...]:
    """The best bound of each kind that this stage imposes, largest first."""
    best: dict[str, Bound] = {}
    for bound in stage_bounds(problem, stage):
        kind = bound.reason.partition(" of ")[0]
        if kind not in best or bound.period > best[kind].period:
            best[kind] = bound
    ordered = sorted(best.values(), key=lambda bound: -bound.period)
    return tuple(_proof(problem, job, bound) for bound in ordered)


def bottleneck_stage(problem: Problem, claims: Claims) -> int:
    """The stage that the binding bound is about, or else the one with the largest bound."""
    named = stage_of(problem, claims.reason)
    if named is not None:
        return named
    largest = [max(bound.period for bound in stage_bounds(problem, s)) for s in range(problem.chunks)]
    return largest.index(max(largest))


def _proof(problem: Problem, job: JobSpec, bound: Bound) -> Proof:
    return Proof(bound.reason, bound.period, parts_of(problem, job, bound))
