"""Tabu search: its times are those of the whole order, memory holds, the best order is kept."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.ir.target import Target
from recycle_compiler.scheduling import loops
from recycle_compiler.scheduling.loops import Searching
from recycle_compiler.scheduling.timing import Clock
from tests.support.jobs import routed_problem, small_targets, unit_job
from tests.support.orders import constructed


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
    begin = constructed(routed_problem(target.job, target.failed))
    searching = Searching(3_000, 0, reach, sample, tenure, seed)
    order, worst, _ = begin.clock.loops.searched(*begin[1:], searching)
    assert worst == begin.misses(order).max()
    assert worst <= begin.misses(begin.order).max()
    begin.assert_only_places_change(order)


@pytest.mark.parametrize("seed", [0, 5, 1 << 29, 100, 101])
def test_compiled_and_plain_loops_agree(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    begin = constructed(routed_problem(unit_job(4, 2, 6, capacity=(4, 4, 4, 4))))
    searching = Searching(5_000, 0, seed=seed)
    plain, late, timed = begin.clock.loops.searched(*begin[1:], searching)
    monkeypatch.setattr(loops.Sizes, "COMPILED", 0)
    compiled = Clock(begin.clock.problem).loops.searched(*begin[1:], searching)
    assert (plain.tolist(), late, timed) == (compiled[0].tolist(), *compiled[1:])
