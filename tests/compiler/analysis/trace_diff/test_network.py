"""How long a step takes when its ops take as long as they are told to."""

import numpy as np
import pytest
from hypothesis import given, settings

from recycle_compiler.analysis.trace_diff.matching import match
from recycle_compiler.analysis.trace_diff.network import network_of, steady_step, without_end
from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.text import parse_schedule
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.search import Effort
from tests.compiler.analysis.explain.hand_made import ONE_PIPELINE, TWO_WINDOWS, hand_made
from tests.compiler.analysis.trace_diff.runs import simulated
from tests.support.jobs import SLOT, figure3, small_targets


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
