"""Two chunks on a worker: from a schedule through streams to a bundle that verifier and engine accept."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from recycle_compiler.backends.bundle import bundle_bytes, read_streams, write_bundle
from recycle_compiler.backends.replay import replay
from recycle_compiler.backends.torch_csv import torch_csv
from recycle_compiler.cli.main import main
from recycle_compiler.ir.failure import FailureSet, failure_set
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.ops import UNSET, Op, OpKind, op_duration, op_table
from recycle_compiler.ir.schedule import Schedule, measured, schedule_order
from recycle_compiler.ir.streams import Claims, Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.text import parse_streams, print_streams
from recycle_compiler.passes.assign_buffers import AssignBuffers
from recycle_compiler.passes.insert_transfers import InsertTransfers
from recycle_compiler.planner.compile import compile_job, plan_failed
from recycle_compiler.simulator.engine import simulate
from recycle_compiler.simulator.errors import StuckStreamsError
from recycle_compiler.verifier.report import VerifierRule
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode
from tests.compiler.verifier.tiny_plans import tiny_job

V_SHAPE, LOOPED = (0, 1, 1, 0), (0, 1, 0, 1)
CUTS = (V_SHAPE, LOOPED, (0, 0, 1), (1, 0, 1))


def chunked_job(chunk_stages: tuple[int, ...], *, stagger: bool = True) -> JobSpec:
    """Two stages and two pipelines, with times and memory that differ from chunk to chunk."""
    chunks = len(chunk_stages)
    return tiny_job(
        microbatches=3,
        techniques=Techniques(stagger=stagger),
        chunk_stages=chunk_stages,
        forward=tuple(range(2, 2 + chunks)),
        backward_input=tuple(range(3, 3 + chunks)),
        backward_weight=(2,) * chunks,
        optimizer=tuple(range(1, 1 + chunks)),
        reduce=(1,) * chunks,
        transfer=tuple(range(chunks - 1)),
        activation=tuple(range(1, 1 + chunks)),
        kept_for_weight=(1,) * chunks,
        parameters=(0,) * chunks,
    )


def scheduled(job: JobSpec, failed: FailureSet = ()) -> Schedule:
    """By hand, so to speak: every worker runs what is ready, gradients first, later chunks first."""
    hosts = Target(job, failed).hosts
    units = list(product(range(job.pipelines), range(job.microbatches)))
    ends: dict[tuple[OpKind, int, int, int], int] = {}
    clock = [0] * job.workers
    timed: list[tuple[Op, int]] = []
    left: list[Op] = []
    for chunk, (pipeline, microbatch) in product(range(job.chunks), units):
        host = hosts[chunk][(pipeline + microbatch * len(failed)) % len(hosts[chunk])]
        for kind in (OpKind.I, OpKind.F, OpKind.W):
            left.append(Op(kind, pipeline, microbatch, chunk, host, op_duration(job, kind, chunk)))

    def ready(op: Op) -> int | None:
        """Time at which the op's inputs are there; None while that is not known."""
        unit, chunk = (op.pipeline, op.microbatch), op.chunk
        if op.kind is OpKind.F:
            need, lag = (OpKind.F, *unit, chunk - 1), job.transfer[chunk - 1] if chunk else 0
        elif op.kind is OpKind.W:
            need, lag = (OpKind.I, *unit, chunk), 0
        elif chunk == job.chunks - 1:
            need, lag = (OpKind.F, *unit, chunk), 0
        else:
            need, lag = (OpKind.I, *unit, chunk + 1), job.transfer[chunk]
        if op.kind is OpKind.F and chunk == 0:
            return 0
        return ends[need] + lag if need in ends else None

    order = {OpKind.I: 0, OpKind.F: 1, OpKind.W: 2}
    while left:
        known = [
            (max(at, clock[op.worker]), order[op.kind], -op.chunk, op)
            for op in left
            if (at := ready(op)) is not None
        ]
        start, _, _, op = min(known)
        left.remove(op)
        clock[op.worker] = ends[op.kind, op.pipeline, op.microbatch, op.chunk] = start + op.duration
        timed.append((op, start))
    return finished(job, failed, timed)


