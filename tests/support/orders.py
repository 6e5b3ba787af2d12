"""Orders of ops to begin with, and what a search among orders must keep."""

from typing import NamedTuple

import numpy as np

from recycle_compiler.scheduling.budget import Budget, Guard
from recycle_compiler.scheduling.local_search import construct
from recycle_compiler.scheduling.problem import UNLIMITED, Ints, Problem
from recycle_compiler.scheduling.timing import Clock

AMPLE = Budget(Guard(10**15))


class Begin(NamedTuple):
    """An order, when its pools open, and by when they have to end for the least period there may be."""

    clock: Clock
    order: Ints
    release: Ints
    deadline: Ints

    def misses(self, order: Ints) -> Ints:
        """By how much the workers that have ops miss their deadlines when the whole order is timed."""
        loops = self.clock.loops
        timed = loops.timed(order, self.release)
        assert timed is not None
        return (timed[1] - self.deadline[loops.pool_of])[order[:: loops.width] >= 0]

    def assert_only_places_change(self, order: Ints) -> None:
        """Every worker has the ops that it had, and room for what it holds at each of them."""
        width = self.clock.loops.width
        rows = zip(order.reshape(-1, width), self.order.reshape(-1, width), strict=True)
        assert all(sorted(after.tolist()) == sorted(before.tolist()) for after, before in rows)
        problem = self.clock.problem
        for row, capacity in zip(order.reshape(-1, width), problem.worker_capacity, strict=True):
            held = 0
            for op in row[row >= 0].tolist():
                takes, frees = int(problem.tasks.takes[op]), int(problem.tasks.frees[op])
                assert takes == 0 or capacity == UNLIMITED or held + takes <= capacity
                held += takes - frees


def constructed(problem: Problem) -> Begin:
    """The last of some schedules by rules, with the deadlines of its floor."""
    clock = Clock(problem)
    timed = construct(clock, 0, 6, AMPLE)[-1]
    release = np.array(timed.release, dtype=np.int64)
    return Begin(clock, timed.order, release, clock.deadlines_of(timed, clock.floor))
