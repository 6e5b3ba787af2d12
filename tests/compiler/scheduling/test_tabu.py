"""Tabu search: its times are those of the whole order, memory holds, the best order is kept."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.ir.target import Target
from recycle_compiler.scheduling import loops
from recycle_compiler.scheduling.budget import Deadline
from recycle_compiler.scheduling.local_search import construct
from recycle_compiler.scheduling.loops import Searching
from recycle_compiler.scheduling.problem import UNLIMITED, Ints, Problem
from recycle_compiler.scheduling.timing import Clock
from tests.support.jobs import routed_problem, small_targets, unit_job

AMPLE = Deadline(10**15)


@settings(max_examples=100, deadline=None)
@given(
    small_targets().filter(lambda target: all(target.hosts)),
    st.integers(1, 12),
    st.integers(1, 30),
    st.integers(1, 12),
    st.integers(0, 3),
)
def test_it_is_timed_as_whole_orders_are(
    target: Target, reach: int, sample: int, tenure: int, seed: int
) -> None:
    problem = routed_problem(target.job, target.failed)
    clock = Clock(problem)
    begin = construct(clock, 0, 6, AMPLE)[-1]
    release = np.array(begin.release, dtype=np.int64)
    deadline = clock.deadlines_of(begin, clock.floor)
    searching = Searching(3_000, 0, reach, sample, tenure, seed)
    order, worst, _ = clock.loops.searched(begin.order, release, deadline, searching)
    assert worst == _latest(clock, order, release, deadline)
    assert worst <= _latest(clock, begin.order, release, deadline)
    width = clock.loops.width
    rows = zip(order.reshape(-1, width), begin.order.reshape(-1, width), strict=True)
    assert all(sorted(after.tolist()) == sorted(before.tolist()) for after, before in rows)
    assert _fits(problem, order, width)


def test_compiled_and_plain_loops_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = routed_problem(unit_job(4, 2, 6, capacity=(4, 4, 4, 4)))
    clock = Clock(problem)
    begin = construct(clock, 0, 6, AMPLE)[-1]
    release = np.array(begin.release, dtype=np.int64)
    deadline = clock.deadlines_of(begin, clock.floor)
    searching = Searching(20_000, 0, seed=5)
    plain = clock.loops.searched(begin.order, release, deadline, searching)
    monkeypatch.setattr(loops, "LARGE", 0)
    compiled = Clock(problem).loops.searched(begin.order, release, deadline, searching)
    assert (plain[0] == compiled[0]).all()
    assert plain[1:] == compiled[1:]


def _latest(clock: Clock, order: Ints, release: Ints, deadline: Ints) -> int:
    """By how much the latest worker misses its deadline."""
    rows = order.reshape(-1, clock.loops.width)
    last = np.array([row[row >= 0][-1] if (row >= 0).any() else -1 for row in rows])
    end = clock.loops.earliest(order, release)
    over = end[last] - deadline[clock.loops.pool_of]
    return int(over[last >= 0].max())


def _fits(problem: Problem, order: Ints, width: int) -> bool:
    """Whether every worker has room for what it holds, at every op."""
    tasks = problem.tasks
    for row, capacity in zip(order.reshape(-1, width), problem.worker_capacity, strict=True):
        held = 0
        for op in row[row >= 0].tolist():
            if tasks.takes[op] and capacity != UNLIMITED and held + tasks.takes[op] > capacity:
                return False
            held += int(tasks.takes[op] - tasks.frees[op])
    return True
