"""The engine sees in the streams what their plans say of themselves."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.analysis.trace_diff.network import retimed_step
from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.simulator import machine
from recycle_compiler.simulator.costs import costs_of
from recycle_compiler.simulator.engine import simulate
from recycle_runtime.plan.isa import Opcode
from tests.compiler.simulator.engine_plans import SCHEDULES, bundle_of, golden_plan
from tests.support.jobs import SLOT, figure3, quick_plan, quick_plans, unit_job


@settings(max_examples=100)
@given(quick_plans())
def test_periods_makespans_memory_and_times(program: Streams) -> None:
    outcome = simulate(bundle_of(program), 0)
    schedule = replay(program)
    assert (outcome.period, outcome.makespan) == (program.claims.period, program.claims.makespan)
    assert [(*worker, amount) for worker, amount in outcome.peak_memory] == schedule.peak_memory()
    # Both have the ops of a worker in the order in which it runs them.
    assert outcome.ops.start[0].tolist() == schedule.start.tolist()
    assert outcome.ops.end[0].tolist() == schedule.end.tolist()
    assert outcome.ops.microbatch.tolist() == schedule.ops.microbatch.tolist()


@settings(max_examples=40)
@given(quick_plans())
def test_no_iteration_takes_longer_than_the_period(program: Streams) -> None:
    outcome = simulate(bundle_of(program), 0, iterations=6)
    assert len(outcome.ends) == len(outcome.ops.end) == 6
    assert outcome.ops.end.max(axis=1).tolist() == list(outcome.ends)
    for number, end in enumerate(outcome.ends):
        assert end <= outcome.ends[0] + number * program.claims.period


@settings(max_examples=60)
@given(quick_plans(), st.data())
def test_slow_workers_as_another_method_sees_them(program: Streams, data: st.DataObject) -> None:
    """The other one adds up longest ways between the ends of stages, and knows nothing of streams."""
    workers = st.sampled_from(program.workers)
    slow = data.draw(st.dictionaries(workers, st.sampled_from([1.0, 2.0, 3.0]), max_size=3))
    outcome = simulate(bundle_of(program), 0, slow=slow)
    assert outcome.period == pytest.approx(retimed_step(replay(program), program.job, slow), rel=1e-12)
    assert outcome.period >= program.claims.period


@settings(max_examples=40)
@given(quick_plans(), st.data())
def test_a_slower_worker_never_helps(program: Streams, data: st.DataObject) -> None:
    worker = data.draw(st.sampled_from(program.workers))
    factors = sorted(data.draw(st.lists(st.floats(1.0, 4.0), min_size=2, max_size=3)))
    bundle = bundle_of(program)
    periods = [simulate(bundle, 0, iterations=1, slow={worker: factor}).period for factor in factors]
    assert periods == sorted(periods)


@pytest.mark.parametrize("name", [path.stem for path in sorted(SCHEDULES.glob("*.txt"))])
def test_plans_made_once_and_for_all(name: str) -> None:
    program = golden_plan(name)
    outcome = simulate(bundle_of(program), 0, iterations=4)
    assert (outcome.period, outcome.makespan) == (program.claims.period, program.claims.makespan)


@pytest.mark.parametrize(
    ("name", "slots"),
    [("fault-free-1f1b", 30), ("adaptive", 39), ("decoupled", 35), ("staggered-unlimited", 30)],
)
def test_the_running_example(name: str, slots: int) -> None:
    """27, 36 and 32 slots and an optimizer step of 3, one after another; with stagger they overlap."""
    assert simulate(bundle_of(golden_plan(name)), 0).period == slots * SLOT


def test_busy_and_idle() -> None:
    outcome = simulate(bundle_of(golden_plan("fault-free-1f1b")), 0)
    assert outcome.busy == tuple((worker, 21.0 * SLOT) for worker in outcome.workers)
    assert outcome.idle == tuple((worker, 9.0 * SLOT) for worker in outcome.workers)


def test_one_worker_alone() -> None:
    outcome = simulate(bundle_of(quick_plan(Target(unit_job(1, 1, 3), ()))), 0, iterations=3)
    assert (outcome.period, outcome.makespan, outcome.ends) == (12_000, 9_000, (12_000, 24_000, 36_000))


@settings(max_examples=20)
@given(quick_plans(), st.data())
def test_measured_times_in_place_of_those_of_the_job(program: Streams, data: st.DataObject) -> None:
    job = program.job
    stage = data.draw(st.integers(0, job.stages - 1))
    longer = tuple(time * 3 if each == stage else time for each, time in enumerate(job.forward))
    costs = costs_of(job).measured({(Opcode.FORWARD, stage): longer[stage]})
    expected = retimed_step(replay(program), replace(job, forward=longer), {})
    assert simulate(bundle_of(program), 0, costs=costs).period == pytest.approx(expected, rel=1e-12)


def test_the_compiled_engine_sees_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = bundle_of(golden_plan("figure3.3"))
    slow = {Worker(0, 0): 1.7}
    plain = simulate(bundle, 0, iterations=3, slow=slow)
    monkeypatch.setattr(machine, "COMPILE_FROM", 0)
    monkeypatch.setattr(machine, "LOADED_FROM", 0)
    compiled = simulate(bundle, 0, iterations=3, slow=slow)
    assert (plain.period, plain.ends, plain.busy) == (compiled.period, compiled.ends, compiled.busy)
    assert np.array_equal(plain.ops.start, compiled.ops.start)
    assert np.array_equal(plain.ops.opcode, compiled.ops.opcode)


def test_periods_that_are_no_whole_ticks() -> None:
    """Stages that hold each other up in turn, and times that are no multiples of each other."""
    program = golden_plan("staggered-equal-memory")
    slow = {program.workers[0]: 1.3, program.workers[-1]: 1.9}
    outcome = simulate(bundle_of(program), 0, iterations=40, slow=slow)
    long_run = (outcome.ends[-1] - outcome.ends[-21]) / 20
    assert outcome.period == pytest.approx(long_run)


def test_ops_are_forgotten_when_nobody_wants_them() -> None:
    bundle = bundle_of(golden_plan("adaptive"))
    outcome = simulate(bundle, 0, iterations=5, keep_ops=False)
    assert outcome.ops.start.shape[0] == 0
    assert outcome.ends == simulate(bundle, 0, iterations=5).ends


@pytest.mark.parametrize(
    ("iterations", "slow", "words"),
    [
        (0, {}, "iterations must be at least 1, got 0"),
        (2, {Worker(9, 0): 2.0}, "worker 9:0 cannot be slow: this plan has no such worker"),
        (2, {Worker(0, 0): -1.0}, r"worker 0:0 cannot be -1\.0 times as slow"),
    ],
)
def test_what_cannot_be_asked(iterations: int, slow: dict[Worker, float], words: str) -> None:
    bundle = bundle_of(quick_plan(Target(figure3(None), ())))
    with pytest.raises(ValueError, match=words):
        simulate(bundle, 0, iterations=iterations, slow=slow)
