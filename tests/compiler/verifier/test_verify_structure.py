"""Broken streams: ops missing, doubled, torn apart, out of order, not allowed; fields out of range."""

import pytest

from recycle_compiler.ir.job import Techniques
from recycle_compiler.verifier.report import VerifierRule
from recycle_compiler.verifier.verify import verify_plan
from recycle_runtime.plan.isa import Instruction, Opcode
from tests.compiler.verifier.memory_bundle import Entry, MemoryBundle
from tests.compiler.verifier.tiny_plans import (
    COUPLED_ORDERS,
    coupled_plan,
    found,
    split_plan,
    streams_from_orders,
    tiny_job,
)


def test_a_missing_op() -> None:
    (violation,) = found(split_plan().without((0, 1), "backward_weight p1 m0 b1"), VerifierRule.OP_COUNT)
    assert violation.message == (
        "p1 m0 on stage 1 needs 1 backward, or 1 backward input and 1 backward weight, found 0, 1 and 0"
    )


def test_an_op_that_runs_twice() -> None:
    bundle = split_plan().inserted((0, 1), "forward p0 m0 b0 i0", before="reduce")
    assert [violation.message for violation in found(bundle, VerifierRule.OP_COUNT)] == [
        "p0 m0 on stage 1 needs 1 forward, found 2"
    ]


def test_a_backward_both_whole_and_split() -> None:
    bundle = split_plan().inserted((0, 1), "backward p0 m0 b0", before="reduce")
    assert len(found(bundle, VerifierRule.OP_COUNT)) == 1


def test_parts_on_two_workers() -> None:
    orders = {**COUPLED_ORDERS, (0, 1): "F00 B00 F01", (1, 1): "F10 B10 F11 B11"}
    bundle = coupled_plan()
    streams = streams_from_orders(bundle.job, orders)
    streams[1, 1] = (Instruction(Opcode.BACKWARD, 1, 0, 1, 1), *streams[1, 1])
    (violation,) = found(MemoryBundle(bundle.job, bundle.plans, (streams,)), VerifierRule.OP_HOST)
    assert violation.worker == (1, 1)
    assert violation.message == "backward of p0 m1 on stage 1 runs here, its forward on worker 0:1"


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("backward_weight p0 m0 b0", "backward_input p0 m0 b0"),
        ("backward_input p0 m0 b0", "load p0 m0 b0"),
    ],
)
def test_parts_in_the_wrong_order(text: str, before: str) -> None:
    (violation,) = found(split_plan().moved((0, 1), text, before), VerifierRule.OP_ORDER)
    assert violation.worker == (0, 1)


def test_a_split_backward_when_decouple_is_off() -> None:
    bundle = split_plan().with_job(techniques=Techniques(decouple=False))
    assert len(found(bundle, VerifierRule.TECHNIQUE_OFF)) == 16


def test_work_on_a_broken_pipeline_when_adaptive_is_off() -> None:
    bundle = split_plan().with_job(techniques=Techniques(adaptive=False))
    (violation,) = found(bundle, VerifierRule.TECHNIQUE_OFF)
    assert violation.message == (
        "adaptive is off: micro-batches take 2 routes, only 1 whole pipelines are left"
    )


@pytest.mark.parametrize(
    ("worker", "old", "new", "words"),
    [
        ((0, 0), "forward p0 m1 b1", "forward p2 m1 b1", "pipeline must be between 0 and 1, got 2"),
        ((0, 0), "forward p0 m1 b1", "forward p0 m2 b1", "micro-batch must be between 0 and 1, got 2"),
        ((0, 0), "forward p0 m1 b1", "forward p0 m1 b-2", "buffer must be between 0 and 3, got -2"),
        ((0, 0), "forward p0 m1 b1", "forward p0 m1 b1 i0", "inbox is not used here and must be -1, got 0"),
        (
            (0, 0),
            "backward_input p0 m0 b0 i0",
            "backward_input p0 m0 b0 i9",
            "inbox must be between 0 and 7, got 9",
        ),
        (
            (0, 0),
            "send_activation p0 m1 b1 @0",
            "send_activation p0 m1 b1 @7",
            "neighbour must be between 0 and 3, got 9",
        ),
        ((0, 0), "reduce", "reduce p0", "pipeline is not used here and must be -1, got 0"),
        (
            (0, 1),
            "recv_activation p0 m0 i0 @0",
            f"recv_activation p{10**30} m0 i0 @0",
            "got 4611686018427387904",
        ),
    ],
)
def test_fields_out_of_range(worker: tuple[int, int], old: str, new: str, words: str) -> None:
    (violation,) = found(split_plan().replaced(worker, old, new), VerifierRule.FIELD_RANGE)
    assert violation.worker == worker
    assert words in violation.message


