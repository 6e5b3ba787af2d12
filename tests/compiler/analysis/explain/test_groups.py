"""Reasons for a plan in groups of pipelines, and where the time of such a plan goes."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from recycle_compiler.analysis.explain.groups import GroupFacts, group_facts
from recycle_compiler.analysis.explain.report import Explanation, explain, in_group
from recycle_compiler.analysis.explain.text import explanation_text
from recycle_compiler.analysis.explain.timeline import ApartError, timeline_of
from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.groups import GroupedLayout, absent_of_groups, job_of_groups, parse_any_layout
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.library import CompiledBundle, read
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.search import Effort
from tests.compiler.analysis.explain.test_critical_path import fills
from tests.support.grouped import FIVE, write_grouped
from tests.support.layers import jobs_and_groups, layer_costs, layered_job


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> CompiledBundle:
    return read(write_grouped(tmp_path_factory.mktemp("grouped"))[1])


def planned(job: JobSpec, layout: GroupedLayout) -> Schedule:
    derived = job_of_groups(job, layout)
    return replay(plan_failed(derived, absent_of_groups(derived, layout), effort=Effort().quick()))


def in_groups(text: str, **costs: int) -> Schedule:
    layout = parse_any_layout(text)
    assert isinstance(layout, GroupedLayout)
    every = layer_costs((1000,) * sum(layout.groups[0].layers), **costs)
    units = sum(layout.shares)
    return planned(layered_job(every, (sum(layout.groups[0].layers),), 2, units // 2), layout)


def facts_of(bundle: CompiledBundle, failures: int) -> tuple[Explanation, GroupFacts]:
    schedule = bundle[failures].schedule
    facts = group_facts(bundle.bundle, bundle.job, schedule, failures)
    assert facts is not None
    return explain(schedule, "none", facts), facts


def test_what_the_groups_gain(bundle: CompiledBundle) -> None:
    explanation, facts = facts_of(bundle, 3)
    assert str(facts.layout) == FIVE and facts.workers == 5
    assert facts.one_cut is not None and facts.one_cut.period == 48_000
    assert facts.bound_one_cut == 48_000 > explanation.schedule.claims.period == 42_000
    assert 0 < facts.bound_two_groups <= 42_000
    assert [(group.workers, group.share, group.bound) for group in facts.groups] == [
        (4, 13, 42_000),
        (1, 3, 36_000),
    ]
    assert (facts.binding, explanation.group, explanation.bottleneck) == (0, 0, 0)
    assert facts.fewer is not None and facts.fewer.period == 36_000


def test_what_other_shares_and_one_worker_more_would_do(bundle: CompiledBundle) -> None:
    _, facts = facts_of(bundle, 3)
    assert [(move.source, move.target, move.layout.shares, move.bound) for move in facts.moves] == [
        (0, 1, (12, 4), 48_000),
        (1, 0, (14, 2), 42_000),
    ]
    best = facts.one_more[0]
    # Two workers with all layers take five micro-batches in 36 slots, and so do the others eleven.
    assert (best.group, best.stage, best.layout.shares, best.bound) == (1, 2, (11, 5), 36_000)
    assert facts.one_more_one_cut == 36_000
    assert facts.one_more_two_groups is not None and 30_000 <= facts.one_more_two_groups <= 36_000


def test_in_words(bundle: CompiledBundle) -> None:
    explanation, _ = facts_of(bundle, 3)
    told = explanation_text(explanation)
    for line in (
        "period 42 slots, optimal: no plan of these groups and shares is faster",
        "bottleneck: stage 0 in group 0",
        "binding bound: load of stage 0 in group 0, 42 slots",
        f"why two groups: {FIVE} (layers x workers",
        "4x5, takes 48 slots: 12.5 % slower",
        "no plan for 5 workers with every layer on 2 or more, under one cut, is faster than 48 slots; this "
        "plan is 14.3 % faster",
        "group 0 binds: 13 micro-batches on 4 workers take at least 42 slots",
        "3.2 micro-batches for each worker would be even; there are 3.2 in group 0, 3.0 in group 1",
        "one micro-batch of group 0 in group 1 would raise the bound of 42 slots to 48 slots",
        "one micro-batch of group 1 in group 0 would leave the bound of 42 slots as it is",
        "no plan of two groups for 5 workers is faster than 39 slots; this plan takes 7.7 % longer",
        "one worker more would buy at most 27.3 % faster, with the best of all cuts with every layer on 2 "
        "or more or two groups",
        "in group 1 on stage 2, with 11 and 5 micro-batches: bound 36 slots",
        "with 2 failures the bundle takes 36 slots, under 4x6",
        "sums: the stage was done, and another group that sums with it was not",
    ):
        assert line in told


def test_one_failure_fewer_may_be_in_groups(bundle: CompiledBundle) -> None:
    """Of a plan under one cut, what is told of the next."""
    schedule = bundle[1].schedule
    assert schedule.job.groups
    facts = group_facts(bundle.bundle, bundle.job, schedule, 1)
    assert facts is not None and facts.fewer is not None and facts.fewer.failures == 0


def test_a_bound_of_the_second_group() -> None:
    schedule = in_groups("3x2,3x2@4+2x1,4x1@4")
    group, claims = in_group(schedule.job, schedule.claims)
    assert group == 1 and claims.reason == "load of stage 1"
    told = explain(schedule, "none")
    assert (told.bottleneck, told.group, told.binding.period) == (3, 1, schedule.claims.lower_bound)
    assert "stages are counted within the group here: its stage 0 is stage 2 of the plan" in explanation_text(
        told
    )


def test_who_ends_later_decides_when_others_step() -> None:
    """A worker with all layers ends after all others, who wait for the sums with it."""
    schedule = in_groups("3x2,3x2@4+6x1@4", reduce=400, optimizer=100)
    *first, alone = timeline_of(schedule).stages.waits_for
    assert (2,) in first and alone == (2,)
    told = explain(schedule, "none")
    assert told.times[0].sums + told.times[1].sums > 0 == told.times[2].sums
    assert fills(told.path, schedule.claims.period)


def test_ops_that_are_apart_are_refused() -> None:
    schedule = in_groups("3x2,3x2@6+6x1@2")
    ops = schedule.ops
    last = (ops.worker // schedule.job.pipelines == 2) & (ops.kind == OpKind.W) & (ops.chunk == 0)
    start = schedule.start.copy()
    start[last.nonzero()[0][-1]] += 1
    with pytest.raises(ApartError):
        timeline_of(replace(schedule, start=start))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs_and_groups())
def test_all_time_is_accounted_for(drawn: tuple[JobSpec, GroupedLayout]) -> None:
    """`idle_times` asserts that its parts add up; the path is one period long."""
    schedule = planned(*drawn)
    told = explain(schedule, "none")
    assert fills(told.path, schedule.claims.period)
    assert told.binding.period == schedule.claims.lower_bound
    assert sum(part.ticks for part in told.binding.parts) in (0, told.binding.period)
    compute = schedule.ops.duration[schedule.is_compute].sum()
    assert sum(time.compute for time in told.times) == compute
    assert explanation_text(told)


def test_what_if() -> None:
    """Changes are planned in the same groups."""
    layout = parse_any_layout("3x2,3x2@6+6x1@2")
    assert isinstance(layout, GroupedLayout)
    job = layered_job(layer_costs((1000,) * 6, resident=0, capacity=6000, transfer=300), (6,), 2, 4)
    told = explain(planned(job, layout), "plans")
    assert all(outcome.lower_bound <= (outcome.period or 0) for outcome in told.what_if.outcomes)
    assert explain(planned(job, layout), "bounds").what_if.mode == "bounds"
