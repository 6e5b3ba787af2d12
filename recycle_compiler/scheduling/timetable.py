"""Routes and times after a timetable: micro-batches are given their trips one by one, like trains.

Where memory is tight and transfers are long, what counts is that a micro-batch waits as little as possible on
its way through all stages and back. Rules look at one worker at a time, and routes in turn make the backward
of one micro-batch meet the F of another again and again. But a stage may give a micro-batch to any of its
workers, and there is mostly one that is idle both when the F arrives and when its backward will be back:

    worker 0  |F1|      |  I1  |F4|              micro-batch 5 arrives at the arrow: on worker 0 its backward
    worker 1     |F2|        |  I2  |            would meet F4, on worker 1 nothing is in its way
                ^

So micro-batches set out at equal distances, and each in turn gets a worker on every stage, and times for its
F and its backward, between those of all before it. On each stage that worker is taken on which it waits
least, as far as that can be known: how long it will take to come back is first what it would take alone, and
then, in a second try, what the first one came to. W have no place in it. They fill what is left when list
scheduling goes by these times.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from recycle_compiler.compiled import compile_function
from recycle_compiler.scheduling.flow import least_step, with_weights
from recycle_compiler.scheduling.inner_loops import FAR
from recycle_compiler.scheduling.problem import Ints, Problem, rerouted
from recycle_compiler.scheduling.routes import is_dealt_in_turn
from recycle_compiler.scheduling.rules import holdable
from recycle_compiler.scheduling.ways import round_trip

_AHEAD = 8
"""By how many micro-batches a worker may be ahead of another of its stage."""
_MOST = 4_000_000
"""Micro-batches times workers: every worker of a stage is looked at for every micro-batch."""


class Timetable(NamedTuple):
    """Trips of all micro-batches."""

    problem: Problem
    """With the routes that were chosen."""
    start: Ints
    """start[kind, unit, chunk] of F and backwards."""

    def priority(self, deferral: int) -> Ints:
        """priority[kind, unit, chunk]: when ops should start. W are deferred by so many percent of the time
        that memory allows."""
        return with_weights(self.problem, self.start, deferral)


def can_have_timetable(problem: Problem) -> bool:
    """True if it is not too large, routes are the usual ones, which nobody else has chosen, and all
    micro-batches are alike."""
    if problem.units * sum(map(len, problem.hosts)) > _MOST or problem.has_more_edges or problem.opens:
        return False
    return is_dealt_in_turn(problem)


def timetable(problem: Problem, pace: int, period: int) -> Timetable:
    """All trips, one after the other; no worker takes more than it can do in such a period.

    `pace`: in thousandths of the least time that workers and memory need for each micro-batch. The next one
    sets out that much later, or when there is room for it.
    """
    forward, backward, weight, kept, activation = (
        np.array(column, dtype=np.int64)
        for column in (
            problem.forward, problem.backward, problem.weight, problem.kept, problem.activation
        )
    )  # fmt: skip
    live = np.array([len(hosts) for hosts in problem.hosts], dtype=np.int64)
    first = np.concatenate([[0], np.cumsum(live)])
    way_back = np.array([round_trip(problem, chunk) for chunk in range(problem.chunks)], dtype=np.int64)
    # Until W is done, as if it came at once after the backward.
    held = backward + weight * kept // np.maximum(1, activation)
    work = np.maximum(1, forward + backward + weight)
    share = -(-problem.units // live)
    quota = np.clip(
        (period - np.array(problem.pool_finish)[list(problem.pool)]) // work, share, share + _AHEAD + 1
    )
    pipeline, turn = np.divmod(np.arange(problem.units), problem.microbatches)
    order = np.lexsort((pipeline, turn))
    step = least_step(problem) * pace // 1000
    start, worker = _compiled()(
        order, step, forward, backward, np.array([*problem.transfer, 0], dtype=np.int64), way_back,
        held, first, quota, np.minimum(holdable(problem), quota), _AHEAD,
    )  # fmt: skip
    numbers = np.array([host for hosts in problem.hosts for host in hosts], dtype=np.int64)
    return Timetable(rerouted(problem, problem.hosts, numbers[worker]), start)


@cache
def _compiled() -> Any:
    return compile_function(make_trips, free_from=compile_function(free_from), take=compile_function(take))


def free_from(begins: Any, ends: Any, count: Any, time: int, length: int) -> int:
    """Earliest time, from `time` on, when a worker that is busy `count` times is idle for so long."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if ends[middle] <= time:
            low = middle + 1
        else:
            high = middle
    while low < count and begins[low] < time + length:
        time = max(time, ends[low])
        low += 1
    return time


