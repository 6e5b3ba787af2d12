"""Rules about time and memory, on streams and on timelines that no replay would make."""

from dataclasses import replace

import numpy as np

from recycle_compiler.ir.failure import Worker, failure_set
from recycle_compiler.ir.job import Techniques
from recycle_compiler.verifier.plan import CheckedPlan, locate, stream_table
from recycle_compiler.verifier.replay import ReplayedTimes, replay_checked
from recycle_compiler.verifier.report import VerifierRule
from recycle_compiler.verifier.times import check_claims, check_dependencies
from recycle_compiler.verifier.verify import verify_plan
from recycle_runtime.plan.isa import Opcode
from tests.compiler.verifier.memory_bundle import Entry, MemoryBundle
from tests.compiler.verifier.tiny_plans import coupled_plan, found, split_plan, streams_from_orders, tiny_job


def _replayed(bundle: MemoryBundle) -> tuple[CheckedPlan, ReplayedTimes]:
    table = stream_table([(Worker(*worker), stream) for worker, stream in bundle.streams[0].items()], 2)
    grids = (locate(table, bundle.job, opcode) for opcode in _COMPUTE)
    entry = bundle.plans[0]
    plan = CheckedPlan(0, bundle.job, entry, failure_set(entry.failed), entry.release, table, *grids)
    stuck, timeline = replay_checked(plan)
    assert stuck == []
    return plan, timeline


_COMPUTE = (Opcode.FORWARD, Opcode.BACKWARD, Opcode.BACKWARD_INPUT, Opcode.BACKWARD_WEIGHT)


def _shifted(timeline: ReplayedTimes, op: int, start: int) -> ReplayedTimes:
    starts, ends = timeline.start.copy(), timeline.end.copy()
    ends[op] += start - starts[op]
    starts[op] = start
    return replace(timeline, start=starts, end=ends)


def test_each_op_moved_one_tick_earlier_breaks_a_rule() -> None:
    """In this plan no op has slack before it, so every earlier start must be noticed."""
    job = tiny_job(transfer=(1,))
    orders = {(0, 0): "F00 I00 W00", (0, 1): "F00 I00 W00", (1, 0): "F10 I10 W10", (1, 1): "F10 I10 W10"}
    job = replace(job, microbatches=1)
    bundle = MemoryBundle(job, (Entry(makespan=7, period=10),), (streams_from_orders(job, orders),))
    plan, timeline = _replayed(bundle)
    assert list(check_dependencies(plan, timeline)) == []
    for op in np.flatnonzero(timeline.start > 0).tolist():
        moved = _shifted(timeline, op, int(timeline.start[op]) - 1)
        assert [violation.rule for violation in check_dependencies(plan, moved)], plan.table.name(op)


def test_each_transfer_takes_its_time() -> None:
    plan, timeline = _replayed(split_plan())
    slower = replace(plan, job=replace(plan.job, transfer=(1,)))
    messages = [violation.message for violation in check_dependencies(slower, timeline)]
    assert "forward of p0 m0 on stage 1 starts at 1, its forward one stage up allows 2" in messages
    assert "backward of p0 m0 on stage 0 starts at 3, its backward one down allows 4" in messages


def test_two_ops_at_once() -> None:
    plan, timeline = _replayed(split_plan())
    weight = int(np.flatnonzero(plan.table.opcode[timeline.row] == Opcode.BACKWARD_WEIGHT)[-1])
    rules = {violation.rule for violation in check_dependencies(plan, _shifted(timeline, weight, 11))}
    assert rules == {VerifierRule.WORKER_OVERLAP}


def test_a_reduction_before_the_work_is_done() -> None:
    plan, timeline = _replayed(split_plan())
    early = replace(timeline, reduce_start=(0, timeline.reduce_start[1]))
    (violation,) = check_dependencies(plan, early)
    assert (violation.rule, violation.message) == (
        VerifierRule.DEPENDENCY,
        "reduction of stage 0 starts at 0, its work ends at 11",
    )


def test_a_barrier_waits_for_every_stage() -> None:
    plan, timeline = _replayed(coupled_plan())
    assert timeline.reduce_start == (9, 9)
    assert len(list(check_dependencies(plan, replace(timeline, reduce_start=(9, 7))))) == 1


def test_an_op_before_its_window() -> None:
    plan, timeline = _replayed(split_plan())
    closed = replace(plan, release=(0, 2))
    (violation,) = check_claims(closed, timeline)
    assert (violation.rule, violation.worker) == (VerifierRule.CLAIM_RELEASE, (0, 1))


def test_weight_gradient_before_input_gradient_breaks_a_dependency() -> None:
    bundle = split_plan().moved((0, 1), "backward_weight p0 m0 b0", before="backward_input p0 m0 b0")
    (violation,) = found(bundle, VerifierRule.DEPENDENCY)
    assert violation.message == (
        "backward weight of p0 m0 on stage 1 starts at 2, its backward input allows 4"
    )


def test_ops_that_wait_for_each_other() -> None:
    """Stage 0 wants the backward of micro-batch 0 first, stage 1 runs micro-batch 1 before it."""
    job = tiny_job(pipelines=1)
    orders = {(0, 0): "F00 B00 F01 B01", (0, 1): "F01 B01 F00 B00"}
    bundle = MemoryBundle(job, (Entry(),), (streams_from_orders(job, orders),))
    report = verify_plan(bundle, 0)
    assert {violation.rule for violation in report.violations} == {
        VerifierRule.REPLAY_STUCK,
        VerifierRule.DEADLOCK,
    }
    assert report.makespan is None
    messages = [
        violation.message for violation in report.violations if violation.rule is VerifierRule.REPLAY_STUCK
    ]
    assert messages[0] == "backward p0 m0 waits for backward p0 m0 at 8 of 0:1, which never runs"


def test_more_memory_than_there_is() -> None:
    assert found(split_plan().with_job(capacity=(2, 4)), VerifierRule.MEMORY) == []
    (violation,) = found(split_plan().with_job(capacity=(2, 3)), VerifierRule.MEMORY)
    assert violation.message == "holds 4 of activations at time 7, stage 1 has room for 3"


def test_memory_between_the_parts_of_a_backward() -> None:
    bundle = split_plan().with_job(activation=(10, 10), kept_for_weight=(10, 4), capacity=(20, 22))
    report = verify_plan(bundle, 0)
    assert report.violations == ()
    assert report.peak_memory[2] == ((0, 1), 22)
    assert len(found(bundle.with_job(capacity=(20, 21)), VerifierRule.MEMORY)) == 1


def test_a_coupled_backward_holds_everything_to_its_end() -> None:
    bundle = coupled_plan().with_job(activation=(10, 10), kept_for_weight=(0, 0), capacity=(20, 10))
    assert verify_plan(bundle, 0).violations == ()
    assert len(found(bundle.with_job(capacity=(19, 9)), VerifierRule.MEMORY)) == 4


def test_no_stagger_needs_every_stage_to_end() -> None:
    bundle = split_plan().with_job(techniques=Techniques(stagger=False))
    (violation,) = found(bundle, VerifierRule.CLAIM_PERIOD)
    assert violation.message == "claims 15, the streams take 16"
