"""Groups of pipelines with cuts of their own: from a layout to a bundle that verifier and engine accept."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from recycle_compiler.backends.bundle import bundle_bytes, read_streams
from recycle_compiler.backends.replay import replay
from recycle_compiler.backends.torch_csv import TorchCsvError, torch_csv
from recycle_compiler.cli.main import main
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.groups import (
    GroupedLayout,
    absent_of_groups,
    grouped_layout_of,
    groups_in_plan,
    job_of_groups,
    parse_any_layout,
)
from recycle_compiler.ir.job import JobSpec, TextError, parse_job, print_job
from recycle_compiler.ir.layout import Layout
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.text import print_schedule
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.simulator.engine import simulate
from recycle_compiler.verifier.report import VerifierRule
from recycle_compiler.verifier.verify import verify_bundle
from recycle_compiler.viz.table import layout_cell
from recycle_runtime.plan.bundle import Bundle, BundleError
from recycle_runtime.plan.bundle_index import pack_index, unpack_index
from recycle_runtime.plan.isa import Opcode
from tests.support.layers import jobs_and_groups, layer_costs, layered_job

TEXT = "3x2,3x2@6+6x1@2"


def bundled(*plans: Streams) -> Bundle:
    return Bundle.parse(bundle_bytes(source="", plans=list(plans)))


def layered(text: str = TEXT, *, redundancy: int = 2, **costs: Any) -> tuple[JobSpec, GroupedLayout]:
    layout = parse_any_layout(text)
    assert isinstance(layout, GroupedLayout)
    count = sum(layout.groups[0].layers)
    costs = {"optimizer": 100, "reduce": 400, "transfer": 200, **costs}
    every = layer_costs((1000,) * count, **costs)
    return layered_job(every, (count,), 2, sum(layout.shares) // 2, redundancy=redundancy), layout


def planned(text: str = TEXT, **costs: Any) -> Streams:
    job, layout = layered(text, **costs)
    derived = job_of_groups(job, layout)
    return plan_failed(derived, absent_of_groups(derived, layout))


def rules_of(plan: Streams) -> set[VerifierRule]:
    return {violation.rule for violation in verify_bundle(bundled(plan))}


@pytest.mark.parametrize("text", [TEXT, "2x1,4x3@9+1x1,5x2@4+6x2@3"])
def test_the_text_of_a_layout_reads_back(text: str) -> None:
    assert str(parse_any_layout(text)) == text
    assert parse_any_layout("8x4,8x4") == Layout((8, 8), (4, 4))


@pytest.mark.parametrize("text", [TEXT, "2x1*3@9+1x1,5x2@4+6x2@3", "2x2*2,1x2*2@9+6x1@7"])
def test_a_layout_reads_back_as_tables_print_it(text: str) -> None:
    layout = parse_any_layout(text)
    assert parse_any_layout(layout_cell(layout, ())) == layout
    assert parse_any_layout("  8x4*2 , 7x5\n7x5 ") == Layout((8, 8, 7, 7), (4, 4, 5, 5))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("8x4*0", "a stage is LAYERSxWORKERS"),
        ("8x4*99999", "a stage is LAYERSxWORKERS"),
        ("8x4 * 2", r"got `\*`"),
        (f"8x4@{'9' * 5000}+8x4@1", "a group is a layout and its micro-batches"),
        ("8x4@3", "one group has all micro-batches"),
        ("8x4+8x2@3", "a group is a layout and its micro-batches"),
        ("8x4@0+8x2@3", "a group is a layout and its micro-batches"),
        ("8x4@2+4x2@3", "every group must have all layers"),
        ("8x@2+8x2@3", "a stage is LAYERSxWORKERS"),
    ],
)
def test_what_is_no_layout(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_any_layout(text)


def test_chunks_are_what_all_cuts_leave_whole() -> None:
    job, layout = layered("2x2,4x2@6+5x1,1x1@2")
    derived = job_of_groups(job, layout)
    assert not list(derived.verify())
    assert derived.cut == (2, 3, 1)
    assert derived.groups == ((0, 1, 1), (2, 2, 3))
    assert derived.holders == ((0, 2), (1, 2), (1, 3))
    assert derived.held == ((0,), (1, 2), (0, 1), (2,))
    # Three workers hold each layer: 2 / 3 of what a very large ring takes.
    assert derived.reduce == (-(-2 * 800 // 3), 800, -(-2 * 400 // 3))
    assert parse_job(print_job(derived).splitlines()) == derived
    assert grouped_layout_of(derived, absent_of_groups(derived, layout)) == layout
    first, second = (group.job for group in groups_in_plan(derived, absent_of_groups(derived, layout)))
    assert (first.cut, second.cut) == ((2, 4), (5, 1))
    assert first.pipelines * first.microbatches == 6
    assert second.pipelines * second.microbatches == 2


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("groups 0,1,1 2,2,3", "groups 0,1,1 2,2"),
        ("groups 0,1,1 2,2,3", "groups 0,1,1 2,3,2"),
        ("groups 0,1,1 2,2,3", "groups 0,1,1 1,2,3"),
        ("groups 0,1,1 2,2,3", "groups 0,0,1 2,2,3"),
        ("shares 6 2", "shares 6 1"),
        ("shares 6 2", "shares 8 0"),
        ("techniques adaptive decouple stagger", "techniques decouple stagger"),
    ],
)
def test_a_damaged_text_is_refused(line: str, wrong: str) -> None:
    text = print_job(job_of_groups(*layered("2x2,4x2@6+5x1,1x1@2")))
    assert line in text
    with pytest.raises(TextError):
        parse_job(text.replace(line, wrong).splitlines())


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs_and_groups())
def test_every_plan_holds(drawn: tuple[JobSpec, GroupedLayout]) -> None:
    """Verifier, engine and streams read back agree; a sum begins when all holders have done their work."""
    job, layout = drawn
    derived = job_of_groups(job, layout)
    plan = plan_failed(derived, absent_of_groups(derived, layout))
    bundle = bundled(plan)
    assert not list(verify_bundle(bundle))
    assert simulate(bundle, 0, iterations=3).period <= plan.claims.period
    schedule = replay(read_streams(bundle, 0))
    assert not list(schedule.verify())
    work = schedule.is_compute
    for chunk, stages in enumerate(derived.holders):
        held = np.isin(schedule.ops.worker // derived.pipelines, stages)
        sums = (schedule.ops.kind == OpKind.R) & (schedule.ops.chunk == chunk)
        assert set(schedule.ops.worker[sums].tolist()) == set(Target(derived, plan.failed).live[chunk])
        assert len(set(schedule.start[sums].tolist())) == 1
        assert (schedule.start[sums] >= schedule.end[work & held].max()).all()


def test_no_group_is_faster_than_alone() -> None:
    """The bound is that of a group alone with its share, and stages open late enough to meet it here."""
    plan = planned("4x2,4x2,4x2@30+12x1@4", reduce=300)
    parts = groups_in_plan(plan.job, plan.failed)
    alone = [plan_failed(part.job, part.failed).claims for part in parts]
    assert plan.claims.lower_bound == max(claims.lower_bound for claims in alone)
    assert plan.claims.reason.startswith("group 0: ")
    assert plan.claims.period == max(claims.period for claims in alone)


def test_stages_open_one_after_the_other() -> None:
    """A worker that holds all layers sums them one after the other, so stages that end at one time would
    wait."""
    plan = planned("4x2,4x2,4x2@30+12x1@4", reduce=300)
    schedule = replay(plan)
    first = [
        int(schedule.start[schedule.ops.worker // plan.job.pipelines == stage].min()) for stage in range(3)
    ]
    apart = plan.job.reduce[1]
    assert first[1] - first[0] >= apart and first[2] - first[1] >= apart


def test_what_the_job_owes_to_its_layers() -> None:
    """As another cut of a job in layers: costs, holders and memory are those of its layers."""
    job, layout = layered(resident=100, capacity=40_000)
    own = plan_failed(job, failure_set([]))
    derived = job_of_groups(job, layout)
    plan = plan_failed(derived, absent_of_groups(derived, layout))

    def rules(plan: Streams, job: JobSpec = job) -> set[VerifierRule]:
        whole = replace(own, job=job)
        data = bundle_bytes(source="", plans=[whole], recuts=[[plan]])
        return {violation.rule for violation in verify_bundle(Bundle.parse(data))}

    assert not rules(plan)
    assert VerifierRule.CUT_REDUNDANCY in rules(
        replace(plan, job=replace(derived, redundancy=4)), replace(job, redundancy=4)
    )
    wrong = replace(derived, reduce=(derived.reduce[0] + 1, *derived.reduce[1:]))
    assert VerifierRule.CUT_COSTS in rules(replace(plan, job=wrong))
    roomy = replace(derived, capacity=tuple((room or 0) + 100 for room in derived.capacity))
    assert VerifierRule.CUT_COSTS in rules(replace(plan, job=roomy))


def test_without_stagger_a_step_ends_with_the_last_sum() -> None:
    """Stages 1 and 4 wait for a sum of others before their own: that is part of the period."""
    job, layout = layered("1x1,3x1,1x2@11+2x1,3x1@1", transfer=1000, reduce=3000)
    derived = job_of_groups(replace(job, techniques=replace(job.techniques, stagger=False)), layout)
    plan = plan_failed(derived, absent_of_groups(derived, layout))
    assert not rules_of(plan)
    assert plan.claims.period == plan.claims.makespan + sum(derived.reduce) + sum(derived.optimizer[2:])


@pytest.mark.parametrize(("stage", "room"), [(0, 3500), (2, 6500)])
def test_memory_of_every_group_is_checked(stage: int, room: int) -> None:
    """A stage that holds several chunks has room for the activations of all of them together."""
    plan = planned()
    capacity = tuple(room if one == stage else None for one in range(plan.job.stages))
    assert rules_of(replace(plan, job=replace(plan.job, capacity=capacity))) == {VerifierRule.MEMORY}


def test_a_chunk_that_a_worker_does_not_sum_is_missed() -> None:
    plan = planned()
    row = np.flatnonzero((plan.opcode == Opcode.REDUCE) & (plan.chunk == 1))[-1]
    chunk = plan.chunk.copy()
    chunk[row] = 0
    assert rules_of(replace(plan, chunk=chunk)) >= {VerifierRule.FINISH_STEPS, VerifierRule.DEADLOCK}


def test_sums_in_another_order_are_refused() -> None:
    plan = planned()
    rows = np.flatnonzero(plan.opcode == Opcode.REDUCE)[-2:]
    chunk = plan.chunk.copy()
    chunk[rows] = chunk[rows][::-1]
    assert VerifierRule.FINISH_STEPS in rules_of(replace(plan, chunk=chunk))


def test_a_sum_over_one_group_alone_is_refused() -> None:
    """Streams of the same plan, in a bundle that says that groups share nothing."""
    plan = planned()
    for groups in (((0, 1), (2, 2))[::-1], ((0, 1), (2, 3))):
        with pytest.raises((BundleError, TextError, ValueError)):
            bundled(replace(plan, job=replace(plan.job, groups=groups)))


def test_a_micro_batch_keeps_to_its_group() -> None:
    """One more and one less: the plan of other shares."""
    plan = planned()
    shares = replace(plan.job, shares=(5, 3))
    assert VerifierRule.OP_HOST in rules_of(replace(plan, job=shares))


def test_a_micro_batch_done_twice_is_one_that_is_missing() -> None:
    plan = planned()
    rows = np.flatnonzero((plan.opcode == Opcode.FORWARD) & (plan.chunk == 0))
    microbatch, pipeline = plan.microbatch.copy(), plan.pipeline.copy()
    microbatch[rows[0]], pipeline[rows[0]] = microbatch[rows[1]], pipeline[rows[1]]
    found = rules_of(replace(plan, microbatch=microbatch, pipeline=pipeline))
    assert VerifierRule.OP_COUNT in found


def test_index_and_job_must_agree() -> None:
    bundle = bundled(planned())
    packed = pack_index(bundle)
    assert unpack_index(packed).groups == ((0, 1), (2, 2))
    assert unpack_index(packed).holders == ((0, 2), (1, 2))
    assert [bundle.held(stage) for stage in range(3)] == [(0,), (1,), (0, 1)]
    end = b"\x00\x02\x00\x01\x02\x02"
    assert packed.endswith(end)
    for wrong in (
        b"\x00\x02\x00\x01\x02\x03",
        b"\x00\x02\x00\x01\x01\x02",
        b"\x00\x02\x01\x00\x02\x02",
        b"\x00\x01\x00\x01",
        b"\x00\x00",
        b"\x00",
        b"",
        end + b"\x00",
    ):
        with pytest.raises(BundleError, match="damaged"):
            unpack_index(packed[: -len(end)] + wrong)


@pytest.mark.parametrize("text", ["6x1@4+6x1@4", "3x1,3x1@4+6x1@4"])
def test_groups_are_not_one_pipeline_for_torch(text: str) -> None:
    """Not even with one worker on every stage: its rows would be those of one pipeline."""
    with pytest.raises(TorchCsvError, match="groups with cuts of their own"):
        torch_csv(planned(text))


JOB = """job groups {
  parallel { pipeline = 1  data = 4 }
  batch { microbatches = 2 }
  layers { count = 6  forward = 1  backward_input = 1  backward_weight = 1  reduce = 0.2  transfer = 0.1 }
  tolerate { failures = 1 }
}
"""


def test_planned_and_read_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, plan = tmp_path / "groups.job", tmp_path / "groups.plan"
    source.write_text(JOB)
    assert main(["--quiet", "plan", str(source), "--layout", TEXT, "-o", str(plan)]) == 0
    assert main(["--quiet", "verify", str(plan)]) == 0
    capsys.readouterr()
    assert main(["--quiet", "show", str(plan)]) == 0
    assert "group 1 has 2 micro-batches in 1 stage on 1 worker" in capsys.readouterr().out
    other = tmp_path / "other.plan"
    assert main(["--quiet", "plan", str(source), "--layout", "2x2,4x2@6+6x1@2", "-o", str(other)]) == 0
    capsys.readouterr()
    main(["--quiet", "diff", str(plan), str(other)])
    assert "2x2,4x2@6+6x1@2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("3x2,3x2@6+6x1@3", "shares 9 micro-batches, groups has 8"),
        ("3x7,3x2@6+6x1@2", "7 workers on a stage of 3x7,3x2, and only 6 micro-batches"),
        ("3x2,2x2@6+5x1@2", "has 5 layers, groups has 6"),
    ],
)
def test_what_cannot_be_planned(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "groups.job"
    source.write_text(JOB)
    assert main(["plan", str(source), "--layout", text]) != 0
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "wrong", "why"),
    [
        (r"(?m)^failed .*$", "failed 0:99999999999999999999", "outside the grid"),
        (r"(?m)^forward .*$", "forward 99999999999999999999 1", "forward is larger"),
        (r"(?m)^release .*$", "release 0 0 1/0", "1/0 is not a time"),
        (r"(?m)^release .*$", "release 0 0 1e999999999", "1e999999999 is not a time"),
        (r"  \S+ O", "  99999999999999999999 O", "longer than any iteration"),
        (r"F0\.0", "F0.99999999999999999999", "a micro-batch that the job does not have"),
        (r"(?m)^worker 0:0", "worker 99999999999999999999:0", "outside the grid"),
        (r"(?m)^shares .*$", "shares 5 3", "of group 1, by the shares 5 3, and the worker is of group 0"),
        (r"F0\.0", "F0.0.c1", "on a chunk that the worker does not hold"),
    ],
)
def test_a_damaged_schedule_text_ends_in_a_sentence(
    line: str, wrong: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = print_schedule(replay(planned()))
    damaged = re.sub(line, wrong, text, count=1)
    assert damaged != text
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text(text)
    bad.write_text(damaged)
    assert main(["diff", str(good), str(bad)]) == 1
    said = capsys.readouterr()
    assert why in said.err and not said.out
