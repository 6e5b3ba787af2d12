"""One worker more is never slower, for jobs whose cuts are free."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.live_workers import Row, violations
from recycle_compiler.planner.recut import fastest_layout
from tests.support.layers import layer_costs, layered_job


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