def take(begins: Any, ends: Any, count: Any, time: int, length: int) -> None:
    """The worker is busy from then on, for so long; nothing else is in the way."""
    place = count
    while place > 0 and begins[place - 1] >= time:
        begins[place] = begins[place - 1]
        ends[place] = ends[place - 1]
        place -= 1
    begins[place] = time
    ends[place] = time + length


def make_trips(  # noqa: C901
    order: Any,
    step: int,
    forward: Any,
    backward: Any,
    transfer: Any,
    way_back: Any,
    held: Any,
    first: Any,
    quota: Any,
    most: Any,
    ahead: int,
) -> Any:
    """start[kind, unit, chunk] of all F and backwards, and the worker[unit, chunk] that runs them.

    One sets out every `step`. Workers are numbered by chunk: those of chunk c are from first[c] to before
    first[c + 1]. Each takes up to quota[c] micro-batches and holds up to most[c] at once, from the start of
    F until `held` after that of the backward.
    """
    chunks, units, workers = len(forward), len(order), first[-1]
    start = np.zeros((2, units, chunks), np.int64)
    host = np.zeros((units, chunks), np.int64)
    begins = np.zeros((workers, 2 * quota.max() + 2), np.int64)
    ends = np.zeros((workers, 2 * quota.max() + 2), np.int64)
    busy = np.zeros(workers, np.int64)
    taken = np.zeros(workers, np.int64)
    # The last times at which memory was given back, as many as fit into it: the first of them makes room.
    freed = np.zeros((workers, most.max()), np.int64)
    back = np.zeros(chunks, np.int64)
    trip, chosen = np.zeros((2, chunks), np.int64), np.zeros(chunks, np.int64)
    for turn in range(units):
        unit = order[turn]
        best = FAR
        back[:] = way_back
        for _ in range(2):
            time = turn * step
            for chunk in range(chunks):
                least = taken[first[chunk] : first[chunk + 1]].min()
                waits, ahead_by = FAR, 0
                for worker in range(first[chunk], first[chunk + 1]):
                    if taken[worker] >= quota[chunk] or taken[worker] > least + ahead:
                        continue
                    row, ended, count = begins[worker], ends[worker], busy[worker]
                    soonest = max(time, freed[worker, 0])
                    begin = free_from(row, ended, count, soonest, forward[chunk])
                    returns = begin + forward[chunk] + back[chunk]
                    again = free_from(row, ended, count, returns, backward[chunk])
                    wait = begin - time + again - returns
                    if wait < waits or (wait == waits and taken[worker] < ahead_by):
                        waits, ahead_by = wait, taken[worker]
                        chosen[chunk], trip[0, chunk] = worker, begin
                time = trip[0, chunk] + forward[chunk] + transfer[chunk]
            time -= transfer[chunks - 1]
            for chunk in range(chunks - 1, -1, -1):
                worker = chosen[chunk]
                back[chunk] = time - trip[0, chunk] - forward[chunk]
                begin = free_from(begins[worker], ends[worker], busy[worker], time, backward[chunk])
                trip[1, chunk] = begin
                # Above the first chunk there is nothing: the last transfer is 0.
                time = begin + backward[chunk] + transfer[chunk - 1]
            if time < best:
                best = time
                start[:, unit] = trip
                host[unit] = chosen
        for chunk in range(chunks):
            worker = host[unit, chunk]
            for kind, length in ((0, forward[chunk]), (1, backward[chunk])):
                take(begins[worker], ends[worker], busy[worker], start[kind, unit, chunk], length)
                busy[worker] += 1
            taken[worker] += 1
            free = start[1, unit, chunk] + held[chunk]
            # The first of them is no longer needed.
            place = 0
            while place + 1 < most[chunk] and freed[worker, place + 1] < free:
                freed[worker, place] = freed[worker, place + 1]
                place += 1
            if freed[worker, place] < free:
                freed[worker, place] = free
    return start, host
