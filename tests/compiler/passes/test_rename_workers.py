"""Plans renamed to the workers that have failed."""

import pytest
from hypothesis import given, settings

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.ir.failure import failed_per_stage, failure_set, normal_form
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.rename_workers import RenameWorkers
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.search import Effort
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle
from tests.support.jobs import small_targets, unit_job

SHORT = Effort().prompt().quick()
"""Enough for plans that need not be good."""


@settings(max_examples=30)
@given(small_targets().filter(lambda target: all(target.hosts)))
def test_a_renamed_plan_is_the_same_plan(target: Target) -> None:
    counts = failed_per_stage(target.failed, target.job.stages)
    planned = plan_failed(target.job, normal_form(counts, target.job.pipelines), effort=SHORT)
    renamed = RenameWorkers(target.failed).run(planned)
    assert renamed.failed == target.failed
    assert renamed.claims == planned.claims
    bundle = Bundle.parse(bundle_bytes(source="", plans=[renamed]))
    assert [str(violation) for violation in verify_bundle(bundle)] == []


def test_a_plan_is_not_renamed_to_other_counts() -> None:
    program = plan_failed(unit_job(2, 2, 2), failure_set([(1, 1)]))
    with pytest.raises(ValueError, match="other counts"):
        RenameWorkers(failure_set([(1, 0)])).run(program)
