"""Sends and receives that do not meet, stand in the wrong place or order, or wait for each other."""

import pytest

from recycle_compiler.verifier.report import VerifierRule
from recycle_compiler.verifier.verify import verify_plan
from tests.compiler.verifier.memory_bundle import MemoryBundle
from tests.compiler.verifier.tiny_plans import found, split_plan


@pytest.mark.parametrize(
    ("worker", "text", "message"),
    [
        (
            (0, 0),
            "send_activation p0 m1 b1 @0",
            "forward p0 m1 has no send of the activation that goes with it",
        ),
        (
            (0, 1),
            "recv_activation p1 m1 i1 @1",
            "forward p1 m1 has no receive of the activation that goes with it",
        ),
        (
            (0, 1),
            "send_gradient p1 m0 b1 @1",
            "backward input p1 m0 has no send of the gradient that goes with it",
        ),
        (
            (0, 0),
            "recv_gradient p0 m1 i0 @0",
            "backward input p0 m1 has no receive of the gradient that goes with it",
        ),
    ],
)
def test_one_end_of_a_message_is_missing(worker: tuple[int, int], text: str, message: str) -> None:
    (violation,) = found(split_plan().without(worker, text), VerifierRule.MESSAGE_MATCH)
    assert (violation.worker, violation.message) == (worker, message)


def test_a_message_that_is_sent_twice() -> None:
    again = "send_activation p0 m1 b1 @0"
    (violation,) = found(split_plan().inserted((0, 0), again, before=again), VerifierRule.MESSAGE_MATCH)
    assert violation.message == "send activation p0 m1 is a repetition"


def test_a_message_to_the_wrong_worker() -> None:
    bundle = split_plan().replaced((0, 1), "send_gradient p1 m0 b1 @1", "send_gradient p1 m0 b1 @0")
    (violation,) = found(bundle, VerifierRule.MESSAGE_MATCH)
    assert violation.message == "send gradient p1 m0 names worker 0:0, the other end is on worker 1:0"


def test_a_message_from_a_worker_that_did_not_make_it() -> None:
    bundle = split_plan().without((1, 0), "send_activation p1 m1 b1 @0")
    bundle = bundle.inserted((0, 0), "send_activation p1 m1 b1 @0", before="backward_input p0 m0 b0 i0")
    messages = [violation.message for violation in found(bundle, VerifierRule.MESSAGE_MATCH)]
    assert messages == [
        "send activation p1 m1 stands on a worker that does not run the op it goes with",
    ]


def test_a_message_past_either_end_of_the_pipeline() -> None:
    up = split_plan().inserted((0, 0), "send_gradient p0 m0 b0 @0", before="reduce")
    down = split_plan().inserted((0, 1), "send_activation p0 m0 b0 @0", before="reduce")
    assert [violation.message for violation in found(up, VerifierRule.MESSAGE_MATCH)] == [
        "send gradient p0 m0 on stage 0: there is no previous stage"
    ]
    assert [violation.message for violation in found(down, VerifierRule.MESSAGE_MATCH)] == [
        "send activation p0 m0 on stage 1: there is no next stage"
    ]


def test_a_send_behind_the_next_op() -> None:
    bundle = split_plan().moved((0, 0), "send_activation p0 m1 b1 @0", before="recv_gradient p0 m1 i0 @0")
    (violation,) = found(bundle, VerifierRule.MESSAGE_PLACE)
    assert (
        violation.message
        == "send activation p0 m1 does not stand between forward p0 m1 and the op after that"
    )


def test_a_send_before_its_op() -> None:
    bundle = split_plan().moved((0, 0), "send_activation p0 m1 b1 @0", before="load p0 m1 b1")
    assert len(found(bundle, VerifierRule.MESSAGE_PLACE)) == 1


def test_a_receive_behind_the_op_that_waits_for_it() -> None:
    bundle = split_plan().moved((0, 1), "recv_activation p1 m1 i1 @1", before="backward_input p1 m1 b3")
    (violation,) = found(bundle, VerifierRule.MESSAGE_PLACE)
    assert violation.message == "recv activation p1 m1 stands behind forward p1 m1, which waits for it"


def test_receives_out_of_order() -> None:
    bundle = split_plan().moved((1, 0), "recv_gradient p1 m1 i1 @0", before="recv_gradient p1 m0 i0 @0")
    assert [violation.rule for violation in verify_plan(bundle, 0).violations] == [VerifierRule.MESSAGE_ORDER]
    (violation,) = found(bundle, VerifierRule.MESSAGE_ORDER)
    assert violation.message == "recv gradient p1 m1 meets send gradient p1 m0 at 11 of worker 0:1"


def test_sends_that_wait_for_each_other() -> None:
    """Each side sends before it posts what the other wants to send: fine with buffering, stuck without."""
    bundle = split_plan()
    bundle = bundle.moved((0, 0), "recv_gradient p0 m0 i0 @0", before="backward_input p0 m0 b0 i0")
    bundle = bundle.moved((0, 1), "recv_activation p0 m1 i0 @0", before="load p1 m0 b1")
    (violation,) = verify_plan(bundle, 0).violations
    assert violation.rule is VerifierRule.DEADLOCK
    assert violation.message == (
        "without buffering, workers wait in a cycle: "
        "0:0 in send activation p0 m1 at 5 for 0:1; 0:1 in send gradient p0 m0 at 5 for 0:0"
    )


def test_a_worker_that_waits_for_one_that_has_ended() -> None:
    bundle = split_plan().without((0, 0), "recv_gradient p0 m1 i0 @0")
    (violation,) = found(bundle, VerifierRule.DEADLOCK)
    assert violation.message.startswith("without buffering, workers wait in a cycle: ")
    bundle = split_plan().without((1, 0), "reduce")
    (violation,) = found(bundle, VerifierRule.DEADLOCK)
    assert violation.message == (
        "without buffering, workers wait for what never comes: 0:0 in reduce at 12 for 1:0, which has ended"
    )


def test_a_send_to_a_worker_without_a_stream() -> None:
    bundle = split_plan().replaced((0, 0), "send_activation p0 m1 b1 @0", "send_activation p0 m1 b1 @1")
    messages = [violation.message for violation in found(bundle, VerifierRule.DEADLOCK)]
    assert messages == [
        "without buffering, workers wait for what never comes: 0:0 in send activation p0 m1 at 6 "
        "for a worker that has no stream"
    ]


def test_everything_that_is_wrong_is_reported() -> None:
    bundle: MemoryBundle = split_plan().without((0, 0), "load p0 m0 b0").without((1, 0), "validate")
    bundle = bundle.with_entry(makespan=14, lower_bound=16)
    assert {violation.rule for violation in verify_plan(bundle, 0).violations} == {
        VerifierRule.LOAD_PLACE,
        VerifierRule.FINISH_STEPS,
        VerifierRule.CLAIM_MAKESPAN,
        VerifierRule.CLAIM_BOUND,
    }
