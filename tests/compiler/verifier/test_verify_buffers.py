"""Buffers and inboxes: overwritten, mixed up, used after they were freed, never freed."""

import pytest

from recycle_compiler.verifier.report import VerifierRule
from tests.compiler.verifier.tiny_plans import coupled_plan, found, split_plan


def test_a_buffer_that_is_still_held() -> None:
    bundle = split_plan().replaced((0, 1), "load p1 m0 b1", "load p1 m0 b0")
    bundle = bundle.replaced((0, 1), "forward p1 m0 b1 i1", "forward p1 m0 b0 i1")
    (violation,) = found(bundle, VerifierRule.BUFFER_REUSE)
    assert violation.message == "load p1 m0 names buffer 0, which forward p0 m0 still holds"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("backward_input p1 m0 b1", "backward_input p1 m0 b0"),
        ("send_gradient p1 m0 b1 @1", "send_gradient p1 m0 b0 @1"),
        ("backward_input p0 m0 b0", "backward_input p0 m0 b3"),
    ],
)
def test_an_op_that_names_the_buffer_of_another(old: str, new: str) -> None:
    (violation,) = found(split_plan().replaced((0, 1), old, new), VerifierRule.BUFFER_MATCH)
    assert violation.message.endswith("which holds another micro-batch or nothing")


def test_a_weight_gradient_with_the_wrong_buffer_leaves_its_own_held() -> None:
    bundle = split_plan().replaced((0, 1), "backward_weight p1 m0 b1", "backward_weight p1 m0 b0")
    assert [violation.message for violation in found(bundle, VerifierRule.BUFFER_MATCH)] == [
        "backward weight p1 m0 names buffer 0, which holds another micro-batch or nothing",
        "forward p1 m0 names buffer 1, which is never freed",
    ]


def test_a_buffer_used_after_it_was_freed() -> None:
    bundle = split_plan().moved((0, 1), "backward_weight p0 m0 b0", before="backward_input p0 m0 b0")
    (violation,) = found(bundle, VerifierRule.BUFFER_MATCH)
    assert violation.message == "backward input p0 m0 names buffer 0, which is free by then"


def test_a_load_into_another_buffer_than_its_forward() -> None:
    bundle = split_plan().replaced((0, 0), "load p0 m1 b1", "load p0 m1 b2")
    (violation,) = found(bundle, VerifierRule.BUFFER_MATCH)
    assert violation.message == "load p0 m1 names buffer 2, which is never freed"


def test_a_coupled_backward_frees_its_buffer_before_its_gradient_is_sent() -> None:
    stream = coupled_plan().streams[0][0, 1]
    assert {step.buffer for step in stream if step.buffer >= 0} == {0}
    assert found(coupled_plan(), VerifierRule.BUFFER_REUSE) == []


def test_an_inbox_that_is_still_full() -> None:
    bundle = split_plan().replaced((0, 1), "recv_activation p1 m0 i1 @1", "recv_activation p1 m0 i0 @1")
    bundle = bundle.replaced((0, 1), "forward p1 m0 b1 i1", "forward p1 m0 b1 i0")
    (violation, _) = found(bundle, VerifierRule.INBOX_REUSE)
    assert violation.message == "recv activation p1 m0 names inbox 0, which still holds recv activation p0 m0"


def test_an_op_that_looks_into_the_wrong_inbox() -> None:
    bundle = split_plan().replaced((0, 1), "forward p1 m0 b1 i1", "forward p1 m0 b1 i0")
    (violation, *_) = found(bundle, VerifierRule.INBOX_MATCH)
    assert violation.message == "forward p1 m0 names inbox 0, which does not hold its message"


def test_an_inbox_that_nobody_empties() -> None:
    bundle = split_plan().replaced((1, 0), "backward_input p1 m1 b1 i1", "backward_input p1 m1 b1 i2")
    assert [violation.message for violation in found(bundle, VerifierRule.INBOX_MATCH)] == [
        "backward input p1 m1 names inbox 2, which does not hold its message",
        "recv gradient p1 m1 names inbox 1, which is never emptied",
    ]
