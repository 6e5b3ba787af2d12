"""Claims of plans about themselves, alone and next to the other plans of their bundle."""

from dataclasses import replace

import pytest

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.job import Techniques
from recycle_compiler.verifier.report import VerifierRule
from recycle_compiler.verifier.verify import verify_bundle, verify_plan
from recycle_runtime.plan.bundle import BundleError
from recycle_runtime.plan.isa import Instruction
from tests.compiler.verifier.memory_bundle import Cell, Entry, MemoryBundle
from tests.compiler.verifier.tiny_plans import coupled_plan, found, split_plan


def test_a_false_makespan() -> None:
    (violation,) = verify_plan(split_plan().with_entry(makespan=12), 0).violations
    assert (violation.rule, violation.message) == (
        VerifierRule.CLAIM_MAKESPAN,
        "claims 12, the streams take 13",
    )


def test_a_period_that_is_too_long() -> None:
    (violation,) = verify_plan(split_plan().with_entry(period=16), 0).violations
    assert (violation.rule, violation.message) == (
        VerifierRule.CLAIM_PERIOD,
        "claims 16, the streams take 15",
    )


def test_a_period_that_is_too_short() -> None:
    bundle = split_plan().with_entry(period=14, lower_bound=14)
    assert [violation.message for violation in found(bundle, VerifierRule.CLAIM_PERIOD)] == [
        "claims 14, the streams take 15",
        "claims 14, the load of stage 1 alone takes 15",
    ]
    (violation,) = found(bundle, VerifierRule.ITERATION_OVERLAP)
    assert violation.worker == Worker(0, 1)


@pytest.mark.parametrize("period", [0, -5, 10**40])
def test_a_period_without_sense(period: int) -> None:
    assert found(split_plan().with_entry(period=period), VerifierRule.CLAIM_PERIOD)


@pytest.mark.parametrize("bound", [0, -1, 16])
def test_a_bound_outside_what_it_bounds(bound: int) -> None:
    (violation,) = verify_plan(split_plan().with_entry(lower_bound=bound), 0).violations
    assert violation.rule is VerifierRule.CLAIM_BOUND
    assert violation.message == f"a lower bound must be between 1 and the period 15, got {bound}"


@pytest.mark.parametrize("release", [(), (0,), (0, -1), (0, 10**30), (0, 0, 0)])
def test_windows_without_sense(release: tuple[int, ...]) -> None:
    assert [
        violation.rule for violation in verify_plan(split_plan().with_entry(release=release), 0).violations
    ] == [VerifierRule.CLAIM_RELEASE]


def test_times_count_from_zero() -> None:
    (violation,) = verify_plan(split_plan().with_entry(release=(1, 0)), 0).violations
    assert (violation.rule, violation.message) == (
        VerifierRule.CLAIM_RELEASE,
        "the first op must start at 0, got 1",
    )


def _two_plans(first: Entry, second: Entry, techniques: Techniques | None = None) -> MemoryBundle:
    job = replace(split_plan().job, techniques=techniques or Techniques())
    return MemoryBundle(job, (first, second), (split_plan().streams[0],) * 2)


def test_a_bound_that_a_plan_with_more_failures_beats() -> None:
    fewer, more = (
        Entry(failed=((0, 1),), period=20, lower_bound=18),
        Entry(failed=((1, 0), (1, 1)), period=17),
    )
    (violation,) = (v for v in found(_two_plans(fewer, more), VerifierRule.CLAIM_BOUND) if v.plan == 0)
    assert violation.message == "claims that nothing beats 18, but plan 1, with no more workers, takes 17"
    slower = replace(more, period=18)
    assert found(_two_plans(fewer, slower), VerifierRule.CLAIM_BOUND) == []


def test_bounds_of_plans_that_cannot_be_compared() -> None:
    one = Entry(failed=((0, 0),), period=20, lower_bound=18)
    other = Entry(failed=((0, 1),), period=17, lower_bound=17)
    assert found(_two_plans(one, other), VerifierRule.CLAIM_BOUND) == []


