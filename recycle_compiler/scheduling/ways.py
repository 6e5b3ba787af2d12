"""The ways that micro-batches have through the stages, without waits: what all bounds are made of."""

from functools import lru_cache

import numpy as np

from recycle_compiler.scheduling.problem import Ints, Problem


@lru_cache(maxsize=4)
def ways_from_first(problem: Problem) -> tuple[list[int], list[int]]:
    """From stage 0 to each: F and transfers, backwards and transfers."""
    down, way_up = [0], [0]
    for stage in range(problem.chunks - 1):
        down.append(down[-1] + problem.forward[stage] + problem.transfer[stage])
        way_up.append(way_up[-1] + problem.backward[stage] + problem.transfer[stage])
    return down, way_up


def head(problem: Problem, first: int, stage: int) -> int:
    """From the start of an F on stage `first` to its earliest arrival on `stage`."""
    down, _ = ways_from_first(problem)
    return down[stage] - down[first]


def up(problem: Problem, stage: int, earlier: int) -> int:
    """From the end of a backward on `stage` to its earliest start on an earlier one."""
    if stage == earlier:
        return 0
    _, way_up = ways_from_first(problem)
    return way_up[stage] - way_up[earlier] - problem.backward[earlier]


def round_trip(problem: Problem, stage: int) -> int:
    """From the end of an F on this stage to the earliest start of its backward."""
    down, way_up = ways_from_first(problem)
    last = problem.chunks - 1
    there = down[last] - down[stage] + problem.forward[last] - problem.forward[stage]
    return there + way_up[last] - way_up[stage] + problem.backward[last] - problem.backward[stage]


def rounds_on(problem: Problem, stage: int) -> Ints:
    """For the first q ops of a kind: how many of them some worker of the stage has at least."""
    return _rounds(problem.units, len(problem.hosts[stage]))


@lru_cache(maxsize=64)
def _rounds(units: int, live: int) -> Ints:
    rounds = np.arange(units, dtype=np.int64) // live + 1
    rounds.flags.writeable = False
    return rounds


def ends_before(problem: Problem, earlier: int, stage: int) -> int:
    """By how much the window of an earlier stage closes before this one's, at least."""
    if not problem.staggered:
        return 0
    return head(problem, earlier, stage) + problem.closes(earlier) - problem.closes(stage)
