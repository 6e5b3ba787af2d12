"""Verify a bundle from its bytes alone: nothing of the planner is used, nothing it says is believed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from recycle_compiler.ir.failure import Worker, failure_set
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.verifier.buffers import check_buffers, check_inboxes
from recycle_compiler.verifier.cuts import check_state_and_activations, in_cut, verify_cuts
from recycle_compiler.verifier.deadlock import check_deadlock
from recycle_compiler.verifier.index import failure_state_errors, verify_index, workable_job
from recycle_compiler.verifier.messages import check_messages, links
from recycle_compiler.verifier.plan import (
    LARGEST,
    CheckedPlan,
    PlanClaims,
    PlanSource,
    StreamTable,
    locate,
    stream_table,
)
from recycle_compiler.verifier.replay import replay_checked
from recycle_compiler.verifier.report import PlanReport, VerifierRule, Violation
from recycle_compiler.verifier.rounds import check_rounds
from recycle_compiler.verifier.shards import job_of_plan
from recycle_compiler.verifier.structure import check_finish, check_operands, check_structure
from recycle_compiler.verifier.times import (
    check_claims,
    check_dependencies,
    check_memory,
    peak_memory,
    replayed_makespan,
    replayed_period,
)
from recycle_runtime.plan.bundle import BundleError
from recycle_runtime.plan.isa import Instruction, Opcode


def verify_bundle(source: PlanSource) -> Iterator[Violation]:
    """Yield everything that is wrong with a bundle; a good one yields nothing."""
    yield from verify_index(source)
    yield from verify_cuts(source)
    for report in verify_plans(source):
        yield from report.violations


def verify_plans(source: PlanSource) -> Iterator[PlanReport]:
    """Check every plan by itself, those under other cuts after those of the job's own."""
    if isinstance(workable_job(source), str):
        return
    for index in range(len(source.plans)):
        yield verify_plan(source, index)
    for number, recut in enumerate(source.recuts):
        if not isinstance(workable_job(recut), str):
            for index in range(len(recut.plans)):
                yield _verify_recut(source, number, index)


def _verify_recut(source: PlanSource, number: int, index: int) -> PlanReport:
    """A plan under another cut: as any plan, and by what the job says of layers."""
    recut = source.recuts[number]
    report = verify_plan(recut, index)
    violations = (*report.violations, *check_state_and_activations(source, recut, report))
    return replace(report, violations=in_cut(violations, number), cut=number)


def verify_plan(source: PlanSource, index: int) -> PlanReport:
    """Check one plan by itself: its streams, their replay, and what its index entry claims."""
    job = workable_job(source)
    if isinstance(job, str):
        return PlanReport(index, (Violation(VerifierRule.INDEX_SHAPE, index, None, None, job),))
    entry = source.plans[index]
    failed = tuple((pipeline, stage) for pipeline, stage in entry.failed)
    if errors := tuple(failure_state_errors(failed, job)):
        broken = (Violation(VerifierRule.INDEX_STATE, index, None, None, what) for what in errors)
        return PlanReport(index, tuple(broken))
    if too_many := _too_many(source, index, job):
        return PlanReport(index, (Violation(VerifierRule.OP_COUNT, index, None, None, too_many),))
    job = job_of_plan(job, failed)
    violations, streams = _read(source, index, job)
    table = stream_table(streams, job.pipelines)
    instructions = len(table)
    broken_fields, sound = check_operands(table, job, index)
    violations += broken_fields
    table = table.keep(sound)
    if too_few := _too_few(table, job):
        violations.append(Violation(VerifierRule.OP_COUNT, index, None, None, too_few))
        return PlanReport(index, tuple(violations), instructions)
    wrong_release = tuple(_wrong_release(entry.release, job))
    violations += [Violation(VerifierRule.CLAIM_RELEASE, index, None, None, what) for what in wrong_release]
    release = (0,) * job.stages if wrong_release else tuple(entry.release)
    return _verify(_plan(index, job, entry, release, table), violations, instructions)


