"""Bounds over all layouts, compared with the whole bounds of each of them."""

from collections.abc import Iterator
from itertools import combinations, product

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout
from recycle_compiler.planner.cut_bounds import FAR, layout_period
from recycle_compiler.planner.layout_bounds import AdmittedLayouts, layout_bound, raised_bound
from recycle_compiler.planner.layouts import Layouts
from recycle_compiler.scheduling.budget import Guard
from tests.support.layers import jobs_and_layouts


def every_layout(job: JobSpec, workers: int) -> Iterator[Layout]:
    """With so many workers or fewer."""
    assert job.layer_costs is not None
    layers, units = job.layer_costs.count, job.pipelines * job.microbatches
    for stages in range(1, layers + 1):
        for borders in combinations(range(1, layers), stages - 1):
            cut = tuple(end - first for first, end in zip((0, *borders), (*borders, layers), strict=True))
            for counts in product(range(job.redundancy, min(workers, units) + 1), repeat=stages):
                if sum(counts) <= workers:
                    yield Layout(cut, counts)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs_and_layouts(), st.integers(2, 6), st.integers(0, 40))
def test_it_is_the_least_of_all_whole_bounds(drawn: tuple[JobSpec, Layout], workers: int, above: int) -> None:
    job, _ = drawn
    layouts = Layouts(job, workers)
    least = layouts.least_period(workers)
    if least is None:
        return
    known = least + least * above // 100
    whole = {one: max(layout_period(job, one), layout_bound(job, one)) for one in every_layout(job, workers)}
    found = raised_bound(job, layouts, workers, least, known, 100, Guard(10**12))
    assert least <= found.period <= min(known, *whole.values(), FAR) or found.period == least
    assert found.period == max(least, min(known, *whole.values(), FAR))
    assert all(whole[layout] == bound < known for bound, layout in found.promising)
    proven = {layout: bound + 1 for bound, layout in found.promising[:2]}
    most = max(least, min(known, FAR, *(whole | proven).values()))
    assert found.period <= found.with_proven(proven) <= most
    # Of more, some are known by the bounds of single workers only.
    assert found.with_proven(proven) == most or len(found.promising) > 40


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs_and_layouts(), st.integers(2, 6), st.integers(0, 40))
def test_admitted_are_all_that_the_table_admits(
    drawn: tuple[JobSpec, Layout], workers: int, above: int
) -> None:
    job, _ = drawn
    layouts = Layouts(job, workers)
    least = layouts.least_period(workers)
    if least is None:
        return
    limit = least + least * above // 100
    admitted = AdmittedLayouts(layouts, limit, workers)
    expected = [one for one in every_layout(job, workers) if layouts.period(one) <= limit]
    assert sorted(map(str, admitted)) == sorted(map(str, expected))
    assert len(admitted) == len(expected)
