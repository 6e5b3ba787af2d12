"""Failures moved from stage to stage: as many as before, and schedules that are no longer."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.planner.climb_placements import Climb, between, blends, can_climb
from recycle_compiler.planner.placement import (
    NO_ROOM,
    measure_costs,
    place_ahead,
    place_failures,
    ranked_placements,
)
from recycle_compiler.scheduling.budget import Budget, Guard
from recycle_compiler.scheduling.search import Effort
from tests.compiler.test_sharded import sharded
from tests.support.jobs import SLOT, routed_problem, unit_job

AMPLE = Guard(10**15)
COUNTS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=8)


@given(COUNTS, st.integers(0, 7))
def test_between_two_placements_are_as_many_failures_as_that_asks_for(
    pairs: list[tuple[int, int]], part: int
) -> None:
    one, other = (tuple(column) for column in zip(*pairs, strict=True))
    found = between(one, other, part, 7)
    assert sum(found) == (sum(one) * (7 - part) + sum(other) * part) // 7
    assert all(min(a, b) <= count <= max(a, b) for a, b, count in zip(one, other, found, strict=True))


def test_blends_begin_and_end_with_what_they_blend() -> None:
    found = blends((3, 3, 2), (0, 8, 0))
    assert (found[0], found[-1]) == ((3, 3, 2), (0, 8, 0))
    assert {sum(counts) for counts in found} == {8}
    assert len(found) == len(set(found)) == 5


def uneven(pipelines: int) -> JobSpec:
    job = unit_job(4, pipelines, 12, capacity=5)
    weights = (10, 13, 9, 11)
    times = tuple(ticks * weight // 10 for ticks, weight in zip(job.forward, weights, strict=True))
    return replace(job, forward=times, backward_input=times, backward_weight=times, failures=pipelines)


def test_what_comes_of_it_is_no_longer_than_any_blend() -> None:
    job = uneven(16)
    healthy = routed_problem(job)
    assert can_climb(job, healthy)
    costs = measure_costs(job, 10, map, AMPLE)
    ((aim, least),) = place_failures(costs.bounds, 10, 1)
    begins = blends((3, 3, 2, 2), least)
    each = [Climb(job, healthy, aim, Budget(AMPLE)).best([counts], 0) for counts in begins]
    best = Climb(job, healthy, aim, Budget(AMPLE)).best(begins, 40)
    assert best is not None and sum(best.counts) == 10
    assert max(best.counts) < job.pipelines
    assert best.rank <= min(one.rank for one in each if one is not None)
    assert best == Climb(job, healthy, aim, Budget(AMPLE)).best(begins, 40)


def test_small_jobs_and_jobs_whose_pipelines_fail_as_a_whole_are_not_for_it() -> None:
    small = unit_job(2, 2, 4)
    assert not can_climb(small, routed_problem(small))
    job = uneven(16)
    stiff = replace(job, techniques=replace(job.techniques, adaptive=False))
    assert not can_climb(stiff, routed_problem(stiff))


def test_placements_made_ahead_are_begun_with() -> None:
    job = replace(uneven(16), failures=24)
    costs = measure_costs(job, 24, map, AMPLE)
    ahead = place_ahead(job, costs, 24, map, AMPLE)
    assert [sum(counts) for counts in ahead.placed] == list(range(0, 25, 2))
    # Processes are not done in the order in which they have begun.
    backwards = place_ahead(job, costs, 24, lambda run, tasks: map(run, [*tasks][::-1]), AMPLE)
    assert backwards.placed == ahead.placed
    ranked = ranked_placements(job, 13, ahead, Effort(), AMPLE)
    assert all(sum(counts) == 13 for counts, _ in ranked)
    # Few plans begin with blends: nothing is made ahead for them.
    assert place_ahead(job, costs, 23, map, AMPLE).placed == ()


def test_once_the_time_is_up_nothing_more_is_placed_by_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Placements are those between known ones, or those of bounds, where some are known or none."""
    job = replace(uneven(16), failures=24)
    costs = measure_costs(job, 24, map, AMPLE)
    ahead = place_ahead(job, costs, 24, map, AMPLE)
    monkeypatch.setattr(Climb, "best", None)
    over = Guard(-1)
    assert place_ahead(job, costs, 24, map, over).placed == ()
    for known in (costs, ahead, ahead._replace(placed=ahead.placed[:4])):
        for failures in (1, 13, 24):
            ((counts, bound),) = ranked_placements(job, failures, known, Effort(), over)
            assert sum(counts) == failures and bound < NO_ROOM
    assert ranked_placements(job, 6, ahead, Effort(), over)[0][0] == ahead.placed[3]


def test_known_placements_without_room_for_a_micro_batch_are_passed_over() -> None:
    job = replace(sharded(uneven(16), owners=4, state=8 * SLOT), failures=24)
    costs = measure_costs(job, 24, map, AMPLE)
    full = (15, 0, 0, 0)
    assert can_climb(job, costs.healthy) and place_failures(costs.bounds, 15, 1)[0][1] != full
    known = costs._replace(measured=costs.bounds, placed=((0, 0, 0, 0), full))
    for guard in (AMPLE, Guard(-1)):
        ranked = ranked_placements(job, 15, known, Effort(), guard)
        assert ranked and all(counts != full and bound < NO_ROOM for counts, bound in ranked)
