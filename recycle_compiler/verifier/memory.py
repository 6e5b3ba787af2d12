"""How much activation memory each worker holds over time."""

from collections.abc import Iterator

import numpy as np

from recycle_compiler.verifier.plan import Plan
from recycle_compiler.verifier.replay import Timeline
from recycle_compiler.verifier.report import Rule, Violation
from recycle_compiler.verifier.table import Column
from recycle_runtime.plan.isa import Opcode

_NO_LIMIT = 2**63 - 1


def peak_memory(plan: Plan, timeline: Timeline) -> tuple[int, ...]:
    """The most that each worker of the table holds at once."""
    worker, _, held = _levels(plan, timeline)
    peak = np.zeros(len(plan.table.workers), dtype=np.int64)
    np.maximum.at(peak, worker, held)
    return tuple(peak.tolist())


def check_memory(plan: Plan, timeline: Timeline) -> Iterator[Violation]:
    """Yield the first moment at which a worker holds more than its stage's capacity."""
    capacity = (_NO_LIMIT if each is None else min(each, _NO_LIMIT) for each in plan.job.capacity)
    limit = np.fromiter(capacity, dtype=np.int64)
    worker, time, held = _levels(plan, timeline)
    stage = np.array([each.stage for each in plan.table.workers], dtype=np.int64)
    over = np.flatnonzero(held > limit[stage[worker]])
    _, first = np.unique(worker[over], return_index=True)
    for event in over[first].tolist():
        at = int(worker[event])
        message = (
            f"holds {held[event]} of activations at time {time[event]}, "
            f"stage {stage[at]} has room for {limit[stage[at]]}"
        )
        yield plan.of_worker(Rule.MEMORY, at, message)


def _levels(plan: Plan, timeline: Timeline) -> tuple[Column, Column, Column]:
    """Every change of memory, sorted by worker and time: the worker, the time, and what it holds then."""
    rows, start, end = (column[timeline.timed] for column in (timeline.row, timeline.start, timeline.end))
    table = plan.table
    opcode, stage, worker = (column[rows] for column in (table.opcode, table.stage, table.worker))
    whole = np.array(plan.job.activation, dtype=np.int64)[stage]
    kept = np.array(plan.job.kept_for_weight, dtype=np.int64)[stage]
    change = np.select(
        [opcode == Opcode.FORWARD, opcode == Opcode.BACKWARD, opcode == Opcode.BACKWARD_INPUT],
        [whole, -whole, kept - whole],
        default=-kept,
    )
    time = np.where(opcode == Opcode.FORWARD, start, end)
    # What is released at a moment makes room for what is taken at that same moment.
    order = np.lexsort((change, time, worker))
    held = np.cumsum(change[order])
    sorted_worker = worker[order]
    bounds = np.searchsorted(sorted_worker, np.arange(len(table.workers) + 1))
    before = np.concatenate((np.zeros(1, dtype=np.int64), held))[bounds[:-1]]
    return sorted_worker, time[order], held - before[sorted_worker]