def _verify(plan: CheckedPlan, violations: list[Violation], instructions: int) -> PlanReport:
    violations += check_structure(plan)
    violations += check_rounds(plan)
    violations += check_finish(plan)
    traffic = links(plan)
    violations += check_messages(plan, traffic)
    violations += check_deadlock(plan, traffic)
    violations += check_buffers(plan)
    violations += check_inboxes(plan)
    stuck, timeline = replay_checked(plan)
    violations += stuck
    violations += check_dependencies(plan, timeline)
    violations += check_memory(plan, timeline)
    peaks = tuple(zip(plan.table.workers, peak_memory(plan, timeline), strict=True))
    if not timeline.complete:
        return PlanReport(plan.index, tuple(violations), instructions, peak_memory=peaks)
    violations += check_claims(plan, timeline)
    return PlanReport(
        plan.index,
        tuple(violations),
        instructions,
        makespan=replayed_makespan(timeline),
        period=replayed_period(plan, timeline),
        peak_memory=peaks,
    )


def _plan(
    index: int, job: JobSpec, entry: PlanClaims, release: tuple[int, ...], table: StreamTable
) -> CheckedPlan:
    return CheckedPlan(
        index=index,
        job=job,
        claims=entry,
        failed=failure_set(entry.failed),
        release=release,
        table=table,
        forward=locate(table, job, Opcode.FORWARD),
        backward=locate(table, job, Opcode.BACKWARD),
        backward_input=locate(table, job, Opcode.BACKWARD_INPUT),
        backward_weight=locate(table, job, Opcode.BACKWARD_WEIGHT),
    )


_MOST_PER_OP = 16
"""Instructions for one micro-batch on one chunk: load, two receives, two sends, three parts of compute; and
for the end of a step on one chunk."""

_Streams = list[tuple[Worker, Sequence[Instruction]]]


def _read(source: PlanSource, index: int, job: JobSpec) -> tuple[list[Violation], _Streams]:
    """The streams of the live workers; violations for those missing, unreadable, or not to be there."""
    violations: list[Violation] = []
    streams: dict[Worker, Sequence[Instruction]] = {}
    failed = set(failure_set(source.plans[index].failed))
    live = {Worker(p, s) for s in range(job.stages) for p in range(job.pipelines)} - failed
    named = [Worker(*worker) for worker in source.workers(index)]
    for worker in named:
        if worker not in live or worker in streams:
            why = "failed" if worker in failed else "already has one" if worker in live else "does not exist"
            message = f"has a stream, but {why}"
            violations.append(Violation(VerifierRule.INDEX_WORKER, index, worker, None, message))
            continue
        streams[worker] = ()
        try:
            streams[worker] = source.stream(index, worker)
        except BundleError as error:
            violations.append(Violation(VerifierRule.STREAM_UNREADABLE, index, worker, None, str(error)))
    for worker in sorted(live - streams.keys()):
        violations.append(
            Violation(VerifierRule.INDEX_WORKER, index, worker, None, "is live, but has no stream")
        )
    return violations, list(streams.items())


def _too_many(source: PlanSource, index: int, job: JobSpec) -> str | None:
    """Nor one with far more than it can need, of which nothing is even decoded."""
    units = job.pipelines * job.microbatches
    most = _MOST_PER_OP * job.chunks * (units + job.workers)
    # All workers of a chunk are in each round of it, and none has fewer than one micro-batch.
    most *= job.pipelines if job.slots else 1
    found = sum(source.length(index, worker) for worker in source.workers(index))
    return None if found <= most else f"at most {most} instructions can be needed, found {found}"


def _too_few(table: StreamTable, job: JobSpec) -> str | None:
    """A plan far from complete is not looked at further: grids for absent ops could fill any memory."""
    needed = job.pipelines * job.microbatches * job.chunks
    if len(table) and needed <= 8 * len(table) + 4096:
        return None
    return f"{needed} forwards are needed, found {len(table)} usable instructions in all"


def _wrong_release(release: Sequence[int], job: JobSpec) -> Iterator[str]:
    if len(release) != job.stages:
        yield f"each of {job.stages} stages needs a window, found {len(release)}"
    for stage, opens in enumerate(release):
        if not 0 <= opens <= LARGEST // 8:
            yield f"the window of stage {stage} opens at {opens}, which is out of range"
