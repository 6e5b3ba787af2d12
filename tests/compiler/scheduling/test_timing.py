"""From an order to times: earliest starts, and the shortest period of an order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.ir.target import Target
from recycle_compiler.scheduling.budget import Budget, Guard, Noise
from recycle_compiler.scheduling.local_search import construct
from recycle_compiler.scheduling.rules import greedy_priority, holdable, small_rules
from recycle_compiler.scheduling.timing import Clock, Opening
from tests.support.jobs import SLOT, routed_problem, small_targets, unit_job

AMPLE = Budget(Guard(10**15))


def test_pushing_windows_shortens_the_period() -> None:
    """Two stages, one micro-batch: started at once, stage 0 idles for the round trip and nothing can help."""
    clock = Clock(routed_problem(unit_job(2, 1, 1, optimizer=1)))
    timed = construct(clock, 0, 1, AMPLE)[0]
    assert timed.period == 6 * SLOT
    assert timed.start[:, 0, :].tolist() == [[0, SLOT], [3 * SLOT, 2 * SLOT], [4 * SLOT, 3 * SLOT]]


def test_an_order_that_waits_for_itself_is_refused() -> None:
    clock = Clock(routed_problem(unit_job(1, 1, 1)))
    backward_first = np.array([1, 0, 2], dtype=np.int64)
    with pytest.raises(AssertionError, match="wait for each other"):
        clock.time(backward_first)


@settings(max_examples=60)
@given(small_targets().filter(lambda target: all(target.hosts)))
def test_period_is_the_shortest_of_its_order(target: Target) -> None:
    """One grain less is refused, and the order read off the times is the order that was timed."""
    problem = routed_problem(target.job, target.failed)
    clock = Clock(problem)
    timed = construct(clock, 0, 3, AMPLE)[0]
    assert clock.time(timed.order, timed.period - problem.grain) is None
    again = clock.time(timed.order, timed.period)
    assert again is not None
    assert again.period == timed.period
    assert np.array_equal(clock.order_of(timed.start), timed.order)
    late = clock.latest(timed)
    assert (late[timed.start >= 0] >= timed.start[timed.start >= 0]).all()


@settings(max_examples=40)
@given(small_targets().filter(lambda target: all(target.hosts)), st.integers(0, 1000))
def test_windows_follow_from_what_each_pool_brings_about(target: Target, seed: int) -> None:
    """Asked pool by pool, as they are when the whole order is timed."""
    clock = Clock(routed_problem(target.job, target.failed))
    order = construct(clock, 0, 1, AMPLE)[0].order
    direct, asked = Opening(clock.loops, order, direct=10), Opening(clock.loops, order, direct=0)
    noise = Noise(seed)
    for _ in range(4):
        release = noise.integers(40 * SLOT, clock.problem.pools)
        for one, other in zip(direct.windows(release), asked.windows(release), strict=True):
            assert np.array_equal(one, other)


def test_rules_respect_memory() -> None:
    problem = routed_problem(unit_job(3, 1, 4, capacity=(3, 2, 1)))
    assert holdable(problem).tolist() == [3, 2, 1]
    assert all((rule.limit <= holdable(problem)).all() for rule in small_rules(problem))
    priority = greedy_priority(problem)
    assert priority[1].max() < priority[0].min() < priority[0].max() < priority[2].min()


def test_noise_repeats_and_stays_in_range() -> None:
    first, second = Noise(7), Noise(7)
    numbers = first.integers(10, 1000)
    assert np.array_equal(numbers, second.integers(10, 1000))
    assert set(numbers.tolist()) == set(range(10))
    assert Noise(8).integers(10, 5).tolist() != Noise(7).integers(10, 5).tolist()
    assert Noise(0).integers(1000, 4).tolist() == [
        Noise(0).below(1000),
        *Noise(0).integers(1000, 4).tolist()[1:],
    ]
