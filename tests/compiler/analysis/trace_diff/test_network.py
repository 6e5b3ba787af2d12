"""Time of a step when its ops take as long as they are told to."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from recycle_compiler.analysis.trace_diff.matching import match
from recycle_compiler.analysis.trace_diff.network import network_of, retimed_step, steady_step, without_end
from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.groups import GroupedLayout, absent_of_groups, job_of_groups, parse_any_layout
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.text import parse_schedule
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.search import Effort
from recycle_compiler.simulator.costs import costs_of
from recycle_compiler.simulator.engine import simulate
from recycle_runtime.plan.bundle import Bundle
from tests.compiler.analysis.explain.hand_made import ONE_PIPELINE, TWO_WINDOWS, hand_made
from tests.compiler.analysis.trace_diff.runs import simulated
from tests.support.jobs import SLOT, figure3, small_targets
from tests.support.layers import layer_costs, layered_job


def planned_step(schedule: Schedule) -> float:
    network = network_of(schedule)
    return steady_step(network, schedule.ops.duration.astype(np.float64), network.lag.astype(np.float64))


@pytest.mark.parametrize("text", [ONE_PIPELINE, TWO_WINDOWS])
def test_the_times_of_the_profile_give_the_period(text: str) -> None:
    schedule = hand_made(text)
    assert planned_step(schedule) == schedule.claims.period


def test_a_stage_that_waits_for_nothing_is_as_slow_as_its_own_work(tiny: Schedule) -> None:
    network = network_of(tiny)
    duration = tiny.ops.duration.astype(np.float64)
    assert steady_step(network, duration, np.zeros(len(duration))) == 13 * SLOT
    duration[(tiny.ops.kind == OpKind.W) & (tiny.ops.chunk == 1)] = 3 * SLOT
    assert steady_step(network, duration, np.zeros(len(duration))) == 21 * SLOT


def test_a_worker_must_end_its_step(tiny: Schedule, tiny_text: str) -> None:
    assert list(without_end(tiny)) == []
    cut = parse_schedule(tiny_text.replace("10 W1.1  11 R  11 O", "10 W1.1  11 R"))
    assert list(without_end(cut)) == ["worker 1:0 has no O"]


@settings(max_examples=25)
@given(small_targets().filter(lambda target: all(target.hosts)))
def test_no_plan_is_slower_than_its_period(target: Target) -> None:
    schedule = replay(plan_failed(target.job, target.failed, effort=Effort().quick()))
    assert planned_step(schedule) <= schedule.claims.period
    if not schedule.job.techniques.stagger:
        assert planned_step(schedule) == schedule.claims.period


@pytest.fixture(scope="module")
def running_example() -> Schedule:
    return replay(plan_failed(figure3(4), (), effort=Effort().quick()))


@pytest.mark.parametrize("seed", range(6))
def test_many_steps_one_after_another_take_as_long_on_average(running_example: Schedule, seed: int) -> None:
    schedule = running_example
    factors = np.random.default_rng(seed).uniform(0.5, 2.0, len(schedule.ops))
    rows = {op: row for row, op in enumerate(schedule.ops)}
    trace = simulated(schedule, 80, lambda step, op: op.duration * factors[rows[op]])
    ends = match(trace, schedule).end.max(axis=1)
    network = network_of(schedule)
    # A loop may pass through all four stages, and then repeats every 1, 2, 3 or 4 steps.
    average = (ends[72] - ends[48]) / 24
    assert steady_step(network, schedule.ops.duration * factors, np.zeros(len(factors))) == pytest.approx(
        average
    )


@pytest.mark.parametrize("layout", ["4x2,4x2,4x2@30+12x1@4", "6x2,6x2@28+5x1,7x1@6"])
@pytest.mark.parametrize("stagger", [True, False])
def test_sums_over_groups(layout: str, stagger: bool) -> None:
    """The engine, which shares no code with it, takes as long: with the times of the job and with others."""
    groups = parse_any_layout(layout)
    assert isinstance(groups, GroupedLayout)
    costs = layer_costs((1000,) * 12, optimizer=100, reduce=400, transfer=200)
    whole = layered_job(costs, (12,), 2, 17)
    whole = replace(whole, techniques=replace(whole.techniques, stagger=stagger))
    job = job_of_groups(whole, groups)
    streams = plan_failed(job, absent_of_groups(job, groups), effort=Effort().quick())
    schedule, bundle = replay(streams), Bundle.parse(bundle_bytes(source="", plans=[streams]))
    assert planned_step(schedule) == simulate(bundle, 0).period <= schedule.claims.period
    forward = tuple(ticks * (2 + chunk) for chunk, ticks in enumerate(job.forward))
    other = replace(job, forward=forward, reduce=tuple(7 * ticks for ticks in job.reduce))
    slow = {Worker(0, job.stages - 1): 1.5}
    engine = simulate(bundle, 0, slow=slow, costs=costs_of(other)).period
    share = schedule.claims.period / planned_step(schedule)
    assert retimed_step(schedule, other, slow) == pytest.approx(share * engine)
