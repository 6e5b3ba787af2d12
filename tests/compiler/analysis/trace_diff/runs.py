"""Runs that never were: traces of a schedule whose ops take as long as a test says."""

from collections.abc import Callable

from recycle_compiler.analysis.trace_diff.matching import traced_op_name
from recycle_compiler.analysis.trace_diff.trace_file import Ran, RunTrace
from recycle_compiler.ir.failure import Worker, worker_at
from recycle_compiler.ir.ops import Op, OpKind
from recycle_compiler.ir.schedule import Schedule

Durations = Callable[[int, Op], float]
"""How long an op takes in a step."""


def as_planned(schedule: Schedule, tick: float, steps: int = 3) -> RunTrace:
    """Every op at its time, a tick taking so many microseconds; one step a period after the other."""
    return RunTrace(
        tuple(
            Ran(
                traced_op_name(op),
                step,
                worker_at(op.worker, schedule.job.pipelines),
                begin * tick,
                (begin + op.duration) * tick,
                0.0,
            )
            for step in range(steps)
            for op, start, _ in schedule.rows()
            for begin in [start + step * schedule.claims.period]
        ),
        schedule.failed,
    )


def simulated(schedule: Schedule, steps: int, duration: Durations, latency: float = 0.0) -> RunTrace:
    """Every op as soon as it can: its worker is free, its input is there, `latency` after it was made.

    As in a real run, an op enters when its worker is free and waits inside for its input.
    """
    ops = sorted(schedule.rows(), key=lambda row: row[1])
    pipelines = schedule.job.pipelines
    last = {(worker_at(op.worker, pipelines), op.kind): op for op, _, _ in ops if op.kind > OpKind.W}
    free: dict[Worker, float] = dict.fromkeys((worker for worker, _ in schedule.worker_starts()), 0.0)
    found: list[Ran] = []
    for step in range(steps):
        ends: dict[tuple[str, int, int, int], float] = {}
        for op, _, _ in ops:
            if op.kind > OpKind.W:
                continue
            worker = worker_at(op.worker, pipelines)
            entered = free[worker]
            begin = max(entered, ready(schedule, op, ends, latency))
            free[worker] = ends[key(op, op.chunk)] = begin + duration(step, op)
            found.append(Ran(traced_op_name(op), step, worker, entered, free[worker], 0.0))
        for stage in range(schedule.job.stages):
            finish(stage, step, free, last, duration, found)
    return RunTrace(tuple(found), schedule.failed)


def key(op: Op, stage: int) -> tuple[str, int, int, int]:
    kind = "I" if op.kind is OpKind.B else op.kind.name
    return kind, op.pipeline, op.microbatch, stage


def ready(schedule: Schedule, op: Op, ends: dict[tuple[str, int, int, int], float], latency: float) -> float:
    place = op.pipeline, op.microbatch
    if op.kind is OpKind.W:
        return ends["I", *place, op.chunk]
    if op.kind is OpKind.F:
        return ends["F", *place, op.chunk - 1] + latency if op.chunk else 0.0
    if op.chunk == schedule.job.stages - 1:
        return ends["F", *place, op.chunk]
    return ends["I", *place, op.chunk + 1] + latency


def finish(
    stage: int,
    step: int,
    free: dict[Worker, float],
    last: dict[tuple[Worker, OpKind], Op],
    duration: Durations,
    found: list[Ran],
) -> None:
    """The reduction, which all peers begin together, and the optimizer step."""
    peers = [worker for worker in free if worker.stage == stage]
    together = max(free[worker] for worker in peers)
    for worker in peers:
        reduced = together + duration(step, last[worker, OpKind.R])
        stepped = reduced + duration(step, last[worker, OpKind.O])
        found.append(Ran("R", step, worker, free[worker], reduced, 0.0))
        found.append(Ran("O", step, worker, reduced, stepped, 0.0))
        free[worker] = stepped
