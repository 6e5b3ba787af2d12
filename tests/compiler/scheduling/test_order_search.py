"""Ops that move one at a time: their times are those of the whole order, memory holds, nothing gets worse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.ir.target import Target
from recycle_compiler.scheduling import loops
from recycle_compiler.scheduling.budget import Goal, Noise
from recycle_compiler.scheduling.loops import MoveBudget
from recycle_compiler.scheduling.moves import heap_in, heap_out
from recycle_compiler.scheduling.order_search import reorder
from recycle_compiler.scheduling.problem import Ints
from recycle_compiler.scheduling.timing import Clock
from tests.support.jobs import SLOT, routed_problem, small_targets, unit_job
from tests.support.orders import AMPLE, Begin, constructed


def test_a_weight_gives_way_to_what_others_wait_for() -> None:
    """The last stage runs its first W before its second backward, and the first stage ends a slot later."""
    clock = Clock(routed_problem(unit_job(2, 1, 2, capacity=(2, 2))))
    order = np.array([0, 2, 4, 6, 8, 10, 1, 3, 5, 9, 7, 11], dtype=np.int64)
    begin = clock.time(order)
    assert begin is not None
    shorter = begin.period - SLOT
    assert reorder(clock, order, Goal(shorter, shorter), Noise(0), AMPLE).period == shorter


@settings(max_examples=60, deadline=None)
@given(
    small_targets().filter(lambda target: all(target.hosts)),
    st.integers(0, 300),
    st.integers(1, 6),
    st.integers(0, 3),
)
def test_moves_are_timed_as_whole_orders_are(target: Target, warmth: int, reach: int, seed: int) -> None:
    begin = constructed(routed_problem(target.job, target.failed))
    mean = int(begin.clock.loops.duration.mean())
    moving = MoveBudget(2_000, 0, mean * warmth // 100, 50, reach, seed)
    order, late, timed = begin.clock.loops.moved(*begin[1:], moving)
    assert late == _late(begin, order)
    assert late <= _late(begin, begin.order)
    assert late == 0 or timed > 0
    begin.assert_only_places_change(order)


@pytest.mark.parametrize("seed", [0, 5, 1 << 29, 100, 101])
def test_compiled_and_plain_loops_agree(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    begin = constructed(routed_problem(unit_job(4, 2, 6, capacity=(4, 4, 4, 4))))
    moving = MoveBudget(5_000, 0, SLOT, 100, seed=seed)
    plain, late, timed = begin.clock.loops.moved(*begin[1:], moving)
    monkeypatch.setattr(loops.Sizes, "COMPILED", 0)
    compiled = Clock(begin.clock.problem).loops.moved(*begin[1:], moving)
    assert (plain.tolist(), late, timed) == (compiled[0].tolist(), *compiled[1:])


@given(st.lists(st.integers(0, 1 << 60)))
def test_a_heap_gives_the_least_first(keys: list[int]) -> None:
    heap = [0] * len(keys)
    for count, key in enumerate(keys):
        heap_in(heap, count, key)
    assert [heap_out(heap, count) for count in range(len(keys), 0, -1)] == sorted(keys)


def _late(begin: Begin, order: Ints) -> int:
    """By how much workers miss their deadlines together."""
    return int(np.maximum(0, begin.misses(order)).sum())
