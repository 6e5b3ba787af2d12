"""The dynamic program over layers and workers against all layouts, its bounds against those of graphs."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.layers import LayerCosts
from recycle_compiler.ir.layout import Layout, absent_cells, job_of_layout
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.planner.compile import compile_job
from recycle_compiler.planner.cut_bounds import FAR, layout_period
from recycle_compiler.planner.layout_bounds import layout_bound
from recycle_compiler.planner.layouts import Layouts
from recycle_compiler.planner.recut import (
    Ranked,
    above_steps,
    bytes_between,
    climbed,
    counts_with_layouts,
    fastest_recut,
    least_moved,
    neighbours,
    plan_recuts,
    regrouped,
)
from recycle_compiler.scheduling.bounds import lower_bound
from recycle_compiler.scheduling.budget import Guard
from recycle_compiler.scheduling.problem import problem_of
from tests.support.layers import costs_of_experts, layer_costs, layered_job

_FOREVER = 10**15


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    """Small jobs in layers of all kinds."""
    layers = draw(st.integers(2, 5))

    def column(least: int, most: int, count: int = layers) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(least, most), min_size=count, max_size=count)))

    activation = column(0, 3)
    kept = tuple(draw(st.integers(0, whole)) for whole in activation)
    resident = column(0, 2)
    whole = sum(activation) + sum(resident)
    costs = LayerCosts(
        forward=column(1, 4),
        backward_input=column(1, 4),
        backward_weight=column(1, 4),
        optimizer=column(0, 3),
        reduce=column(0, 6),
        transfer=column(0, 2, layers - 1),
        activation=activation,
        kept_for_weight=kept,
        parameters=column(0, 9),
        resident=resident,
        capacity=draw(st.one_of(st.none(), st.integers(whole, 3 * whole + 3))),
    )
    owners = draw(st.sampled_from((0, 0, 1, 2, 3)))
    if owners:
        costs = replace(costs, gather=column(0, 6), state=column(0, 4))
    stages = draw(st.integers(1, min(3, layers)))
    borders = sorted(draw(st.permutations(range(1, layers)))[: stages - 1])
    cut = tuple(end - first for first, end in zip([0, *borders], [*borders, layers], strict=True))
    techniques = Techniques(decouple=draw(st.booleans()), stagger=draw(st.booleans()))
    pipelines = draw(st.integers(2, 3))
    slots = draw(st.integers(0, 3)) if owners else 0
    costs = draw(costs_of_experts(costs, 6)) if slots else costs
    job = layered_job(
        costs, cut, pipelines, draw(st.integers(1, 4)), redundancy=draw(st.integers(1, 2)), owners=owners,
        slots=slots,
    )  # fmt: skip
    return replace(job, techniques=techniques)


def all_layouts(job: JobSpec, workers: int) -> Iterator[Layout]:
    """Every layout with up to so many workers."""
    assert job.layer_costs is not None
    layers, units = job.layer_costs.count, job.pipelines * job.microbatches
    for stages in range(1, layers + 1):
        for borders in combinations(range(1, layers), stages - 1):
            cut = tuple(b - a for a, b in zip([0, *borders], [*borders, layers], strict=True))
            for counts in _counts(stages, workers, job.redundancy, units):
                yield Layout(cut, counts)


def _counts(stages: int, workers: int, least: int, most: int) -> Iterator[tuple[int, ...]]:
    if stages == 0:
        yield ()
        return
    for first in range(least, min(most, workers - least * (stages - 1)) + 1):
        for rest in _counts(stages - 1, workers - first, least, most):
            yield (first, *rest)


def graph_bound(job: JobSpec, layout: Layout) -> int:
    derived = job_of_layout(job, layout)
    return lower_bound(problem_of(GRAPH_PASSES.run(Target(derived, absent_cells(derived, layout))))).period


def fits(job: JobSpec, layout: Layout) -> bool:
    derived = job_of_layout(job, layout)
    rooms = zip(derived.capacity, derived.activation, strict=True)
    has_slots = all(
        experts == 0 or (workers - job.redundancy + 1) * job.slots >= experts
        for workers, experts in zip(layout.workers, derived.expert_counts, strict=False)
    )
    return has_slots and all(room is None or room >= needed for room, needed in rooms)


@settings(max_examples=150, deadline=None)
@given(jobs(), st.integers(2, 6))
def test_the_least_period_is_that_of_the_best_of_all_layouts(job: JobSpec, workers: int) -> None:
    layouts = Layouts(job, workers)
    every = [layouts.period(layout) for layout in all_layouts(job, workers)]
    best = min(every, default=FAR)
    assert layouts.least_period(workers) == (None if best >= FAR else best)


@settings(max_examples=150, deadline=None)
@given(jobs(), st.integers(2, 6))
def test_no_layout_has_a_bound_below_that_over_all_cuts(job: JobSpec, workers: int) -> None:
    layouts = Layouts(job, workers)
    least = layouts.least_period(workers)
    for layout in list(all_layouts(job, workers))[::7]:
        if not fits(job, layout):
            assert job.owners or layouts.period(layout) >= FAR
            continue
        bound = graph_bound(job, layout)
        assert layout_bound(job, layout) == bound
        assert layouts.period(layout) <= layout_period(job, layout) <= bound
        assert least is not None and least <= bound


@settings(max_examples=60, deadline=None)
@given(jobs(), st.integers(2, 6))
def test_layouts_use_the_workers_there_are(job: JobSpec, workers: int) -> None:
    layouts = Layouts(job, workers)
    for _, layout in climbed(job, layouts, workers):
        assert sum(layout.layers) == sum(job.cut)
        assert sum(layout.workers) <= workers
        assert min(layout.workers) >= job.redundancy
        assert set(map(sum, (one.workers for one in neighbours(layout, job)))) <= {sum(layout.workers)}


@settings(max_examples=40)
@given(jobs(), st.integers(2, 6))
def test_regrouped_stages_have_the_same_layers_and_workers(job: JobSpec, workers: int) -> None:
    for choice in Layouts(job, workers).near(workers):
        layout = choice.layout
        for other in regrouped(layout, job):
            assert sum(other.layers) == sum(layout.layers)
            assert sum(other.workers) == sum(layout.workers)
            assert min(other.workers) >= job.redundancy
            assert min(other.layers) > 0
            assert abs(other.stages - layout.stages) == 1


@settings(max_examples=40)
@given(jobs())
def test_what_is_known_of_more_workers_does_not_change_the_least_period(job: JobSpec) -> None:
    layouts = Layouts(job, 6)
    known = 0
    for workers in (6, 5, 4, 3, 2):
        least = layouts.least_period(workers)
        assert layouts.least_period(workers, known) == least
        known = least or 0


def test_many_workers_have_layouts_for_some_numbers_of_failures() -> None:
    """Every second number where bounds differ, every sixth where they do not; all at a cliff."""
    job = layered_job(layer_costs((1000,) * 4), (2, 2), pipelines=100, microbatches=2)
    bounds = {0: 880, 1: 890, 2: 1000, **dict.fromkeys(range(3, 12), 1200)}
    counts = [(11, False), (5, True), (2, False), (1, False), (0, False)]
    assert counts_with_layouts(job, bounds) == counts
    few = layered_job(layer_costs((1000,) * 4), (2, 2), pipelines=4, microbatches=2)
    assert counts_with_layouts(few, {0: 5, 1: 5, 2: 5}) == [(2, False), (1, False), (0, False)]


def test_a_slow_layer_gets_more_workers() -> None:
    job = layered_job(layer_costs((1000, 1000, 1000, 6000)), (2, 2), pipelines=4, microbatches=4)
    layouts = Layouts(job, 8)
    best = layouts.near(8)[0].layout
    assert layouts.period(best) < layouts.period(Layout((2, 2), (4, 4)))


@pytest.mark.parametrize("redundancy", [1, 2])
def test_one_failure_fewer_is_never_slower_and_no_plan_beats_the_bound(redundancy: int) -> None:
    costs = layer_costs((1000, 2000, 1000, 3000, 1000), activation=1000, capacity=20_000, resident=500)
    job = layered_job(costs, (2, 3), pipelines=3, microbatches=4, failures=2, redundancy=redundancy)
    own = compile_job(job, failures=2)
    found = plan_recuts(job, dict(enumerate(own)), map, Guard(_FOREVER))
    best = [found.best(6 - failures, plan.claims.period) for failures, plan in enumerate(own)]
    periods = [
        plan.claims.period if recut is None else recut.claims.period
        for plan, recut in zip(own, best, strict=True)
    ]
    assert periods == sorted(periods)
    assert all(found.bounds[failures] <= period for failures, period in enumerate(periods))
    assert periods[0] < own[0].claims.period
    for recut in found.made:
        assert min(recut.layout.workers) >= redundancy
        assert recut.claims.bound_over_cuts <= recut.claims.lower_bound <= recut.claims.period


def test_a_plan_far_above_the_bound_is_searched_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest of several seeds takes its place; the plan that covers a failure more stays."""
    costs = layer_costs((1000, 2000, 1000, 3000, 1000), activation=1000, capacity=20_000, resident=500)
    job = layered_job(costs, (2, 3), pipelines=3, microbatches=4, failures=0)
    own = dict(enumerate(compile_job(job, failures=0)))
    periods = {1: 47_000, 2: 46_000, 3: 46_000}
    searches: list[tuple[int, bool]] = []

    def run(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        if function.__name__ != "_planned_again":
            yield from map(function, tasks)
            return
        for again, plan in map(function, tasks):
            searches.append((again.seed, again.effort.extras_apart))
            # The schedule cannot get better: what counts here is which one is taken.
            claims = replace(plan.claims, period=periods[again.seed], makespan=again.seed)
            yield again, replace(plan, claims=claims)

    once = plan_recuts(job, own, run, Guard(_FOREVER)).made
    assert [recut.claims.period for recut in once] == [48_000] and not searches
    monkeypatch.setattr("recycle_compiler.planner.recut._FAR_ABOVE", 999)
    again = plan_recuts(job, own, run, Guard(_FOREVER)).made
    assert searches == [(1, False), (2, False), (3, False)]
    assert [(recut.layout, recut.claims.makespan) for recut in again] == [(once[0].layout, 2)]
    assert [plan.claims for plan in again[0].plans[1:]] == [plan.claims for plan in once[0].plans[1:]]


@pytest.mark.parametrize(
    ("microbatches", "workers", "extras"), [(7, (3, 3), [False]), (5, (2, 4), [False, True])]
)
def test_the_layout_for_no_failures_is_searched_at_length(
    monkeypatch: pytest.MonkeyPatch, microbatches: int, workers: tuple[int, ...], extras: list[bool]
) -> None:
    """If it is large and not close to its bound; with extras apart where some workers have one more."""
    costs = layer_costs((1000, 1000, 1000, 1000, 4000), activation=1000, capacity=20_000, resident=4500)
    job = layered_job(costs, (2, 3), pipelines=3, microbatches=microbatches, failures=0)
    own = dict(enumerate(compile_job(job, failures=0)))
    found: list[bool] = []

    def run(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for task in tasks:
            if function.__name__ == "_planned_again":
                found.append(task[1].effort.extras_apart)
            yield function(task)

    for name, value in (("Sizes", SimpleNamespace(LARGE=10, HUGE=60_000)), ("_CLOSE", 999)):
        monkeypatch.setattr(f"recycle_compiler.planner.recut.{name}", value)
    made = plan_recuts(job, own, run, Guard(_FOREVER)).made
    assert (made[0].layout.workers, found) == (workers, extras)


def test_workers_have_a_layout_however_little_time_is_left() -> None:
    job = layered_job(layer_costs((1000, 1000, 1000, 6000)), (2, 2), pipelines=4, microbatches=4)
    found = fastest_recut(job, 8, Guard(0))
    assert found is not None
    recut, bound = found
    assert sum(recut.layout.workers) <= 8 and recut.claims.period >= bound


def test_among_near_equals_the_fewest_bytes_move() -> None:
    own, far, near = Layout((2, 2), (2, 2)), Layout((1, 3), (1, 2)), Layout((2, 2), (2, 1))
    choices = [[Ranked(100, 100, own)], [Ranked(110, 110, far), Ranked(111, 110, near)]]
    assert bytes_between(own, near, (5, 5, 5, 5)) == 0
    assert bytes_between(own, far, (5, 5, 5, 5)) == 10
    assert least_moved(choices, (5, 5, 5, 5)) == [(own, 1), (near, 1)]


def test_halves_are_planned_where_they_help() -> None:
    costs = layer_costs((4000,) * 6, activation=1000, resident=1000, capacity=9000)
    job = layered_job(costs, (2, 2, 2), pipelines=2, microbatches=3, failures=1)
    split = replace(job, split_ppm=40_000)
    own = dict(enumerate(compile_job(job, failures=1)))
    whole = plan_recuts(job, own, map, Guard(_FOREVER))
    found = plan_recuts(split, own, map, Guard(_FOREVER))
    fastest = min(found.made, key=lambda recut: recut.claims.period)
    assert fastest.split == 2
    assert fastest.claims.period < min(recut.claims.period for recut in whole.made)
    plan = fastest.plans[0]
    assert plan.job.pipelines * plan.job.microbatches == 2 * 6
    # Half of 8 ms with an overhead of 4 %.
    assert sum(plan.job.forward) == 6 * 2080


def test_plans_far_slower_than_those_for_one_failure_fewer_are_looked_at_again() -> None:
    layout = Layout((2, 2), (4, 4))
    found = {
        9: [Ranked(1300, 1290, layout)],
        6: [Ranked(1200, 1190, layout)],
        4: [Ranked(1100, 1000, layout)],
    }
    bounds = {**dict.fromkeys(range(5), 1000), 5: 1150, 6: 1150, 7: 1180, 8: 1290, 9: 1290}
    # 8 is near its bound already.
    assert above_steps(bounds, found) == [7, 5]