def test_an_unknown_opcode() -> None:
    odd = Instruction(99)  # pyright: ignore[reportArgumentType]
    bundle = split_plan()
    (violation,) = found(
        bundle.with_stream((0, 0), [odd, *bundle.streams[0][0, 0]]), VerifierRule.FIELD_RANGE
    )
    assert (violation.position, violation.message) == (0, "unknown opcode 99")


def test_a_load_that_is_missing() -> None:
    (violation,) = found(split_plan().without((0, 1), "load p1 m1 b3"), VerifierRule.LOAD_PLACE)
    assert violation.message == "forward p1 m1 has no load directly before it"


def test_a_load_too_early() -> None:
    bundle = split_plan().moved((0, 0), "load p0 m1 b1", before="forward p0 m0 b0")
    assert len(found(bundle, VerifierRule.LOAD_PLACE)) == 4


def test_a_load_on_an_inner_stage() -> None:
    job = tiny_job(stages=3, pipelines=1, microbatches=1)
    orders = {(0, stage): "F00 I00 W00" for stage in range(3)}
    streams = streams_from_orders(job, orders)
    bundle = MemoryBundle(job, (Entry(release=(0, 0, 0), makespan=7, period=10),), (streams,))
    assert verify_plan(bundle, 0).violations == ()
    (violation,) = found(
        bundle.inserted((0, 1), "load p0 m0 b0", "forward p0 m0 b0 i0"), VerifierRule.LOAD_PLACE
    )
    assert violation.message == "load p0 m0 on stage 1: only the first and the last stage load"


@pytest.mark.parametrize("text", ["reduce", "optimizer", "validate"])
def test_a_missing_step_at_the_end(text: str) -> None:
    (violation,) = found(split_plan().without((1, 0), text), VerifierRule.FINISH_STEPS)
    assert violation.message == f"a staggered stream has 1 {text}, found 0"


def test_steps_at_the_end_in_the_wrong_order() -> None:
    (violation,) = found(split_plan().moved((1, 0), "optimizer", before="reduce"), VerifierRule.FINISH_STEPS)
    assert violation.message == "a staggered stream must end with reduce, optimizer, validate"


def test_work_behind_the_reduction() -> None:
    bundle = split_plan().moved((1, 0), "reduce", before="backward_weight p1 m1 b1")
    assert len(found(bundle, VerifierRule.FINISH_STEPS)) == 1


def test_a_barrier_where_there_must_be_none_and_the_other_way_round() -> None:
    assert (
        len(found(split_plan().inserted((1, 0), "barrier", before="reduce"), VerifierRule.FINISH_STEPS)) == 1
    )
    (violation,) = found(coupled_plan().without((1, 1), "barrier"), VerifierRule.FINISH_STEPS)
    assert violation.message == "a non-staggered stream has 1 barrier, found 0"


def test_streams_with_nothing_in_them() -> None:
    bundle = split_plan()
    streams = {worker: () for worker in bundle.streams[0]}
    (violation,) = verify_plan(MemoryBundle(bundle.job, bundle.plans, (streams,)), 0).violations
    assert (violation.rule, violation.message) == (
        VerifierRule.OP_COUNT,
        "8 forwards are needed, found 0 usable instructions in all",
    )


def test_a_job_much_larger_than_its_streams_is_refused_at_once() -> None:
    bundle = split_plan().with_job(microbatches=10**12)
    assert [violation.rule for violation in verify_plan(bundle, 0).violations] == [VerifierRule.OP_COUNT]
