"""One worker more is never slower, for jobs whose cuts are free."""

from dataclasses import replace
from itertools import permutations
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.live_workers import Row, Side, violations
from bench.sums_in_a_row import has_none_beside
from recycle_compiler.ir.groups import GroupedLayout, absent_of_groups, job_of_groups
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.layout import Layout
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.planner.cut_bounds import FAR
from recycle_compiler.planner.recut import fastest_layout
from tests.support.layers import jobs_and_groups, layer_costs, layered_job


@st.composite
def jobs(draw: st.DrawFn) -> Any:
    """Of two stages, with layers of unlike length and room for two micro-batches or as many as there are."""
    forward = tuple(draw(st.lists(st.integers(500, 2000), min_size=3, max_size=7)))
    capacity = draw(st.sampled_from([None, 2000 * len(forward)]))
    costs = layer_costs(forward, capacity=capacity, optimizer=draw(st.sampled_from([0, 1500])))
    cut = (len(forward) // 2, len(forward) - len(forward) // 2)
    return layered_job(costs, cut, draw(st.integers(2, 4)), draw(st.integers(1, 4)))


@settings(max_examples=6, deadline=None)
@given(jobs())
def test_one_worker_more_is_never_slower_in_a_cut_on_demand(job: Any) -> None:
    periods: list[int] = []
    for workers in range(job.redundancy, job.workers + 1):
        found = fastest_layout(job, workers)
        if found is None:
            assert not periods, "more workers hold what fewer hold"
            continue
        layout, period = found
        assert sum(layout.workers) <= workers and period is not None
        periods.append(period)
    assert periods == sorted(periods, reverse=True)


def test_dips_are_named_and_those_that_bounds_explain_are_told_apart() -> None:
    even = [Row(8, 8.0, 8.0, 8.1), Row(7, 7.0, 7.0, 7.1)]
    assert not list(violations(even))
    slower = [Row(8, 6.9, 6.9, 8.1), Row(7, 7.0, 7.0, 7.1)]
    assert [(one.live, one.is_avoidable) for one in violations(slower)] == [(8, True), (8, True)]
    uneven = [Row(8, 8.0, 8.0, 8.1), Row(7, 6.5, 6.5, 6.6)]
    (dip,) = violations(uneven)
    assert dip.live == 7 and not dip.is_avoidable


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs_and_groups(), st.integers(0, 3000), st.integers(0, 300))
def test_sums_in_a_row_hold_for_plans_of_groups(
    drawn: tuple[JobSpec, GroupedLayout], reduce: int, transfer: int
) -> None:
    """Bounds of one layout beside another, and of any layout beside it, leave a plan that is there."""
    job, layout = drawn
    costs = job.layer_costs
    assert costs is not None
    transfers = (transfer,) * len(costs.transfer)
    costs = replace(costs, reduce=(reduce,) * costs.count, transfer=transfers)
    job = replace(job, layer_costs=costs, techniques=Techniques())
    derived = job_of_groups(job, layout)
    period = plan_failed(derived, absent_of_groups(derived, layout)).claims.period
    for (here, units), (beside, _) in permutations(zip(layout.groups, layout.shares, strict=True)):
        side = replace(job, pipelines=1, microbatches=units, redundancy=1, split_ppm=None)
        assert beside_bound(side, here, beside) <= period
        assert not has_none_beside(side, sum(here.workers), beside, period + 1)


def test_sums_in_a_row_refute_deep_groups_beside_shallow_ones() -> None:
    """Beside a single worker, each of six stages waits for the sums of all before it."""
    job = replace(layered_job(layer_costs((1000,) * 6, reduce=6000), (3, 3), 2, 6), pipelines=1)
    here, beside, alike = (Layout((6 // count,) * count, (1,) * count) for count in (6, 1, 6))
    work, sums, way = 6 * 3000, 3000, 5 * 1000
    # A window opens with the sums of all stages before, and the last backward still comes back.
    bound = beside_bound(job, here, beside)
    assert bound >= work + sums + (5 * sums - way)
    assert has_none_beside(job, 6, beside, work + sums + (5 * sums - way) // 2)
    # With the same borders on both sides nothing waits.
    assert beside_bound(job, here, alike) <= work + sums + way


def beside_bound(job: JobSpec, here: Layout, beside: Layout) -> int:
    return Side(job, sum(here.workers), FAR).bound(here, beside, FAR)