def test_without_adaptive_whole_pipelines_are_compared() -> None:
    """A loss on either stage leaves one whole pipeline; with adaptive the two cannot be compared."""
    one = Entry(failed=((0, 0),), period=20, lower_bound=18)
    other = Entry(failed=((0, 1),), period=17, lower_bound=17)
    (violation,) = found(_two_plans(one, other, Techniques(adaptive=False)), VerifierRule.CLAIM_BOUND)
    assert violation.plan == 0
    assert found(_two_plans(one, other), VerifierRule.CLAIM_BOUND) == []


def test_two_plans_for_one_state() -> None:
    bundle = _two_plans(Entry(failed=((0, 0), (1, 1))), Entry(failed=((1, 1), (0, 0))))
    (violation,) = found(bundle, VerifierRule.INDEX_STATE)
    assert (violation.plan, violation.message) == (1, "is for the same failure state as plan 0")


@pytest.mark.parametrize(
    ("failed", "message"),
    [
        (((1, 1), (1, 1)), "a failed worker is named twice"),
        (((2, 1),), "failed worker 2:1 is not one of 2 x 2"),
        (((0, -1),), "failed worker 0:-1 is not one of 2 x 2"),
    ],
)
def test_a_state_without_sense(failed: tuple[Cell, ...], message: str) -> None:
    (violation,) = found(split_plan().with_entry(failed=failed), VerifierRule.INDEX_STATE)
    assert violation.message == message


def test_a_header_that_differs_from_the_job() -> None:
    (violation,) = verify_bundle(replace(split_plan(), stated_stages=3))
    assert (violation.rule, violation.message) == (
        VerifierRule.INDEX_SHAPE,
        "the bundle states 3 stages, its job has 2",
    )


@pytest.mark.parametrize("text", ["", "job x\n", "\x00\xff"])
def test_a_job_that_cannot_be_read(text: str) -> None:
    bundle = replace(split_plan(), text=text)
    assert [violation.rule for violation in verify_bundle(bundle)] == [VerifierRule.INDEX_SHAPE]
    assert not verify_plan(bundle, 0).passed


def test_a_job_beyond_counting() -> None:
    assert [v.rule for v in verify_bundle(split_plan().with_job(forward=(10**30, 1)))] == [
        VerifierRule.INDEX_SHAPE
    ]
    assert [v.rule for v in verify_bundle(split_plan().with_job(pipelines=10**9))] == [
        VerifierRule.INDEX_SHAPE
    ]


def test_a_live_worker_without_a_stream() -> None:
    bundle = coupled_plan()
    streams = {worker: stream for worker, stream in bundle.streams[0].items() if worker != (1, 1)}
    (violation,) = found(replace(bundle, streams=(streams,)), VerifierRule.INDEX_WORKER)
    assert (violation.worker, violation.message) == ((1, 1), "is live, but has no stream")


@pytest.mark.parametrize(
    ("worker", "why"), [((1, 1), "has a stream, but failed"), ((5, 0), "has a stream, but does not exist")]
)
def test_a_stream_for_nobody(worker: Cell, why: str) -> None:
    (violation,) = verify_plan(split_plan().with_stream(worker, ()), 0).violations
    assert (violation.rule, violation.worker, violation.message) == (VerifierRule.INDEX_WORKER, worker, why)


def test_a_stream_that_cannot_be_read() -> None:
    class Torn(MemoryBundle):
        def stream(self, plan_index: int, worker: Cell) -> tuple[Instruction, ...]:
            if worker == (1, 0):
                raise BundleError("the stream of worker 1:0 is cut off")
            return self.streams[plan_index][worker]

    whole = split_plan()
    torn = Torn(whole.job, whole.plans, whole.streams)
    (violation,) = found(torn, VerifierRule.STREAM_UNREADABLE)
    assert (violation.worker, violation.message) == (Worker(1, 0), "the stream of worker 1:0 is cut off")


def test_a_stage_that_nobody_may_run() -> None:
    bundle = split_plan().with_entry(failed=((0, 1), (1, 1)))
    assert "no live worker may run stage 1" in [v.message for v in found(bundle, VerifierRule.CLAIM_PERIOD)]


def test_a_violation_reads_as_a_line() -> None:
    (violation,) = verify_plan(split_plan().without((1, 0), "validate"), 0).violations
    assert str(violation) == "plan 0, worker 1:0: finish-steps: a staggered stream has 1 validate, found 0"
