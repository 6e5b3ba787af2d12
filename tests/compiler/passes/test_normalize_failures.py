"""Only counts per stage matter."""

from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.normalize_failures import NormalizeFailures
from tests.support.jobs import unit_job


def test_normal_form_gives_failures_to_the_last_pipelines() -> None:
    target = Target(unit_job(4, 3, 2), failure_set([(0, 1), (2, 1), (1, 3)]))
    assert NormalizeFailures().run(target).failed == failure_set([(2, 1), (1, 1), (2, 3)])
