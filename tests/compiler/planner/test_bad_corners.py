"""Jobs at the edge of what is allowed: they plan at once, and the verifier agrees."""

from dataclasses import replace

import pytest

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.frontend.resolve import LARGEST_TOTAL
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.job import JobSpec, SolverOptions
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle
from tests.support.jobs import ALL, unit_job

LONGEST = LARGEST_TOTAL // (3 * 4 * 2 * 3 * 3)

CORNERS = {
    "one of everything": unit_job(1, 1, 1),
    "one stage": unit_job(1, 3, 40),
    "one pipeline": unit_job(6, 1, 5, capacity=1),
    "one micro-batch": unit_job(5, 4, 1),
    "one pipeline of one stage": unit_job(1, 1, 20, capacity=1),
    "room for one activation": unit_job(4, 2, 8, capacity=1),
    "room for one activation on the last stage only": unit_job(3, 2, 6, capacity=(None, 3, 1)),
    "more stages than micro-batches": unit_job(40, 2, 1),
    "many micro-batches on one stage": unit_job(1, 2, 400),
    "nothing follows the last op": unit_job(3, 2, 4, optimizer=0),
    "a job of the shortest times": replace(
        unit_job(2, 2, 3, optimizer=0),
        forward=(1, 1),
        backward_input=(1, 1),
        backward_weight=(1, 1),
    ),
    "no time to look for a plan": replace(
        unit_job(4, 3, 6, capacity=4), solver=SolverOptions(time_limit_ns=1)
    ),
    "no activation, no capacity": replace(
        unit_job(3, 2, 3), activation=(0, 0, 0), kept_for_weight=(0, 0, 0), capacity=(0, 0, 0)
    ),
    "nothing kept for W": replace(unit_job(3, 2, 6, capacity=1), kept_for_weight=(0, 0, 0)),
    "the longest times": replace(
        unit_job(3, 2, 4, capacity=2),
        forward=(LONGEST, LONGEST, LONGEST),
        backward_input=(LONGEST, 1, LONGEST),
    ),
    "a nanosecond beside seconds": replace(
        unit_job(3, 2, 4, capacity=2), forward=(10_000_000_000, 1, 1), transfer=(1, 9_999_999_999)
    ),
}


def violations(job: JobSpec, failed: tuple[tuple[int, int], ...]) -> list[str]:
    program = plan_failed(job, failure_set(failed))
    bundle = Bundle.parse(bundle_bytes(source="", plans=[program]))
    return [str(violation) for violation in verify_bundle(bundle)]


@pytest.mark.parametrize("name", CORNERS)
def test_a_corner_has_a_valid_plan(name: str) -> None:
    job = CORNERS[name]
    assert violations(job, ()) == []
    if job.pipelines > 1:
        assert violations(job, ((0, job.stages - 1),)) == []


@pytest.mark.parametrize("name", ["one micro-batch", "room for one activation", "one pipeline"])
def test_as_many_failures_as_can_be_survived(name: str) -> None:
    job = CORNERS[name]
    failed = tuple((pipeline, stage) for pipeline in range(1, job.pipelines) for stage in range(job.stages))
    assert violations(job, failed) == []


def test_without_adaptive_failures_of_several_pipelines_share_one() -> None:
    job = unit_job(3, 3, 2, techniques=replace(ALL, adaptive=False))
    assert violations(job, ((0, 0), (1, 1), (2, 2))) == []
