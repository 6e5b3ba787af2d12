"""Plans of random jobs in layers under random cuts: no rule finds anything."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.ir.job import JobSpec, parse_job, print_job
from recycle_compiler.ir.layout import Layout, absent_cells, halved, job_of_layout
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.search import Effort
from recycle_compiler.simulator.engine import simulate
from recycle_compiler.verifier.report import VerifierRule
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle
from tests.support.layers import expert_jobs_and_layouts, jobs_and_layouts


def violations(job: JobSpec, derived: JobSpec, layout: Layout) -> list[tuple[VerifierRule, str]]:
    own = plan_failed(job, (), effort=Effort().least())
    recut = plan_failed(derived, absent_cells(derived, layout), effort=Effort().least())
    bundle = Bundle.parse(bundle_bytes(source="", plans=[own], recuts=[[recut]]))
    return [(one.rule, str(one)) for one in verify_bundle(bundle)]


@settings(max_examples=40)
@given(jobs_and_layouts())
def test_all_rules_hold(pair: tuple[JobSpec, Layout]) -> None:
    job, layout = pair
    assert violations(job, job_of_layout(job, layout), layout) == []


@settings(max_examples=40, deadline=None)
@given(expert_jobs_and_layouts())
def test_experts_that_peers_share(pair: tuple[JobSpec, Layout]) -> None:
    """All rules hold, and the engine finds the planned times; other numbers are none of these layers."""
    job, layout = pair
    derived = job_of_layout(job, layout)
    assert violations(job, derived, layout) == []
    own = plan_failed(job, (), effort=Effort().least())
    plan = plan_failed(derived, absent_cells(derived, layout), effort=Effort().least())
    run = simulate(Bundle.parse(bundle_bytes(source="", plans=[plan])), 0, iterations=2)
    assert (run.period, run.makespan) == (plan.claims.period, plan.claims.makespan)
    assert parse_job(print_job(derived).splitlines()) == derived
    more = derived.expert_counts or (0,) * derived.chunks
    for changed in (
        replace(derived, slots=job.slots + 1),
        replace(derived, expert_counts=(more[0] + 1, *more[1:]), slot_transfer=()),
        replace(derived, forward=(derived.forward[0] + 1, *derived.forward[1:])),
    ):
        forged = bundle_bytes(source="", plans=[own], recuts=[[replace(plan, job=changed)]])
        assert list(verify_bundle(Bundle.parse(forged)))


@settings(max_examples=15)
@given(jobs_and_layouts(), st.sampled_from([0, 40_000, 333_333]))
def test_micro_batches_split_in_two(pair: tuple[JobSpec, Layout], over: int) -> None:
    """Halves that cost what the job says are good; halves that a job does not allow are no cut of it."""
    job, layout = pair
    split = replace(job, split_ppm=over)
    derived = job_of_layout(halved(split), layout)
    assert violations(split, derived, layout) == []
    assert VerifierRule.CUT_MODEL in {rule for rule, _ in violations(job, derived, layout)}
    cheaper = replace(derived, forward=(derived.forward[0] + 1, *derived.forward[1:]))
    assert {rule for rule, _ in violations(split, cheaper, layout)} == {VerifierRule.CUT_COSTS}
