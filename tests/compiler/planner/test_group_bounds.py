"""Lower bounds of two groups of pipelines: compared with all of them, and with plans."""

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recycle_compiler.ir.groups import GroupedLayout, absent_of_groups, job_of_groups
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.planner.cut_bounds import ShareTable
from recycle_compiler.planner.group_bounds import TwoGroups, least_periods
from recycle_compiler.planner.layouts import Layouts
from tests.support.layers import jobs_and_groups, jobs_and_layouts, layer_costs, layered_job

FAR = 1 << 40


def of_all(job: JobSpec, workers: int) -> int:
    """The least over all sizes and shares of the slower group's bound over all cuts."""
    units = job.pipelines * job.microbatches

    def least(count: int, share: int) -> int:
        group = replace(
            job, pipelines=1, microbatches=share, redundancy=1, cut=(), layer_costs=job.layer_costs
        )
        return Layouts(group, count).least_period(count) or FAR

    pairs = ((count, share) for count in range(1, workers) for share in range(1, units))
    return min(
        (max(least(count, share), least(workers - count, units - share)) for count, share in pairs),
        default=FAR,
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs_and_layouts(), st.integers(2, 6))
def test_the_least_of_all_sizes_and_shares(drawn: tuple[JobSpec, Layout], workers: int) -> None:
    """Without reductions, whose length depends on both groups, it is exact."""
    job, _ = drawn
    assert job.layer_costs is not None
    job = replace(job, layer_costs=replace(job.layer_costs, reduce=(0,) * job.layer_costs.count))
    expected = of_all(job, workers)
    assert TwoGroups(job, workers).least_period(workers, 1, FAR) == expected


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs_and_groups())
def test_no_plan_of_two_groups_goes_below(drawn: tuple[JobSpec, GroupedLayout]) -> None:
    job, layout = drawn
    derived = job_of_groups(job, layout)
    claims = plan_failed(derived, absent_of_groups(derived, layout)).claims
    workers = sum(layout.workers)
    bound = TwoGroups(job, workers).least_period(workers, 1, FAR)
    assert bound <= claims.lower_bound <= claims.period


@settings(max_examples=60, deadline=None)
@given(jobs_and_layouts())
def test_a_longer_share_never_takes_less_time(drawn: tuple[JobSpec, Layout]) -> None:
    job, _ = drawn
    table = ShareTable(replace(job, microbatches=12))
    shares = np.arange(1, 12 * job.pipelines + 1)[None, :] + np.zeros_like(table.first)[:, None]
    for span in table.spans(shares):
        assert (np.diff(span, axis=1) >= 0).all()


def test_more_workers_are_never_slower_and_one_cut_counts_too() -> None:
    job = layered_job(layer_costs((1000,) * 4, reduce=300), (4,), 8, 2)
    one_cut = {failures: Layouts(job, 8).least_period(8 - failures) or FAR for failures in range(4)}
    both = least_periods(job, one_cut)
    assert all(both[failures] <= one_cut[failures] for failures in one_cut)
    assert list(both.values()) == sorted(both.values())
    # Eight workers share sixteen micro-batches evenly: no groups are faster.
    assert both[0] == one_cut[0]
    assert both[3] < one_cut[3]


def test_few_holders_sum_faster() -> None:
    """Two workers, one in each group, take half of what a very large ring takes."""
    job = layered_job(layer_costs((1000,) * 2, reduce=2000), (2,), 2, 1)
    assert TwoGroups(job, 2).least_period(2, 1, FAR) == 2 * 3000 + 2 * 2000 // 2
