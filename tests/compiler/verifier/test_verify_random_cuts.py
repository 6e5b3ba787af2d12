"""Plans of random jobs in layers under random cuts: no rule finds anything."""

from hypothesis import given, settings

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout, absent_cells, job_of_layout
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.search import Effort
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle
from tests.support.layers import jobs_and_layouts


@settings(max_examples=40)
@given(jobs_and_layouts())
def test_all_rules_hold(pair: tuple[JobSpec, Layout]) -> None:
    job, layout = pair
    derived = job_of_layout(job, layout)
    own = plan_failed(job, (), effort=Effort().least())
    recut = plan_failed(derived, absent_cells(derived, layout), effort=Effort().least())
    bundle = Bundle.parse(bundle_bytes(source="", plans=[own], recuts=[[recut]]))
    assert [str(violation) for violation in verify_bundle(bundle)] == []
