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

The times are not a schedule: memory may not allow for them, and both ends of an iteration want something
else. As priorities they tell list scheduling who goes first where several micro-batches meet.
"""

from itertools import accumulate
from typing import NamedTuple

import numpy as np

from recycle_compiler.scheduling.pool_bounds import round_trip
from recycle_compiler.scheduling.problem import Ints, Problem


class _Offsets(NamedTuple):
    """Of one stage: how long after F its backward and its W start."""

    backward: int
    weight: int


def flow_priority(problem: Problem, in_turn: bool) -> Ints:
    """priority[kind, unit, chunk]: when the op would start.

    Pipelines set out in turn within a step, or all at once.
    """
    step = _step(problem)
    pipeline, turn = np.divmod(np.arange(problem.units), problem.microbatches)
    sets_out = step * (turn * problem.pipelines + (pipeline if in_turn else 0))
    hops = (f + ticks for f, ticks in zip(problem.forward, problem.transfer, strict=False))
    forward = np.array([0, *accumulate(hops)], dtype=np.int64)
    offsets = np.array(_offsets(problem, step), dtype=np.int64)
    times = np.stack([forward, forward + offsets[:, 0], forward + offsets[:, 1]])
    return times[:, None, :] + sets_out[None, :, None]


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
            way = problem.forward[chunk] + round_trip(problem, chunk) + problem.backward[chunk]
            held = problem.activation[chunk] * way + problem.kept[chunk] * problem.weight[chunk]
            least = max(least, held // (problem.capacity[chunk] * len(workers)))
    return least


def _offsets(problem: Problem, step: int) -> list[_Offsets]:
    """From the last chunk up: the soonest at which a backward can be there and finds its place."""
    found: list[_Offsets] = []
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
        start = begun * cycle + phase
        at_once = start % cycle <= cycle - backward - weight
        found.append(_Offsets(start, start + backward if at_once else (start // cycle + 1) * cycle + forward))
        if chunk:
            soonest = start + problem.forward[chunk - 1] + backward + 2 * problem.transfer[chunk - 1]
    return found[::-1]
