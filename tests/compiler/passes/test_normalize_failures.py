"""Failures in normal form, and plans renamed to the workers that have failed."""

import pytest
from hypothesis import given, settings

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.ir.failure import failed_per_stage, failure_set, normal_form
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.normalize_failures import NormalizeFailures, relabel
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle
from tests.support.jobs import small_targets, unit_job


def test_normal_form_gives_losses_to_the_last_pipelines() -> None:
    target = Target(unit_job(4, 3, 2), failure_set([(0, 1), (2, 1), (1, 3)]))
    assert NormalizeFailures().run(target).failed == failure_set([(2, 1), (1, 1), (2, 3)])


@settings(max_examples=30)
@given(small_targets().filter(lambda target: all(target.hosts)))
def test_a_renamed_plan_is_the_same_plan(target: Target) -> None:
    counts = failed_per_stage(target.failed, target.job.stages)
    planned = plan_failed(target.job, normal_form(counts, target.job.pipelines))
    renamed = relabel(planned, target.failed)
    assert renamed.failed == target.failed
    assert renamed.claims == planned.claims
    bundle = Bundle.parse(bundle_bytes(source="", plans=[renamed]))
    assert [str(violation) for violation in verify_bundle(bundle)] == []


def test_a_plan_is_not_renamed_to_other_counts() -> None:
    program = plan_failed(unit_job(2, 2, 2), failure_set([(1, 1)]))
    with pytest.raises(ValueError, match="other counts"):
        relabel(program, failure_set([(1, 0)]))
