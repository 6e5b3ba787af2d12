"""Priorities after an even flow: micro-batches set out one after another at equal distances, like trains.

Where memory is so tight that a round trip decides how fast a stage can go, what counts is that a micro-batch
waits as little as possible on its whole way. Greedy rules look at one worker at a time. In an even flow every
micro-batch makes the same way, a step later than the one before it, so that a worker of stage s repeats
itself every (step x workers of s): its F, a backward and a W, at distances that are the same every time.

The step is a little more than the busiest stage, or the one with least memory, needs for one micro-batch.
From the last stage up, the time from F to backward is the shortest that leaves room for all three ops in such
a cycle:

    |F |  W  |   I   |F |  W  |   I   |      a W between F and the backward,
    |F |   I   |  W  |F |   I   |  W  |      or between the backward and the next F

The W that has room there need not be that of the backward beside it: W are deferred for as long as memory
allows. That makes room for F and backwards, above all early in an iteration, and leaves work for its end,
when little else is to do.

The times are not a schedule: memory may not allow for them, and both ends of an iteration want something
else. As priorities they tell list scheduling who goes first where several micro-batches meet.
"""

from itertools import accumulate

import numpy as np

from recycle_compiler.scheduling.inner_loops import BACKWARD
from recycle_compiler.scheduling.problem import UNLIMITED, Ints, Problem
from recycle_compiler.scheduling.ways import round_trip


def flow_priority(problem: Problem, in_turn: bool, deferral: int) -> Ints:
    """priority[kind, unit, chunk]: when the op would start.

    Pipelines set out in turn within a step, or all at once. W are deferred by so many percent of what memory
    allows.
    """
    step = _step(problem)
    pipeline, turn = np.divmod(np.arange(problem.units), problem.microbatches)
    sets_out = step * (turn * problem.pipelines + (pipeline if in_turn else 0))
    hops = (f + ticks for f, ticks in zip(problem.forward, problem.transfer, strict=False))
    forward = np.array([0, *accumulate(hops)], dtype=np.int64)
    backward = forward + _returns(problem, step)
    times = np.stack([forward, backward])[:, None, :] + sets_out[None, :, None]
    return with_weights(problem, times, deferral)


def with_weights(problem: Problem, start: Ints, deferral: int) -> Ints:
    """start[kind, unit, chunk] of F and backwards, and those of W: so many percent of the time later that
    memory allows."""
    ended = start[BACKWARD] + np.array(problem.backward, dtype=np.int64)
    return np.concatenate([start, (ended + _longest_delay(problem) * deferral // 100)[None]])


def _longest_delay(problem: Problem) -> Ints:
    """For how long the W of each chunk can wait after their backwards, in an even flow.

    Of its memory, F and backwards need as much as lies on the way round; what is left is for W.
    """
    cycles = flow_cycles(problem)
    delays: list[int] = []
    for chunk, cycle in enumerate(cycles.tolist()):
        longest = cycle * -(-problem.units // len(problem.hosts[chunk]))
        capacity, kept = problem.capacity[chunk], problem.kept[chunk]
        if capacity != UNLIMITED and kept > 0:
            left = capacity * cycle - problem.activation[chunk] * _way_round(problem, chunk)
            longest = max(0, min(longest, left // kept))
        delays.append(longest)
    return np.array(delays, dtype=np.int64)


def _way_round(problem: Problem, chunk: int) -> int:
    """From the start of an F to the end of its backward, without waits."""
    return problem.forward[chunk] + round_trip(problem, chunk) + problem.backward[chunk]


def flow_cycles(problem: Problem) -> Ints:
    """After how long a worker of each chunk repeats itself."""
    return _step(problem) * np.array([len(workers) for workers in problem.hosts], dtype=np.int64)


_SLACK = 102
"""Percent of the least step: what waits a little does not hold up all that comes after it."""


def _step(problem: Problem) -> int:
    return max(1, least_step(problem) * _SLACK // 100)


def least_step(problem: Problem) -> int:
    """Time for one micro-batch on the workers, or in the memory, that have least of it."""
    work = np.zeros(problem.pools, dtype=np.int64)
    np.add.at(work, list(problem.pool), np.sum((problem.forward, problem.backward, problem.weight), axis=0))
    live = np.array([len(workers) for workers in problem.pool_hosts], dtype=np.int64)
    least = int((-(-work // live)).max())
    for chunk, workers in enumerate(problem.hosts):
        if problem.capacity[chunk] > 0:
            way = problem.activation[chunk] * _way_round(problem, chunk)
            held = way + problem.kept[chunk] * problem.weight[chunk]
            least = max(least, held // (problem.capacity[chunk] * len(workers)))
    return least


def _returns(problem: Problem, step: int) -> Ints:
    """Ticks from the F of a chunk to its backward: until the backward has its input and its place."""
    found: list[int] = []
    soonest = problem.forward[-1]
    for chunk in reversed(range(problem.chunks)):
        forward, backward, weight = (
            times[chunk] for times in (problem.forward, problem.backward, problem.weight)
        )
        cycle = step * len(problem.hosts[chunk])
        begun, phase = divmod(soonest, cycle)
        if phase <= forward:
            phase = forward
        elif cycle - backward - weight < phase < forward + weight:
            phase = forward + weight
        elif phase > cycle - backward:
            phase = cycle + forward
        found.append(begun * cycle + phase)
        if chunk:
            soonest = found[-1] + problem.forward[chunk - 1] + backward + 2 * problem.transfer[chunk - 1]
    return np.array(found[::-1], dtype=np.int64)
