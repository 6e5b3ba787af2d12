"""A plan beside runs of it: what made the step longer."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.analysis.trace_diff.breakdown import main_reasons
from recycle_compiler.analysis.trace_diff.comparison import NoSuchStep, TraceComparison, compare_with_run
from recycle_compiler.analysis.trace_diff.matching import failed_in, renamed
from recycle_compiler.analysis.trace_diff.text import comparison_text, verdict
from recycle_compiler.analysis.trace_diff.trace_file import Ran, RunTrace, TraceError
from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.failure import Worker, failure_set, worker_at
from recycle_compiler.ir.ops import Op, OpKind
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.target import Target
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.search import Effort
from tests.compiler.analysis.trace_diff.runs import as_planned, simulated
from tests.support.jobs import SLOT, figure3, small_targets


@pytest.fixture(scope="module")
def plan() -> Schedule:
    """The running example, in milliseconds of 1,000,000 ticks: an op takes one of them."""
    job = figure3(4)
    times = ("forward", "backward_input", "backward_weight", "optimizer", "reduce", "transfer")
    scaled = {name: tuple(1_000 * ticks for ticks in getattr(job, name)) for name in times}
    return replay(plan_failed(replace(job, unit="ms", **scaled), (), effort=Effort().quick()))


def microseconds(op: Op) -> float:
    return op.duration / 1_000


def parts_add_up(comparison: TraceComparison) -> bool:
    parts = comparison.longer + comparison.uneven + comparison.waiting
    return parts == pytest.approx(comparison.time - comparison.planned)


@settings(max_examples=25)
@given(
    small_targets().filter(lambda target: all(target.hosts)),
    st.floats(0.01, 100),
    st.integers(1, 4),
    st.booleans(),
)
def test_a_plan_run_slower_is_slower_by_as_much(
    target: Target, factor: float, steps: int, slots: bool
) -> None:
    # In real units a message that is late is waiting, so there the plan has none that take time.
    job = target.job if slots else replace(target.job, unit="us", transfer=(0,) * (target.job.stages - 1))
    schedule = replay(plan_failed(job, target.failed, effort=Effort().quick()))
    found = compare_with_run(schedule, as_planned(schedule, factor * 0.001, steps))
    tiny = 1e-6 * found.time
    if slots:
        assert found.tick == pytest.approx(factor * 0.001)
    expected = 1.0 if slots else factor
    assert [time / found.planned for _, time in found.steps] == pytest.approx([expected] * steps)
    assert all(row.median == pytest.approx(expected * row.planned) for row in found.op_times)
    assert all(row.low == pytest.approx(row.high) for row in found.op_times)
    assert found.longer == pytest.approx((expected - 1) * found.planned, abs=tiny)
    assert (found.uneven, found.waiting) == pytest.approx((0, 0), abs=tiny)
    assert all(worker.waiting <= tiny for worker in found.workers)
    assert not found.other_order


def test_ops_of_one_kind_on_one_stage_are_named(plan: Schedule) -> None:
    slow = (OpKind.W, 2)

    def duration(step: int, op: Op) -> float:
        return microseconds(op) * (1.5 if (op.kind, op.chunk) == slow else 1.0)

    found = compare_with_run(plan, simulated(plan, 8, duration))
    (reason,) = main_reasons(found.reasons, found.longer)
    assert (reason.kind, reason.stage) == slow
    assert found.longer == pytest.approx(reason.saving) and found.longer > 0
    assert found.uneven == pytest.approx(0)
    assert parts_add_up(found)
    assert "longer than the profile" in verdict(found) and "mostly W on stage 2" in verdict(found)
    ratios = {(row.kind, row.stage): row.median / row.planned for row in found.op_times if row.planned}
    assert ratios == pytest.approx({place: 1.5 if place == slow else 1.0 for place in ratios})


def test_waiting_is_told_from_work_but_for_the_way_of_a_message(plan: Schedule) -> None:
    prompt = compare_with_run(plan, simulated(plan, 12, lambda step, op: microseconds(op)))
    assert (prompt.longer, prompt.uneven, prompt.waiting) == pytest.approx((0, 0, 0), abs=1e-6)
    assert any(worker.waiting > 100 for worker in prompt.workers)
    late = compare_with_run(plan, simulated(plan, 12, lambda step, op: microseconds(op), latency=300.0))
    assert late.time > prompt.time and parts_add_up(late)
    assert all(row.median <= row.planned + 300.0 + 1e-6 for row in late.op_times)


def test_waiting_that_the_trace_sets_apart_is_no_work(plan: Schedule) -> None:
    bare = simulated(plan, 6, lambda step, op: microseconds(op), latency=300.0)
    pipelines = plan.job.pipelines
    durations = {(worker_at(op.worker, pipelines), op.kind.name): microseconds(op) for op in plan.ops}

    def apart(op: Ran) -> Ran:
        work = durations[op.worker, op.name[0]]
        waited = 0.0 if op.name[0] in "RO" else op.end - op.start - work
        return op._replace(start=op.start + waited, waited=waited)

    found = compare_with_run(plan, RunTrace(tuple(map(apart, bare.ops)), ()))
    assert (found.longer, found.uneven) == pytest.approx((0, 0), abs=1e-3)
    assert found.waiting == pytest.approx(found.time - found.planned) and found.waiting > 0
    assert all(row.median == pytest.approx(row.planned) for row in found.op_times)
    assert all(worker.between == pytest.approx(0, abs=1e-3) for worker in found.workers)


def test_waiting_for_data_is_a_column_of_its_own(plan: Schedule) -> None:
    """It stands where there was any waiting, between ops."""
    bare = simulated(plan, 3, lambda step, op: microseconds(op))
    without = compare_with_run(plan, bare)
    assert "for data" not in comparison_text(without, "run.json")
    slow = Worker(1, 0)
    found = compare_with_run(plan, replace(bare, data={(slow, without.step): 250.0, (slow, 99): 7.0}))
    before, after = ({row.worker: row for row in comparison.workers}[slow] for comparison in (without, found))
    assert (before.data, after.data) == (0.0, 250.0)
    assert after.between == pytest.approx(before.between - 250.0)
    text = comparison_text(found, "run.json")
    assert "for data" in text and "waiting for data: 0.2" in text and "on worker 1:0" in text


def test_one_slow_op_makes_ops_uneven(plan: Schedule) -> None:
    def duration(step: int, op: Op) -> float:
        held_up = step == 3 and (op.kind, op.pipeline, op.microbatch, op.chunk) == (OpKind.F, 1, 2, 0)
        return microseconds(op) + (5_000 if held_up else 0)

    found = compare_with_run(plan, simulated(plan, 6, duration), step=3)
    assert found.longer == pytest.approx(0)
    assert found.uneven > 1_000
    assert "uneven ops +" in verdict(found)
    assert found.latest[0].late > 1_000
    assert compare_with_run(plan, as_planned(plan, 0.001)).latest == ()


def test_the_median_step_is_taken_and_the_first_left_out(plan: Schedule) -> None:
    speed = (9.0, 3.0, 1.0, 2.0)
    found = compare_with_run(plan, simulated(plan, 4, lambda step, op: speed[step] * microseconds(op)))
    assert (found.warm_up, found.counted, found.step) == ((0,), (1, 2, 3), 3)
    alone = compare_with_run(plan, simulated(plan, 1, lambda step, op: microseconds(op)))
    assert (alone.warm_up, alone.counted, alone.step) == ((), (0,), 0)
    asked = compare_with_run(plan, as_planned(plan, 0.001), step=0)
    assert (asked.step, asked.time) == (0, pytest.approx(asked.planned))
    with pytest.raises(NoSuchStep, match="no step 7 in the trace: it holds 0 to 2"):
        compare_with_run(plan, as_planned(plan, 0.001), step=7)


def test_another_order_is_told(tiny: Schedule) -> None:
    trace = as_planned(tiny, 1.0, steps=1)
    swapped = {"W0.0": "W1.0", "W1.0": "W0.0"}
    ops = tuple(
        op._replace(name=swapped.get(op.name, op.name)) if op.worker == (0, 1) else op for op in trace.ops
    )
    found = compare_with_run(tiny, RunTrace(ops, trace.failed))
    assert [(other.worker, other.planned, other.ran) for other in found.other_order] == [
        (Worker(0, 1), "W0.0", "W1.0")
    ]
    assert "order: worker 0:1 ran W1.0 in step 0, where its plan has W0.0\n" in comparison_text(
        found, "a.json"
    )


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("missing", "step 0: worker 0:0 has not run F0.0, which is in its plan"),
        ("twice", "step 0: worker 0:0 has run W0.0 twice"),
        ("foreign", "step 0: worker 0:0 has run B0.0, which is not in its plan"),
        ("other step", "step 0: worker 0:0 has not run F0.0"),
        ("no time", "step 0 takes no time"),
    ],
)
def test_a_trace_of_other_ops_is_refused(tiny: Schedule, damage: str, words: str) -> None:
    trace = as_planned(tiny, 1.0, steps=1)
    ops = trace.ops
    damaged = {
        "missing": ops[1:],
        "twice": (*ops, ops[3]),
        "foreign": (*ops, ops[3]._replace(name="B0.0")),
        "other step": (ops[0]._replace(step=5), *ops[1:]),
        "no time": tuple(op._replace(start=0.0, end=0.0) for op in ops),
    }
    with pytest.raises(TraceError, match=words):
        compare_with_run(tiny, RunTrace(damaged[damage], trace.failed))


def test_who_failed(tiny: Schedule) -> None:
    trace = as_planned(tiny, 1.0, steps=1)
    assert failed_in(RunTrace(trace.ops, None), 2, 2) == tiny.failed == failed_in(trace, 2, 2)
    with pytest.raises(TraceError, match="the plan has no worker 1:0, only 1 pipelines of 2 stages"):
        failed_in(trace, 1, 2)
    with pytest.raises(TraceError, match="worker 0:0 failed, says the trace, and yet it has run ops"):
        failed_in(RunTrace(trace.ops, failure_set([(0, 0), (1, 1)])), 2, 2)
    with pytest.raises(TraceError, match="worker 1:1 has run no op"):
        failed_in(RunTrace(trace.ops, ()), 2, 2)


def test_peers_may_run_under_other_names(tiny: Schedule) -> None:
    parts = {Worker(0, 0): Worker(0, 0), Worker(1, 0): Worker(1, 0), Worker(1, 1): Worker(0, 1)}
    other = renamed(tiny, parts)
    assert (other.failed, list(other.verify())) == (failure_set([(0, 1)]), [])
    assert compare_with_run(other, as_planned(other, 1.0)).waiting == pytest.approx(0)


def test_a_slot_is_measured(tiny: Schedule) -> None:
    found = compare_with_run(tiny, as_planned(tiny, 3_000 / SLOT))
    text = comparison_text(found, "a.json")
    assert text.startswith(
        "tiny, failed: 1:1; step 1 of a.json, the median of 2 steps; step 0 left out as warm-up\n"
        "step 39.0 ms, planned 39.0 ms for 13 slots (+0.0 %): "
        "ops take as long as the profile says (+0.0 ms); waiting +0.0 ms\n"
        "one slot is taken as 3.000 ms: "
    )
