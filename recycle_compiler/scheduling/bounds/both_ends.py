"""Bound from idle time at both ends of an iteration, of all workers of a stage together.

The bounds of one worker know its own memory and the shortest way round. Here the live workers of a stage are
taken as one pool, which allows to ask how fast the *other* stages can feed it:

- at the start, the q-th backward cannot arrive before every later stage has found time for q forwards and q
  backwards. A forward beyond what memory holds, here or on an earlier stage, has to wait for one of those,
  and for all that some worker there has to do between its first backward and this forward. Its own backward
  comes a round trip later, and makes room for others again;
- at the end, the same holds backwards in time: of the last q backwards, every earlier stage must still run q
  backwards and q W before its own window closes, and the forwards of those that its memory does not hold.

So the work that the pool can have done t after its start is bounded from above, whatever the order, and what
is missing to t times the workers is idle for certain; the same t before its end. All work of the stage plus
both idle times, divided by the number of workers, is a span that no schedule goes below.

Ops of a kind are numbered in order of their start. An array `earliest` of their earliest starts says all that
is known about a kind; at the end of the iteration time runs backwards and `start` means end.
"""

from typing import NamedTuple

import numpy as np

from recycle_compiler.scheduling.bounds.bound import SpanTerm, ends_of_window, times_of, work_term
from recycle_compiler.scheduling.bounds.one_worker import starts_after_backward
from recycle_compiler.scheduling.bounds.rounds import leaves, one_worker, returns
from recycle_compiler.scheduling.problem import UNLIMITED, Ints, Problem
from recycle_compiler.scheduling.ways import head, round_trip, rounds_on, up

_PASSES = 2
"""Passes over the F that memory holds back: in each, their backwards return and make room for others."""


class Earliest(NamedTuple):
    """The earliest start of the first, second ... op of each kind."""

    forward: Ints
    backward: Ints
    weight: Ints


class _Idle(NamedTuple):
    """For a row of moments: the most work that can be done by then, and the least idle time of the pool."""

    done: Ints
    idle: Ints


