"""From end to end of an iteration, over rounds through memory, for all workers of a stage together.

Any q micro-batches that are on one stage have to *return*: the q-th backward there starts no sooner than
every later stage has found time for q F, q backwards and the W without which its memory has no room for so
many F, and a round trip after those that pass any of these stages before it. An F beyond what memory holds
sets out when another micro-batch has returned, and returns after that: where a later stage is slower than
this one, such a round takes longer than a round trip.

The last q backwards have to *leave*: every earlier stage must still run q backwards and q W before its own
window closes, and the F of those that its memory does not hold.

So from the first F of the stage rounds lead to any later one, from there the rest has to return, and the last
ones to leave. All of it is a span that no schedule goes below.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from recycle_compiler.scheduling.bounds.bound import SpanTerm, ends_of_window, share_of, times_of, work_term
from recycle_compiler.scheduling.bounds.load import ramp_up
from recycle_compiler.scheduling.bounds.one_worker import OneWorker, forward_starts, round_after_round
from recycle_compiler.scheduling.problem import UNLIMITED, Ints, Problem
from recycle_compiler.scheduling.ways import ends_before, round_trip, rounds_on, up

_MIDDLES = 8
"""Splits tried of the last micro-batches, into those that still return and those that leave."""


class Rounds(NamedTuple):
    name: str = "rounds"
    claim: str = (
        "F wait for room in turn, the rest has to return, and the last ones to leave through earlier stages"
    )

    def span(self, problem: Problem, stage: int) -> int:
        return _longest(problem, stage).span

    def terms(self, problem: Problem, stage: int) -> tuple[SpanTerm, ...]:
        chain = _longest(problem, stage)
        setting_out = SpanTerm(
            chain.begun, f"until some worker has room for F number {chain.number + 1} of its own"
        )
        if chain.last is None:
            rest = work_term(problem, stage, -(-chain.left // len(problem.hosts[stage])))
            return setting_out, rest, *ends_of_window(problem, stage, stage)
        back = chain.left - chain.last
        name = "a micro-batch has" if back == 1 else f"{back} micro-batches have"
        passed = int(returns(problem, stage)[back - 1]) + problem.backward[stage]
        returned = SpanTerm(passed, f"until {name} come back and ended backward on stage {stage}")
        gone = int(leaves(problem, stage)[chain.last])
        for first in range(stage + 1) if chain.last == 0 else ():
            way_up = up(problem, stage, first) + problem.backward[first] * (first < stage)
            after = problem.weight[first]
            if way_up + after + ends_before(problem, first, stage) == gone:
                return (
                    setting_out,
                    returned,
                    SpanTerm(way_up, f"the last backward on its way up to stage {first}"),
                    SpanTerm(after, f"W of stage {first} after it"),
                    *ends_of_window(problem, stage, first),
                )
        leaving = SpanTerm(gone, f"until the last {chain.last + 1} have left through the earlier stages")
        return setting_out, returned, leaving, *ends_of_window(problem, stage, stage)


class _Chain(NamedTuple):
    """The longest way from the first op of a stage to the end of its last."""

    span: int
    number: int
    """F that some worker has begun by the time `begun`."""
    begun: int
    left: int
    """Micro-batches that have not set out by then."""
    last: int | None
    """Of them, those beside one that leave at the end; None where the work of a worker counts instead."""


def _longest(problem: Problem, stage: int) -> _Chain:
    """The chain that takes longest.

    When some worker starts its r-th F, at most r - 1 times the workers have set out before. The rest have to
    return, and the last ones to leave; or some worker has its share of their work to do.
    """
    live, units = len(problem.hosts[stage]), problem.units
    starts = _trips(problem)[stage].forward
    left = units - live * np.arange(len(starts), dtype=np.int64)
    back, gone = returns(problem, stage) + problem.backward[stage], leaves(problem, stage)
    spans = [-(-left // live) * sum(times_of(problem, stage))]
    lasts: list[Ints | None] = [None]
    for after in (0, *range(live, min(_MIDDLES * live, units - 1) + 1, live), units):
        last = np.minimum(after, left - 1)
        spans.append(back[left - 1 - last] + gone[last])
        lasts.append(last)
    table = starts + np.array(spans)
    choice, number = np.unravel_index(int(table.argmax()), table.shape)
    last = lasts[choice]
    return _Chain(
        int(table[choice, number]), int(number), int(starts[number]), int(left[number]),
        None if last is None else int(last[number]),
    )  # fmt: skip


def returns(problem: Problem, stage: int) -> Ints:
    """Of any q micro-batches: from the first F on this stage to the start of the q-th backward."""
    return _trips(problem)[stage].returns


def leaves(problem: Problem, stage: int) -> Ints:
    """From the end of the last, last but one ... backward of this stage to the latest end of its window."""
    return _leaves(problem)[stage]


class _Trip(NamedTuple):
    """Of any micro-batches, from their first F on a stage; others only take time and memory from them."""

    forward: Ints
    """The start of the first F that some worker has as its first, second, third ... one at least."""
    returns: Ints
    """The start of the first, second, third ... backward."""


@lru_cache(maxsize=4)
def _trips(problem: Problem) -> list[_Trip]:
    """For every stage, from the last one up.

    Micro-batches return on the next stage first, and have to find time on this one, where some worker has a
    share of them. What memory does not hold sets out when others have returned, and returns after that.
    """
    found: list[_Trip] = []
    for stage in reversed(range(problem.chunks)):
        live = len(problem.hosts[stage])
        alone = _trip_of_one(problem, stage)
        returns = alone.returns[rounds_on(problem, stage) - 1]
        if found:
            hop = problem.forward[stage] + 2 * problem.transfer[stage] + problem.backward[stage + 1]
            returns = np.maximum(returns, found[-1].returns + hop)
        held, freed = problem.holdable(stage), problem.backward[stage] + _then_weight(problem, stage)
        again = _set_out_again(alone.forward, returns[::live], held, freed)
        found.append(_Trip(again.forward, np.maximum(returns, again.returns[rounds_on(problem, stage) - 1])))
    return found[::-1]


def _set_out_again(forward: Ints, returns: Ints, held: int, freed: int) -> _Trip:
    """F number i + held of a worker waits for the room of a backward: the i-th of its kind that all have.

    `returns` says when the last of 1, 2, 3 ... returns, counted from the first that sets out; those that set
    out after others are such a row of their own.
    """
    forward, later = forward.copy(), returns.copy()
    size = len(forward)
    for first in range(0, size if held < size else 0, held):
        block = slice(first, min(first + held, size))
        if first > 0:
            room = later[first - held : block.stop - held] + freed
            forward[block] = np.maximum(forward[block], room)
        since = max(0, first - held)
        lag = np.arange(first, block.stop)[:, None] - np.arange(since, block.stop)[None, :]
        arrivals = np.where(lag >= 0, forward[since : block.stop] + returns[np.maximum(lag, 0)], 0)
        later[block] = np.maximum(later[block], arrivals.max(axis=1))
    return _Trip(forward, later)


def _then_weight(problem: Problem, stage: int) -> int:
    """The W that has to follow a backward before an F has room, where the backward alone gives too little."""
    capacity, whole, kept = problem.capacity[stage], problem.activation[stage], problem.kept[stage]
    if capacity == UNLIMITED or kept == 0 or capacity % whole >= kept:
        return 0
    return problem.weight[stage] if kept == whole or capacity < 2 * whole else 0


def _trip_of_one(problem: Problem, stage: int) -> _Trip:
    """On one worker: from its first F to the start of its first, second ... F and backward.

    Before backward r lie r F, r - 1 backwards, and the W without which memory has no room for the last of
    these F: beside a whole activation it holds only so many that wait for W. Before the first backward, which
    comes after a round trip, lie at most as many F as memory holds whole; all else comes after it.
    """
    forward, backward, weight = times_of(problem, stage)
    trip = round_trip(problem, stage)
    number = np.arange(1, share_of(problem, stage) + 1, dtype=np.int64)
    between = (number - 1) * backward
    held = problem.holdable(stage)
    if problem.capacity[stage] != UNLIMITED and problem.kept[stage] > 0:
        waiting = (problem.capacity[stage] - problem.activation[stage]) // problem.kept[stage]
        between = between + np.maximum(0, number - 1 - waiting) * weight
    behind = forward + trip + between + np.maximum(0, number - held) * forward
    returns = np.maximum(behind, number * forward + np.maximum(trip, between))
    if held >= len(number):
        return _Trip((number - 1) * forward, returns)
    starts = forward_starts(one_worker(problem, stage))
    return _Trip(starts, np.maximum(returns, starts + forward + trip))


def one_worker(problem: Problem, stage: int) -> OneWorker:
    """A worker with its share, by itself."""
    return OneWorker(
        share_of(problem, stage), *times_of(problem, stage),
        round_trip(problem, stage), ramp_up(problem, stage),
        problem.capacity[stage], problem.activation[stage], problem.kept[stage],
    )  # fmt: skip


@lru_cache(maxsize=4)
def _leaves(problem: Problem) -> list[Ints]:
    """For every stage: from the end of its last, last but one ... backward to the latest end of its window.

    Each of the last q has its W to come, here and on every earlier stage, whose window closes sooner; and
    where a worker has several of them, the last one has the whole way up.
    """
    found: list[Ints] = []
    for stage in range(problem.chunks):
        leaves = problem.weight[stage] + np.zeros(problem.units, dtype=np.int64)
        if found:
            sooner = problem.transfer[stage - 1] + ends_before(problem, stage - 1, stage)
            leaves = np.maximum(leaves, found[-1] + problem.backward[stage - 1] + sooner)
        alone = _leaves_from_one(problem, stage, int(leaves[0]))
        found.append(np.maximum(leaves, alone[rounds_on(problem, stage) - 1]))
    return found


def _leaves_from_one(problem: Problem, stage: int, soonest: int) -> Ints:
    """On one worker: from the end of its last, last but one ... backward to the latest end of the window.

    After the r-th but last backward lie r - 1 backwards, r W, and the F of all that memory does not hold
    whole as it starts. Those have a round trip to go, and as many backwards come after that. What lies after
    the last F of all is no more than what memory holds.
    """
    forward, backward, weight = times_of(problem, stage)
    number = np.arange(1, share_of(problem, stage) + 1, dtype=np.int64)
    between = (number - 1) * backward
    held = problem.holdable(stage)
    work = between + number * weight + np.maximum(0, number - held) * forward
    trip = round_trip(problem, stage)
    if held < len(number):
        after_last = backward + trip + soonest - outstanding(problem, stage, len(number), least=0)
        work = np.maximum(work, np.where(number > held, work + after_last, 0))
    return round_after_round(np.maximum(work, between + soonest), held, forward + trip + backward)


def outstanding(problem: Problem, stage: int, share: int, least: int = 1) -> int:
    """The most work that can be left when the last F of a worker has run.

    It has to be in memory: `least` micro-batches or more that wait for backward and W, and others that wait
    for W only.
    """
    both = problem.backward[stage] + problem.weight[stage]
    most = min(share, problem.holdable(stage))
    if problem.capacity[stage] == UNLIMITED or problem.kept[stage] == 0:
        return most * both + (share - most) * problem.weight[stage]
    waiting = np.arange(least, most + 1, dtype=np.int64)
    room = problem.capacity[stage] - waiting * problem.activation[stage]
    left = np.minimum(share - waiting, room // problem.kept[stage]) * problem.weight[stage]
    return int((waiting * both + left).max())