def finished(job: JobSpec, failed: FailureSet, timed: list[tuple[Op, int]]) -> Schedule:
    """With the reductions of all chunks, then their optimizer steps, behind all work of a stage."""
    works = list(timed)
    for chunk_hosts in {hosts[0] // job.pipelines: hosts for hosts in Target(job, failed).live}.values():
        same = [op for op, _ in works if op.worker in chunk_hosts or not job.techniques.stagger]
        last = max(start + op.duration for op, start in works if op in same)
        for worker in chunk_hosts:
            now = last
            held = [c for c, stage in enumerate(job.chunk_stages) if stage == worker // job.pipelines]
            for kind, chunk in product((OpKind.R, OpKind.O), held):
                op = Op(kind, UNSET, UNSET, chunk, worker, op_duration(job, kind, chunk))
                timed.append((op, now))
                now += op.duration
    ops = op_table([op for op, _ in timed])
    start = np.array([start for _, start in timed], dtype=np.int64)
    rows = schedule_order(ops, start)
    release = tuple(
        min(at for op, at in works if op.worker // job.pipelines == stage) for stage in range(job.stages)
    )
    schedule = Schedule(job, failed, ops.take(rows), start[rows], release, Claims(0, 0, 0, ""))
    makespan, period = measured(schedule)
    return replace(schedule, claims=Claims(makespan, period, 1, "nothing was proven"))


def lowered(schedule: Schedule) -> Streams:
    return AssignBuffers().run(InsertTransfers().run(schedule))


def bundled(streams: Streams) -> Bundle:
    return Bundle.parse(bundle_bytes(source="", plans=[streams]))


CASES = [
    pytest.param(cut, stagger, failed, id=f"{''.join(map(str, cut))}-{stagger}-{failed}")
    for cut in CUTS
    for stagger in (True, False)
    for failed in ((), ((1, 1),), ((0, 0), (1, 1)))
]


@pytest.mark.parametrize(("cut", "stagger", "failed"), CASES)
def test_a_plan_goes_through(
    cut: tuple[int, ...], stagger: bool, failed: tuple[tuple[int, int], ...]
) -> None:
    schedule = scheduled(chunked_job(cut, stagger=stagger), failure_set(failed))
    assert list(schedule.verify()) == []
    streams = lowered(schedule)
    assert list(streams.verify()) == []
    bundle = bundled(streams)
    assert bundle.chunk_stages == cut
    assert list(verify_bundle(bundle)) == []
    outcome = simulate(bundle, 0)
    assert (outcome.makespan, outcome.period) == (schedule.claims.makespan, schedule.claims.period)
    assert outcome.peak_memory == tuple(
        ((pipeline, stage), amount) for pipeline, stage, amount in schedule.peak_memory()
    )
    again = read_streams(bundle, 0)
    assert print_streams(parse_streams(print_streams(again))) == print_streams(streams)
    replayed = replay(again)
    assert replayed.ops.same_as(schedule.ops)
    assert np.array_equal(replayed.start, schedule.start)


@pytest.mark.parametrize(("cut", "stagger", "failed"), CASES)
def test_the_planner_plans_it(
    cut: tuple[int, ...], stagger: bool, failed: tuple[tuple[int, int], ...]
) -> None:
    """With an exact failure pattern, which need not be the normal form."""
    streams = plan_failed(chunked_job(cut, stagger=stagger), failure_set(failed))
    bundle = bundled(streams)
    assert list(verify_bundle(bundle)) == []
    assert simulate(bundle, 0).period == streams.claims.period
    assert measured(replay(read_streams(bundle, 0))) == (streams.claims.makespan, streams.claims.period)


def test_recyclec_verify_accepts_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All plans of a job, for up to two failures."""
    path = tmp_path / "v.plan"
    write_bundle(path, source="", plans=compile_job(chunked_job(V_SHAPE), failures=2))
    assert main(["verify", str(path)]) == 0
    assert capsys.readouterr().out.count(": ok, ") == 3


def test_a_worker_sends_to_itself() -> None:
    """In the V, chunks 1 and 2 are on the same worker."""
    bundle = bundled(lowered(scheduled(chunked_job(V_SHAPE))))
    stream = bundle.stream(0, (0, 1))
    own = [step for step in stream if step.opcode is Opcode.SEND_ACTIVATION and step.neighbour == 2]
    assert {(step.chunk, step.pipeline) for step in own} == {(1, 0)}
    received = [step for step in stream if step.opcode is Opcode.RECV_ACTIVATION and step.neighbour == 2]
    assert [step.microbatch for step in received] == [step.microbatch for step in own]
    assert [step.opcode for step in stream if step.microbatch < 0] == [
        Opcode.REDUCE,
        Opcode.REDUCE,
        Opcode.OPTIMIZER,
        Opcode.OPTIMIZER,
        Opcode.VALIDATE,
    ]


def test_torch_calls_a_chunk_a_stage() -> None:
    rows = torch_csv(lowered(scheduled(chunked_job(V_SHAPE)))).splitlines()
    assert len(rows) == 2
    assert {action[0] for action in rows[0].split(",")} == {"0", "3"}
    assert {action[0] for action in rows[1].split(",")} == {"1", "2"}


Fault = Callable[[Streams], Streams]


def changed(column: str, opcode: Opcode, value: int, chunk: int | None = None) -> Fault:
    """The first instruction of this opcode (and chunk) with another field."""

    def fault(streams: Streams) -> Streams:
        rows = streams.opcode == opcode
        if chunk is not None:
            rows &= streams.chunk == chunk
        values = getattr(streams, column).copy()
        values[rows.argmax()] = value
        return replace(streams, **{column: values})

    return fault


def swapped(first: Opcode, second: Opcode) -> Fault:
    """The first of one opcode with the next of another."""

    def fault(streams: Streams) -> Streams:
        one = int((streams.opcode == first).argmax())
        other = one + int((streams.opcode[one:] == second).argmax())
        rows = np.arange(len(streams.opcode))
        rows[[one, other]] = other, one
        names = ("opcode", "chunk", "pipeline", "microbatch", "buffer", "inbox", "neighbour")
        return replace(streams, **{name: getattr(streams, name)[rows] for name in names})

    return fault


def _short_period(streams: Streams) -> Streams:
    return replace(streams, claims=replace(streams.claims, period=40))


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        (changed("chunk", Opcode.FORWARD, 1, chunk=0), VerifierRule.OP_HOST),
        (changed("chunk", Opcode.FORWARD, 3, chunk=0), VerifierRule.OP_COUNT),
        (changed("chunk", Opcode.REDUCE, 3), VerifierRule.FINISH_STEPS),
        (changed("chunk", Opcode.OPTIMIZER, 3), VerifierRule.FINISH_STEPS),
        (changed("chunk", Opcode.SEND_ACTIVATION, 3), VerifierRule.MESSAGE_MATCH),
        (changed("neighbour", Opcode.SEND_ACTIVATION, 0), VerifierRule.MESSAGE_MATCH),
        (changed("neighbour", Opcode.RECV_GRADIENT, 1), VerifierRule.MESSAGE_MATCH),
        (changed("buffer", Opcode.BACKWARD_INPUT, 5, chunk=3), VerifierRule.BUFFER_MATCH),
        (swapped(Opcode.REDUCE, Opcode.OPTIMIZER), VerifierRule.FINISH_STEPS),
        (swapped(Opcode.BACKWARD_INPUT, Opcode.BACKWARD_WEIGHT), VerifierRule.OP_ORDER),
        (_short_period, VerifierRule.CLAIM_PERIOD),
    ],
)
def test_a_planted_fault_is_refused(fault: Fault, rule: VerifierRule) -> None:
    good = lowered(scheduled(chunked_job(V_SHAPE)))
    rules = {violation.rule for violation in verify_bundle(bundled(fault(good)))}
    assert rule in rules


def test_memory_counts_all_chunks_of_a_worker() -> None:
    job = chunked_job(V_SHAPE)
    schedule = scheduled(job)
    most = max(amount for _, stage, amount in schedule.peak_memory() if stage == 0)
    tight = replace(lowered(schedule), job=replace(job, capacity=(most - 1, None)))
    assert {violation.rule for violation in verify_bundle(bundled(tight))} == {VerifierRule.MEMORY}


def test_peers_that_reduce_in_different_orders_wait_for_ever() -> None:
    good = lowered(scheduled(chunked_job(V_SHAPE)))
    rows = np.flatnonzero((good.opcode == Opcode.REDUCE) | (good.opcode == Opcode.OPTIMIZER))[:4]
    chunk = good.chunk.copy()
    chunk[rows] = chunk[rows[[1, 0, 3, 2]]]
    bundle = bundled(replace(good, chunk=chunk))
    assert {violation.rule for violation in verify_bundle(bundle)} == {VerifierRule.DEADLOCK}
    with pytest.raises(StuckStreamsError, match="deadlock"):
        simulate(bundle, 0)


def test_explain_does_not_take_chunks_for_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "chunks.plan"
    write_bundle(path, source="", plans=[lowered(scheduled(chunked_job(V_SHAPE)))])
    assert main(["explain", str(path)]) != 0
    assert "this one has 4 chunks on 2 stages" in capsys.readouterr().err
