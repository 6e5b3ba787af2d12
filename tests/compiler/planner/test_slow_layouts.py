"""Layouts for workers of which some are slow: ordinary plans, and never slower than the own cut is."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.analysis.trace_diff.network import retimed_step
from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout, absent_cells, job_of_layout, own_layout
from recycle_compiler.planner.compile import plan_slow
from recycle_compiler.planner.slow_layouts import SlowLayout, SlowRecut, busiest_share, slow_recut
from recycle_compiler.scheduling.budget import Guard
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle
from tests.support.layers import layer_costs, layered_job

_FOREVER = 10**15


def found(job: JobSpec, workers: int, *factors: float) -> SlowRecut:
    recut = slow_recut(job, workers, [Fraction(factor) for factor in factors], Guard(_FOREVER))
    assert recut is not None
    return recut


def step_of(job: JobSpec, one: SlowLayout, factors: tuple[Fraction, ...]) -> int:
    derived = job_of_layout(job, one.layout)
    return plan_slow(derived, absent_cells(derived, one.layout), one.cells(factors)).step


def every_layout(layers: int, workers: int, redundancy: int) -> Iterator[Layout]:
    for stages in range(1, min(layers, workers // redundancy) + 1):
        for borders in combinations(range(1, layers), stages - 1):
            ends = (0, *borders, layers)
            cut = tuple(end - first for first, end in pairwise(ends))
            for counts in product(range(redundancy, workers + 1), repeat=stages):
                if sum(counts) == workers:
                    yield Layout(cut, counts)


def test_the_stage_of_a_slow_worker_has_fewer_layers() -> None:
    job = layered_job(layer_costs((1000,) * 8), (4, 4), 3, 4)
    recut = found(job, 6, 3.0)
    own = SlowLayout(own_layout(job), (1,))
    assert recut.plan.step < step_of(job, own, (Fraction(3),))
    (slow,) = recut.slow
    assert slow.worker.pipeline == recut.layout.workers[slow.worker.stage] - 1, "the last of its stage"


@pytest.mark.parametrize(
    "factors",
    [(4.0,), pytest.param((1.5,), marks=pytest.mark.slow), pytest.param((2.0, 2.0), marks=pytest.mark.slow)],
)
def test_it_is_an_ordinary_plan_whose_step_a_second_opinion_confirms(factors: tuple[float, ...]) -> None:
    job = layered_job(layer_costs((2000, 1000, 1000, 3000, 1000), optimizer=500, transfer=100), (3, 2), 3, 2)
    recut = found(job, 6, *factors)
    streams = recut.plan.streams
    bundle = Bundle.parse(bundle_bytes(source="", plans=[streams]))
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    assert sum(recut.layout.workers) == 6 and min(recut.layout.workers) >= job.redundancy
    slow = {one.worker: float(one.factor) for one in recut.slow}
    assert retimed_step(replay(streams), streams.job, slow) == recut.plan.step
    stages = [one.worker.stage for one in recut.slow]
    assert all(2 * stages.count(stage) <= recut.layout.workers[stage] for stage in stages)


def test_it_is_close_to_the_best_of_all_layouts() -> None:
    job = layered_job(layer_costs((3000, 2000, 2000, 2000)), (2, 2), 2, 4)
    factors = (Fraction(2),)
    best = min(
        step_of(job, one, factors)
        for layout in every_layout(4, 4, job.redundancy)
        for stage in range(layout.stages)
        if (one := SlowLayout(layout, (stage,))).is_balanced
    )
    assert found(job, 4, 2.0).plan.step == best


def test_too_few_workers_that_are_not_slow() -> None:
    job = layered_job(layer_costs((1000,) * 4), (2, 2), 2, 2)
    assert slow_recut(job, 4, [Fraction(2)] * 3, Guard(_FOREVER)) is None


@pytest.mark.slow
def test_they_are_the_same_every_time() -> None:
    job = layered_job(layer_costs((1000,) * 6), (3, 3), 3, 2)
    first, second = (found(job, 6, 2.5, 1.5) for _ in range(2))
    assert (first.layout, first.slow) == (second.layout, second.slow)
    assert bundle_bytes(source="", plans=[first.plan.streams]) == bundle_bytes(
        source="", plans=[second.plan.streams]
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 3), st.lists(st.sampled_from([0.5, 1.5, 2.0, 3.0]), max_size=2))
def test_the_time_of_a_stage_in_micro_batches(units: int, fast: int, slow: list[float]) -> None:
    factors = [Fraction(1)] * fast + [Fraction(factor) for factor in slow]
    ways = (each for each in product(range(units + 1), repeat=len(factors)) if sum(each) == units)
    best = min(max(share * factor for share, factor in zip(each, factors, strict=True)) for each in ways)
    assert busiest_share(units, fast, tuple(factors[fast:])) == -(-best // 1)
