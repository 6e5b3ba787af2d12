"""Chunks that share parameters: from the job to a bundle that verifier and event engine accept."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.backends.bundle import bundle_bytes, read_streams
from recycle_compiler.backends.replay import replay
from recycle_compiler.cli.main import main
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.job import JobSpec, Techniques, parse_job, print_job
from recycle_compiler.ir.layout import Layout, job_of_layout
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.build_graph import BuildGraph
from recycle_compiler.passes.split_backward import SplitBackward
from recycle_compiler.passes.stagger_optimizer import StaggerOptimizer
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.simulator.engine import simulate
from recycle_compiler.verifier.report import VerifierRule
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle, BundleError
from recycle_runtime.plan.bundle_index import pack_index, unpack_index
from recycle_runtime.plan.isa import Opcode
from tests.support.chunks import chunked_job, chunked_jobs

NO_FAILURE = failure_set([])


def tied(job: JobSpec, *chunks: int, reduce: int = 500) -> JobSpec:
    times = tuple(time + reduce * (chunk in chunks) for chunk, time in enumerate(job.reduce))
    return replace(job, tied=chunks, tied_reduce=reduce, reduce=times)


def bundled(*plans: Streams) -> Bundle:
    return Bundle.parse(bundle_bytes(source="", plans=list(plans)))


def ends_of(schedule: Schedule, kinds: tuple[OpKind, ...], chunks: tuple[int, ...]) -> int:
    chosen = np.isin(schedule.ops.kind, kinds) & np.isin(schedule.ops.chunk, chunks)
    return int(schedule.end[chosen].max())


def test_the_text_of_a_job_says_so() -> None:
    job = tied(chunked_job((0, 1, 2), 2, 2), 0, 2)
    assert "tied 0 2\ntied_reduce 500\n" in print_job(job)
    assert parse_job(print_job(job).splitlines()) == job


@pytest.mark.parametrize("chunks", [(1,), (2, 0), (0, 0), (0, 3)])
def test_what_cannot_be_tied(chunks: tuple[int, ...]) -> None:
    assert list(replace(chunked_job((0, 1, 2), 2, 2), tied=chunks).verify())


def test_not_where_workers_hold_several_chunks() -> None:
    job = replace(chunked_job((0, 1, 1, 0), 2, 2), tied=(0, 3))
    assert list(job.verify()) == ["chunks cannot be tied where workers hold several"]


def test_tied_chunks_wait_for_one_synchronization() -> None:
    """W of either -> S -> R of both."""
    job = tied(chunked_job((0, 1, 2), 2, 2), 0, 2)
    graph = StaggerOptimizer().run(SplitBackward().run(BuildGraph().run(Target(job, NO_FAILURE))))
    assert not list(graph.verify())
    syncs = np.flatnonzero(graph.ops.kind == OpKind.S)
    assert graph.ops.chunk[syncs].tolist() == [0, 1]
    for sync, chunks in zip(syncs.tolist(), ({0, 2}, {1}), strict=True):
        assert set(graph.ops.chunk[graph.before[graph.after == sync]].tolist()) == chunks
        assert set(graph.ops.chunk[graph.after[graph.before == sync]].tolist()) == chunks


@settings(max_examples=60, deadline=None)
@given(chunked_jobs(), st.data())
def test_every_plan_holds(job: JobSpec, data: st.DataObject) -> None:
    """Both steps after all work of both; verifier, engine and streams read back agree on the period."""
    order = tuple(range(job.chunks))
    job = replace(job, stages=job.chunks, chunk_stages=order, capacity=(None,) * job.chunks)
    job = tied(job, 0, job.chunks - 1, reduce=data.draw(st.sampled_from([0, 500, 2000])))
    fails = data.draw(st.sampled_from([[], [(1, 0)], [(1, job.chunks - 1)]])) if job.pipelines > 1 else []
    plan = plan_failed(job, failure_set(fails))
    bundle = bundled(plan)
    assert not list(verify_bundle(bundle))
    assert simulate(bundle, 0, iterations=3).period == plan.claims.period
    schedule = replay(read_streams(bundle, 0))
    assert not list(schedule.verify())
    work = ends_of(schedule, (OpKind.F, OpKind.B, OpKind.I, OpKind.W), job.tied_chunks)
    reductions = (schedule.ops.kind == OpKind.R) & np.isin(schedule.ops.chunk, job.tied_chunks)
    assert (schedule.start[reductions] >= work).all()
    assert plan.claims.lower_bound <= plan.claims.period


@settings(max_examples=30, deadline=None)
@given(chunked_jobs(microbatches=2))
def test_a_tie_never_makes_a_step_shorter(job: JobSpec) -> None:
    order = tuple(range(job.chunks))
    job = replace(job, stages=job.chunks, chunk_stages=order, capacity=(None,) * job.chunks)
    free, bound = (
        plan_failed(job, NO_FAILURE),
        plan_failed(tied(job, 0, job.chunks - 1, reduce=0), NO_FAILURE),
    )
    assert bound.claims.period >= free.claims.lower_bound


def good() -> Streams:
    job = tied(chunked_job((0, 1, 2), 2, 2, techniques=Techniques()), 0, 2)
    return plan_failed(job, NO_FAILURE)


def test_a_plan_that_ignores_the_tie_is_refused() -> None:
    """Its claims are those of the same job without it."""
    plan = plan_failed(tied(chunked_job((0, 1), 2, 4), 0, 1), NO_FAILURE)
    untied = plan_failed(replace(plan.job, tied=(), tied_reduce=0), NO_FAILURE)
    assert untied.claims.period < plan.claims.period
    rules = {violation.rule for violation in verify_bundle(bundled(replace(untied, job=plan.job)))}
    assert rules & {VerifierRule.CLAIM_PERIOD, VerifierRule.ITERATION_OVERLAP}


def test_a_worker_that_never_reduces_is_waited_for() -> None:
    plan = good()
    rows = np.flatnonzero((plan.opcode == Opcode.REDUCE) & (plan.chunk == 2))[:1]
    opcode = plan.opcode.copy()
    opcode[rows] = Opcode.OPTIMIZER
    found = [
        each
        for each in verify_bundle(bundled(replace(plan, opcode=opcode)))
        if each.rule is VerifierRule.DEADLOCK
    ]
    assert found and "in reduce" in found[0].message


def test_index_and_job_must_agree() -> None:
    bundle = bundled(good())
    packed = pack_index(bundle)
    assert unpack_index(packed).tied_chunks == (0, 2)
    for wrong in (b"\x02\x02\x00", b"\x02\x00\x03", b"\x01\x00", b"\x02\x00\x02\x00"):
        with pytest.raises(BundleError, match="damaged"):
            unpack_index(packed[:-3] + wrong)


def test_another_cut_may_put_both_on_one_worker(tmp_path: Path) -> None:
    source, plan = tmp_path / "tied.job", tmp_path / "tied.plan"
    source.write_text(
        "job tied {\n"
        "  parallel { pipeline = 2  data = 2  tied = ends  tied_reduce = 0.5 }\n"
        "  batch { microbatches = 2 }\n"
        "  layers { count = 5  forward = 1  backward_input = 1  backward_weight = 1  reduce = 0.2 }\n"
        "  tolerate { failures = 2 }\n}\n"
    )
    assert main(["--quiet", "compile", str(source), "-o", str(plan), "--jobs", "1"]) == 0
    bundle = Bundle.read(plan)
    assert not list(verify_bundle(bundle))
    assert bundle.tied_chunks == (0, 1)
    alone = next(recut for recut in bundle.recuts if recut.stages == 1)
    assert alone.tied_chunks == ()
    job = parse_job(bundle.job_text.splitlines())
    assert job.tied == (0, 4)
    assert job_of_layout(job, Layout((5,), (3,))).reduce == (667 * 2,)
    apart, together = (
        job_of_layout(replace(job, tied_reduce=cost), Layout((2, 3), (2, 2))) for cost in (0, 500)
    )
    assert [one - other for one, other in zip(together.reduce, apart.reduce, strict=True)] == [500, 500]
