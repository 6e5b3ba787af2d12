"""Neighbours that change places: never a worse period, never too much memory, compiled or not."""

import numpy as np
import pytest
from hypothesis import given, settings

from recycle_compiler.ir.target import Target
from recycle_compiler.scheduling import loops
from recycle_compiler.scheduling.budget import Budget, Goal, Guard, Noise
from recycle_compiler.scheduling.exchanges import Placed, exchange, placed_in_order
from recycle_compiler.scheduling.local_search import construct
from recycle_compiler.scheduling.problem import UNLIMITED, Ints, Problem
from recycle_compiler.scheduling.timing import Clock
from tests.support.jobs import SLOT, routed_problem, small_targets, unit_job

AMPLE = Budget(Guard(10**15))
NOTHING_IS_ENOUGH = Goal(0, 0)


def test_a_weight_gives_way_to_what_others_wait_for() -> None:
    """The last stage runs its first W before its second backward, and the first stage ends a slot later."""
    clock = Clock(routed_problem(unit_job(2, 1, 2, capacity=(2, 2))))
    first = [0, 2, 4, 6, 8, 10]
    last = [1, 3, 5, 9, 7, 11]
    begin = _placed(clock, np.array(first + last, dtype=np.int64))
    shorter = begin.period - SLOT
    best = exchange(clock, begin, Goal(shorter, shorter), 1, Noise(0), AMPLE)
    assert best.period == begin.period - SLOT
    assert best.order.tolist()[6:] == [1, 3, 5, 7, 9, 11]


@settings(max_examples=60, deadline=None)
@given(small_targets().filter(lambda target: all(target.hosts)))
def test_orders_stay_whole_and_within_memory(target: Target) -> None:
    problem = routed_problem(target.job, target.failed)
    clock = Clock(problem)
    for timed in construct(clock, 0, 6, AMPLE)[-2:]:
        begin = _placed(clock, timed.order)
        best = exchange(clock, begin, NOTHING_IS_ENOUGH, 12, Noise(5), AMPLE)
        assert best.rank <= begin.rank
        assert best.period == clock.time_at_once(best.order).period
        assert sorted(best.order.tolist()) == sorted(begin.order.tolist())
        assert _most_held(problem, best.order, clock.loops.width) <= 0


def test_compiled_and_plain_loops_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = routed_problem(unit_job(4, 2, 6, capacity=(4, 4, 4, 4)))
    clock = Clock(problem)
    begin = _placed(clock, construct(clock, 0, 6, AMPLE)[-1].order)
    plain = exchange(clock, begin, NOTHING_IS_ENOUGH, 20, Noise(2), AMPLE)
    monkeypatch.setattr(loops.Sizes, "COMPILED", 0)
    compiled = exchange(Clock(problem), begin, NOTHING_IS_ENOUGH, 20, Noise(2), AMPLE)
    assert plain.order.tolist() == compiled.order.tolist()


def _placed(clock: Clock, order: Ints) -> Placed:
    placed = placed_in_order(clock, order, NOTHING_IS_ENOUGH)
    assert placed is not None
    return placed


def _most_held(problem: Problem, order: Ints, width: int) -> int:
    """The most that any worker holds beyond its capacity."""
    beyond = 0
    span = problem.units * problem.chunks
    for worker, row in enumerate(order.reshape(-1, width)):
        stage, held = worker // problem.pipelines, 0
        whole, kept = problem.activation[stage], problem.kept[stage]
        for op in row[row >= 0]:
            held += (whole, kept - whole, -kept)[int(op) // span]
            if problem.capacity[stage] != UNLIMITED:
                beyond = max(beyond, held - problem.capacity[stage])
    return beyond
