"""Correct plans pass, and the report says what a slow replay says."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.verifier.verify import verify_bundle, verify_plan
from tests.compiler.verifier.memory_bundle import Cell, Entry, MemoryBundle
from tests.compiler.verifier.symbolic_machine import SymbolicMachine, slow_times
from tests.compiler.verifier.tiny_plans import coupled_plan, split_plan, streams_from_orders, tiny_job


@pytest.mark.parametrize("bundle", [split_plan(), coupled_plan()])
def test_a_correct_plan_passes(bundle: MemoryBundle) -> None:
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    SymbolicMachine(bundle.job, bundle.streams[0]).run()


def test_the_report_of_a_plan_written_by_hand() -> None:
    report = verify_plan(split_plan(), 0)
    assert report.passed
    assert (report.makespan, report.period, report.instructions) == (13, 15, 57)
    assert report.peak_memory == ((Worker(0, 0), 2), (Worker(1, 0), 2), (Worker(0, 1), 4))


def test_a_split_plan_with_a_barrier() -> None:
    job = tiny_job(techniques=Techniques(stagger=False))
    orders = {
        (0, 0): "F00 F01 I00 W00 I01 W01",
        (0, 1): "F00 I00 F01 I01 W00 W01",
        (1, 0): "F10 F11 I10 W10 I11 W11",
        (1, 1): "F10 I10 F11 I11 W10 W11",
    }
    # Stage 0 ends with its last W at 7, as stage 1 does.
    entry = Entry(makespan=7, period=10, lower_bound=9)
    assert verify_plan(MemoryBundle(job, (entry,), (streams_from_orders(job, orders),)), 0).violations == ()


def test_a_coupled_plan_that_leaves_a_broken_pipeline_alone() -> None:
    job = tiny_job(techniques=Techniques(adaptive=False, decouple=False, stagger=True))
    orders = {
        (0, 0): "F00 F01 F10 F11 B00 B01 B10 B11",
        (0, 1): "F00 B00 F01 B01 F10 B10 F11 B11",
        (1, 0): "",
    }
    # Stage 1 is busy from 1 to 13; stage 0 waits for the last backward until 13 and ends at 15.
    entry = Entry(failed=((1, 1),), makespan=15, period=18, lower_bound=15)
    report = verify_plan(MemoryBundle(job, (entry,), (streams_from_orders(job, orders),)), 0)
    assert report.violations == ()
    assert report.peak_memory[1] == (Worker(1, 0), 0)


def test_a_window_that_opens_late_moves_the_stage() -> None:
    # Stage 1 runs from 3 to 15; stage 0 hears from it two ticks later and ends at 13 instead of 11.
    report = verify_plan(split_plan().with_entry(release=(0, 3), makespan=15, period=16), 0)
    assert (report.violations, report.makespan, report.period) == ((), 15, 16)


def test_one_stage_needs_no_messages() -> None:
    job = tiny_job(stages=1, pipelines=1)
    streams = streams_from_orders(job, {(0, 0): "F00 I00 F01 I01 W01 W00"})
    entry = Entry(release=(0,), makespan=6, period=9, lower_bound=9)
    assert verify_plan(MemoryBundle(job, (entry,), (streams,)), 0).violations == ()


@st.composite
def random_plans(draw: st.DrawFn) -> MemoryBundle:
    """A random job and a random order of its ops that respects what they need."""
    shape = [draw(st.integers(1, 3)) for _ in range(3)]
    stages, pipelines, microbatches = shape
    times = st.integers(1, 4)
    techniques = Techniques(adaptive=True, decouple=draw(st.booleans()), stagger=draw(st.booleans()))
    activation = tuple(draw(st.integers(0, 5)) for _ in range(stages))
    job = tiny_job(
        stages=stages,
        pipelines=pipelines,
        microbatches=microbatches,
        techniques=techniques,
        forward=tuple(draw(times) for _ in range(stages)),
        backward_input=tuple(draw(times) for _ in range(stages)),
        backward_weight=tuple(draw(times) for _ in range(stages)),
        transfer=tuple(draw(st.integers(0, 3)) for _ in range(stages - 1)),
        activation=activation,
        kept_for_weight=tuple(draw(st.integers(0, whole)) for whole in activation),
    )
    live = {stage: draw(st.sets(st.integers(0, pipelines - 1), min_size=1)) for stage in range(stages)}
    failed = tuple((p, s) for p in range(pipelines) for s in range(stages) if p not in live[s])
    streams = streams_from_orders(job, _random_orders(draw, job, live))
    release = (0, *(draw(st.integers(0, 6)) for _ in range(stages - 1)))
    times_of_plan = slow_times(job, release, streams)
    capacity = tuple(
        max(times_of_plan.peak_memory[host, stage] for host in live[stage]) for stage in range(stages)
    )
    entry = Entry(failed, release, times_of_plan.makespan, times_of_plan.period, 1)
    return MemoryBundle(replace(job, capacity=capacity), (entry,), (streams,))


def _random_orders(draw: st.DrawFn, job: JobSpec, live: dict[int, set[int]]) -> dict[Cell, str]:
    orders: dict[Cell, list[str]] = {(host, stage): [] for stage in live for host in live[stage]}
    units = [(p, m) for p in range(job.pipelines) for m in range(job.microbatches)]
    host = {(unit, stage): draw(st.sampled_from(sorted(live[stage]))) for unit in units for stage in live}
    split = {stage: job.techniques.decouple and draw(st.booleans()) for stage in live}
    path: dict[tuple[int, int], list[tuple[str, int]]] = {
        unit: [("F", stage) for stage in live] + [("B", stage) for stage in reversed(list(live))]
        for unit in units
    }
    deferred: list[tuple[tuple[int, int], int]] = []
    while path or deferred:
        pick = draw(st.integers(0, len(path) + len(deferred) - 1))
        if pick >= len(path):
            unit, stage = deferred.pop(pick - len(path))
            letter = "W"
        else:
            unit = list(path)[pick]
            letter, stage = path[unit].pop(0)
            if not path[unit]:
                del path[unit]
            if letter == "B" and split[stage]:
                letter = "I"
                deferred.append((unit, stage))
        orders[host[unit, stage], stage].append(f"{letter}{unit[0]}{unit[1]}")
    return {cell: " ".join(listed) for cell, listed in orders.items()}


@given(random_plans())
@settings(max_examples=150, deadline=None)
def test_random_correct_plans_pass(bundle: MemoryBundle) -> None:
    SymbolicMachine(bundle.job, bundle.streams[0]).run()
    report = verify_plan(bundle, 0)
    assert [str(violation) for violation in report.violations] == []
    times = slow_times(bundle.job, bundle.plans[0].release, bundle.streams[0])
    assert (report.makespan, report.period) == (times.makespan, times.period)
    assert dict(report.peak_memory) == times.peak_memory
