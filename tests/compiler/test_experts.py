"""Jobs whose peers share experts: from the job to bundles that verifier and simulator accept."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.backends.bundle import bundle_bytes, read_streams
from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.job import JobSpec, parse_job, print_job
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.text import parse_graph, parse_schedule, print_graph, print_schedule
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.planner.compile import compile_job, plan_failed
from recycle_compiler.simulator.engine import simulate
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode
from tests.compiler.test_sharded import sharded
from tests.support.jobs import figure3, small_targets


def with_experts(job: JobSpec, slots: int = 2) -> JobSpec:
    """The job with slots for experts, and so with a sharded state."""
    techniques = replace(job.techniques, adaptive=True)
    return replace(sharded(replace(job, techniques=techniques)), slots=slots, placed_every=1)


def small_expert_targets() -> st.SearchStrategy[Target]:
    return small_targets().map(lambda target: Target(with_experts(target.job), target.failed))


@settings(max_examples=80, deadline=None)
@given(small_expert_targets())
def test_every_plan_in_rounds_holds(target: Target) -> None:
    """Verified, simulated to the planned times, and read back from text."""
    plan = plan_failed(target.job, target.failed)
    bundle = Bundle.parse(bundle_bytes(source="", plans=[plan]))
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    run = simulate(bundle, 0, iterations=3)
    assert (run.period, run.makespan) == (plan.claims.period, plan.claims.makespan)
    schedule = replay(read_streams(bundle, 0))
    assert list(schedule.verify()) == []
    assert print_schedule(parse_schedule(print_schedule(schedule))) == print_schedule(schedule)
    graph = GRAPH_PASSES.run(target)
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)


def test_who_has_no_micro_batch_in_a_round_serves() -> None:
    job = replace(with_experts(figure3(6)), microbatches=5, failures=2)
    plans = compile_job(job)
    bundle = Bundle.parse(bundle_bytes(source="", plans=plans))
    assert (bundle.slots, bundle.placed_every) == (2, 1)
    assert parse_job(print_job(job).splitlines()) == job
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    served = [
        [row.opcode for _, stream in plan.items() for row in stream if row.opcode >= Opcode.SERVE_FORWARD]
        for plan in plans
    ]
    # 15 micro-batches are 5 rounds of 3 workers, and 8 of 2, the last of which is short of one.
    assert served[0] == []
    assert served[1] == [Opcode.SERVE_FORWARD, Opcode.SERVE_BACKWARD_INPUT, Opcode.SERVE_BACKWARD_WEIGHT]
