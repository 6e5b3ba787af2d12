"""Lays a trace over the plan that it ran: for every step and every op of the plan, when it ran.

Columns go with the rows of the schedule. A trace whose ops are not those of the plan is refused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.analysis.trace_diff.trace_file import Ran, RunTrace, TraceError
from recycle_compiler.ir.failure import FailureSet, Worker, failure_set, worker_at, worker_number
from recycle_compiler.ir.ops import MICROBATCH_KINDS, Op
from recycle_compiler.ir.schedule import Schedule, schedule_order

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OtherOrder:
    """Place where a worker left the order of its plan, for the first time in a step."""

    step: int
    worker: Worker
    planned: str
    ran: str


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Times at which ops ran: a row for each step, a column for each op of the schedule; in microseconds."""

    steps: tuple[int, ...]
    start: Floats
    """After what the op has waited for, as far as the trace knows."""
    end: Floats
    waited: Floats
    other_order: tuple[OtherOrder, ...]


def failed_in(trace: RunTrace, pipelines: int, stages: int) -> FailureSet:
    """The workers that did not take part: the trace says so, or has no track for them."""
    grid = {Worker(pipeline, stage) for stage in range(stages) for pipeline in range(pipelines)}
    ran = set(trace.workers)
    if strangers := sorted((ran | set(trace.failed or ())) - grid):
        raise TraceError(
            f"a trace of another job: the plan has no worker {strangers[0]}, "
            f"only {pipelines} pipelines of {stages} stages"
        )
    failed = failure_set(grid - ran) if trace.failed is None else trace.failed
    if both := sorted(ran & set(failed)):
        raise TraceError(f"worker {both[0]} failed, says the trace, and yet it has run ops")
    if idle := sorted(grid - ran - set(failed)):
        raise TraceError(f"worker {idle[0]} has run no op, and the trace does not say that it failed")
    return failed


def renamed(schedule: Schedule, roles: Mapping[Worker, Worker]) -> Schedule:
    """The schedule with its workers named as those that ran it; `roles` leads from these to the plan's."""
    names = {role: worker for worker, role in roles.items()}
    ops = schedule.ops
    pipelines = schedule.job.pipelines
    planned = (worker_at(number, pipelines) for number in ops.worker.tolist())
    runs = np.array([worker_number(names[worker], pipelines) for worker in planned], dtype=np.int64)
    table = replace(ops, worker=runs)
    order = schedule_order(table, schedule.start)
    grid = (Worker(p, s) for s in range(schedule.job.stages) for p in range(schedule.job.pipelines))
    failed = failure_set(worker for worker in grid if worker not in roles)
    return replace(schedule, failed=failed, ops=table.take(order), start=schedule.start[order])


def match(trace: RunTrace, schedule: Schedule) -> Measured:
    """Every op of the plan in every step of the trace; TraceError if one is missing, or there is another.

    A worker that holds several chunks runs ops of one name for each of them, in the order of its plan.
    """
    names = [traced_op_name(op) for op in schedule.ops]
    workers = [worker_at(op.worker, schedule.job.pipelines) for op in schedule.ops]
    rows: dict[tuple[Worker, str], list[int]] = {}
    for row, place in enumerate(zip(workers, names, strict=True)):
        rows.setdefault(place, []).append(row)
    steps = trace.steps
    index = {step: number for number, step in enumerate(steps)}
    start, end, waited = (np.full((len(steps), len(names)), np.nan) for _ in range(3))
    # In the file ops of a worker are in order; of two that take no time, only the file says which was first.
    for op in sorted(trace.ops, key=lambda op: op.start):
        known, step = rows.get((op.worker, op.name)), index[op.step]
        if known is None:
            raise TraceError(
                f"step {op.step}: worker {op.worker} has run {op.name}, which is not in its plan"
            )
        row = next((row for row in known if np.isnan(start[step, row])), None)
        if row is None:
            often = "twice" if len(known) == 1 else f"more than {len(known)} times"
            raise TraceError(f"step {op.step}: worker {op.worker} has run {op.name} {often}")
        start[step, row], end[step, row], waited[step, row] = op.start, op.end, op.waited
    for step, row in np.argwhere(np.isnan(start)).tolist():
        raise TraceError(
            f"step {steps[step]}: worker {workers[row]} has not run {names[row]}, which is in its plan"
        )
    return Measured(steps, start, end, waited, tuple(_other_order(trace.ops, schedule, names)))


def traced_op_name(op: Op) -> str:
    """As traces and the text of schedules have it: `F0.3`, `R`."""
    return f"{op.kind.name}{op.pipeline}.{op.microbatch}" if op.kind in MICROBATCH_KINDS else op.kind.name


def _other_order(ops: Iterable[Ran], schedule: Schedule, names: list[str]) -> Iterable[OtherOrder]:
    ran: dict[tuple[int, Worker], list[Ran]] = {}
    for op in ops:
        ran.setdefault((op.step, op.worker), []).append(op)
    planned = {worker: names[rows] for worker, rows in schedule.worker_starts()}
    for (step, worker), found in sorted(ran.items()):
        # Ops that take no time start together with the next: the file has them in order.
        found.sort(key=lambda op: op.start)
        for expected, op in zip(planned[worker], found, strict=True):
            if op.name != expected:
                yield OtherOrder(step, worker, expected, op.name)
                break