class BothEnds(NamedTuple):
    name: str = "both ends"
    claim: str = "all workers of a stage wait for work at the start, and have too little left at the end"

    def span(self, problem: Problem, stage: int) -> int:
        return -(-(_work(problem, stage) + sum(pooled_idle(problem, stage))) // len(problem.hosts[stage]))

    def terms(self, problem: Problem, stage: int) -> tuple[SpanTerm, ...]:
        live = len(problem.hosts[stage])
        at_start, at_end = pooled_idle(problem, stage)
        work = _work(problem, stage)
        # Rounded up one after another, so that they add up to the whole rounded up.
        sums = [-(-ticks // live) for ticks in (work, work + at_start, work + at_start + at_end)]
        shared = "" if live == 1 else f", shared by {live} workers"
        return (
            work_term(problem, stage, problem.units, shared)._replace(ticks=sums[0]),
            SpanTerm(
                sums[1] - sums[0], "idle at the start, for want of work that has arrived or fits memory"
            ),
            SpanTerm(sums[2] - sums[1], "idle at the end, for want of work that can be left until then"),
            *ends_of_window(problem, stage, stage),
        )


def pooled_idle(problem: Problem, stage: int) -> tuple[int, int]:
    """Least idle time of all live workers together, at the start and at the end of the stage's window.

    Where one end alone says more than both together, the other counts nothing.
    """
    live, times = len(problem.hosts[stage]), times_of(problem, stage)
    at_start, at_end = starts_of_ops(problem, stage), ends_of_ops(problem, stage, leaves(problem, stage))
    return least_idle(_work(problem, stage), live, times, at_start, at_end)


def least_idle(
    work: int, machines: int, times: tuple[int, int, int], at_start: Earliest, at_end: Earliest
) -> tuple[int, int]:
    """Least idle time of so many machines together, at the start and at the end of all this work."""
    ends = [_idle_by(machines, times, ops) for ops in (at_start, at_end)]
    # A moment by which not all work can be done lies within the window; two such moments, counted from both
    # ends, do not overlap if both halves together cannot hold all work.
    alone = [int(end.idle[end.done < work].max(initial=0)) for end in ends]
    both = [int(end.idle[end.done * 2 < work].max(initial=0)) for end in ends]
    return max((both[0], both[1]), (alone[0], 0), (0, alone[1]), key=sum)


def starts_of_ops(problem: Problem, stage: int, together: int = 1) -> Earliest:
    """Time runs from the start of the stage's first F; at least so many backwards are `together` at first."""
    here = problem.backward[stage]
    trip = problem.forward[stage] + round_trip(problem, stage)
    backward = np.maximum(returns(problem, stage), returns(problem, stage)[together - 1])
    rounds = _rounds_by_memory(problem, stage)
    forward = np.zeros(problem.units, dtype=np.int64)
    for earlier, way in rounds:
        soonest = int(backward[0]) + here + way - problem.backward[earlier]
        forward = np.maximum(forward, _beyond_memory(problem, earlier, soonest))
    for _ in range(_PASSES):
        weight = backward + here
        for earlier, way in rounds:
            room = _when_room(problem, earlier, weight)
            forward = np.maximum(forward, np.where(room > 0, room + way, 0))
        backward = np.maximum(backward, forward + trip)
    return Earliest(forward, backward, backward + here)


def ends_of_ops(problem: Problem, stage: int, backward: Ints) -> Earliest:
    """Time runs backwards from the latest end that the stage's window allows: what lies between that and the
    end of the last, last but one ... backward is known."""
    here = problem.backward[stage]
    soonest = int(backward[0])
    forward = soonest + rounds_on(problem, stage) * (problem.forward[stage] + here) - problem.forward[stage]
    trip = 0
    ways: list[_Way] = []
    for later in range(stage + 1, problem.chunks):
        both = problem.forward[later] + problem.backward[later]
        path = up(problem, later, stage) + head(problem, stage, later) - problem.forward[stage]
        ways.append(_Way(later, soonest + here + path, both))
        trip = path + both
    ways += _ways_behind(problem, stage, soonest + here + trip)
    forward = np.maximum(_after_ways(problem, forward, ways), backward + here + trip)
    weight = _when_deferred(problem, stage, forward + problem.forward[stage])
    return Earliest(forward, backward, weight)


def _ways_behind(problem: Problem, stage: int, trip: int) -> list["_Way"]:
    """From here on, every stage lets micro-batches pass in rounds on the way down and on the way back.

    Those of the last round make the whole trip, behind the F or the backwards of the others.
    """
    steps = np.maximum(problem.forward, problem.backward).tolist()
    return [_Way(later, trip - steps[later], steps[later]) for later in range(stage, problem.chunks)]


class _Way(NamedTuple):
    """Through another stage, which takes ops in rounds."""

    stage: int
    path: int
    """All but the time on that stage."""
    step: int
    """Ticks of a round on that stage."""


def _after_ways(problem: Problem, earliest: Ints, ways: list[_Way]) -> Ints:
    """No sooner than by any of these ways; of stages that are equally fast only the longest way counts."""
    longest: dict[tuple[int, int], _Way] = {}
    for way in ways:
        kind = (len(problem.hosts[way.stage]), way.step)
        if kind not in longest or way.path > longest[kind].path:
            longest[kind] = way
    for way in longest.values():
        earliest = np.maximum(earliest, way.path + rounds_on(problem, way.stage) * way.step)
    return earliest


def _rounds_by_memory(problem: Problem, stage: int) -> list[tuple[int, int]]:
    """This stage and earlier ones where memory is limited, and the time from a W that could start here to the
    F that its room there allows.

    Of stages that are alike, only the one with the longest such time.
    """
    longest: dict[tuple[int, ...], tuple[int, int]] = {}
    for earlier in range(stage + 1):
        live = len(problem.hosts[earlier])
        if problem.holdable(earlier) * live >= problem.units:
            continue
        back = 0 if earlier == stage else up(problem, stage, earlier) + problem.backward[earlier]
        way = back + head(problem, earlier, stage)
        facts = (
            *(problem.forward, problem.backward, problem.weight),
            *(problem.capacity, problem.activation, problem.kept),
        )
        kind = (live, *(fact[earlier] for fact in facts))
        if kind not in longest or way > longest[kind][1]:
            longest[kind] = (earlier, way)
    return list(longest.values())


def _beyond_memory(problem: Problem, stage: int, soonest: int) -> Ints:
    """Start of the first, second ... F of a stage that memory does not hold before the first backward.

    That one starts no sooner than said, and some worker has all its work in between to do.
    """
    starts = np.zeros(problem.units, dtype=np.int64)
    held = len(problem.hosts[stage]) * problem.holdable(stage)
    starts[held:] = soonest + starts_after_backward(
        one_worker(problem, stage), rounds_on(problem, stage)[held:]
    )
    return starts


def _when_room(problem: Problem, stage: int, backward_done: Ints) -> Ints:
    """Time at which memory has room for the first, second ... F of a stage, by the ends of its backwards."""
    capacity, whole, kept = problem.capacity[stage], problem.activation[stage], problem.kept[stage]
    if capacity == UNLIMITED or whole == 0:
        return np.zeros(problem.units, dtype=np.int64)
    live, held = len(problem.hosts[stage]), capacity // whole
    if live * held >= problem.units:
        return np.zeros(problem.units, dtype=np.int64)
    if kept == whole:
        # Every W makes room for one F.
        room = np.zeros(problem.units, dtype=np.int64)
        room[live * held :] = backward_done[: problem.units - live * held] + problem.weight[stage]
        return room
    # Workers hold whole activations only; if backward gives back a fraction of one, fractions may add up.
    total = min(live * (capacity if 0 < kept < whole else held * whole), whole * problem.units)
    times = np.concatenate([backward_done, backward_done + problem.weight[stage]])
    freed = np.repeat(np.array([whole - kept, kept], dtype=np.int64), problem.units)
    order = np.argsort(times, kind="stable")
    needed = whole * np.arange(1, problem.units + 1, dtype=np.int64) - total
    place = np.searchsorted(np.cumsum(freed[order]), np.maximum(needed, 1))
    room = times[order][np.minimum(place, len(times) - 1)]
    return np.where(np.arange(problem.units) < live * held, 0, np.maximum(room, backward_done[0]))


def _when_deferred(problem: Problem, stage: int, forward_done: Ints) -> Ints:
    """Backwards in time: when memory allows the last, last but one ... W, as F give it back.

    Before any F a worker has room for what it can hold together with the whole activation of its last
    backward; each F makes room for one more, the first of them for a little more than that.
    """
    capacity, whole, kept = problem.capacity[stage], problem.activation[stage], problem.kept[stage]
    if capacity == UNLIMITED or kept == 0:
        return np.zeros(problem.units, dtype=np.int64)
    most = 1 + (capacity - whole) // kept
    each = capacity // kept - most + 1
    beyond = np.arange(problem.units, dtype=np.int64) - len(problem.hosts[stage]) * most
    return np.where(beyond < 0, 0, forward_done[np.maximum(beyond, 0) // each])


def _work(problem: Problem, stage: int) -> int:
    """All work of the stage."""
    return problem.units * sum(times_of(problem, stage))


def _idle_by(machines: int, times: tuple[int, int, int], ops: Earliest) -> _Idle:
    """Work done, and idle time for certain, by every moment at which an op may start.

    An op starts no sooner than those before it, which not all arguments know.
    """
    ops = Earliest(*map(np.maximum.accumulate, ops))
    moments = np.unique(np.concatenate(ops))
    done = np.zeros_like(moments)
    for earliest, duration in zip(ops, times, strict=True):
        done += _work_by(moments, earliest, duration)
    return _Idle(done, machines * moments - done)


def _work_by(moments: Ints, earliest: Ints, duration: int) -> Ints:
    """The work of these ops that can be done by each moment."""
    total = np.concatenate([[0], np.cumsum(earliest)])
    begun = np.searchsorted(earliest, moments, side="right")
    ended = np.searchsorted(earliest, moments - duration, side="right")
    return begun * moments - total[begun] - (ended * (moments - duration) - total[ended])
