"""Rounds: where peers share experts, all live workers that hold a chunk go through it together.

    0:2   F0.0   F0.1   I0.0   W0.0   ...
    1:2   F1.0   F1.1   I1.0   W1.0
    2:2   F2.0   SF1    I2.0   W2.0        no micro-batch is left for it in the second round: it serves

In a round each of them runs the forward of one micro-batch, or serves: it computes with the experts that it
has, for the others. Backward goes in the same rounds, in the same order. W needs nobody else: part of it is
computed while rounds exchange tokens, and takes no time of its own (`recycle_runtime.plan.overlap`).
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from recycle_compiler.ir.failure import FailureSet, worker_number
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import SERVICES, UNSET, Column, OpKind, OpTable
from recycle_runtime.plan.overlap import MOST_ROUNDS, StreamOp, overlapped

PART = np.array([0, 1, 1, 2, UNSET, UNSET, UNSET, UNSET, 0, 1, 1, 2])
"""Of every kind: forward, backward or weight; UNSET for what is of no round."""
_WEIGHT = 2


def turn_of(job: JobSpec, ops: OpTable) -> Column:
    """The place of each op's micro-batch in the order in which rounds take them: first ones of all pipelines,
    then second ones."""
    return ops.microbatch * job.pipelines + ops.pipeline


def with_overlap(job: JobSpec, ops: OpTable) -> OpTable:
    """The ops, in the order in which each worker runs them, whose W take what is left of them."""
    if not any(job.exchange_left):
        return ops
    duration, part = ops.duration.copy(), PART[ops.kind]
    exchange = np.array(job.exchange_left, dtype=np.int64)
    for worker in np.unique(ops.worker).tolist():
        rows = np.flatnonzero((ops.worker == worker) & (part != UNSET))
        weighs, ticks = part[rows] == _WEIGHT, exchange[ops.chunk[rows]]
        # A service has no pipeline, and the number of its round for a micro-batch.
        place = (column[rows].tolist() for column in (ops.chunk, ops.pipeline, ops.microbatch))
        ticks = np.where(weighs, duration[rows], ticks)
        hidden = overlapped(map(StreamOp, zip(*place, strict=True), weighs.tolist(), ticks.tolist()))
        duration[rows] -= np.array(hidden, dtype=duration.dtype)
    return replace(ops, duration=duration)


def overlapped_on(job: JobSpec, ops: OpTable, stage: int) -> int:
    """Ticks of W that each worker of a stage computes while rounds exchange tokens."""
    rows = (PART[ops.kind] == _WEIGHT) & (ops.worker // job.pipelines == stage)
    whole = np.array(job.backward_weight, dtype=np.int64)[ops.chunk[rows]]
    return int((whole - ops.duration[rows]).sum()) // max(1, len(np.unique(ops.worker[rows])))


def always_left(job: JobSpec, chunk: int) -> int:
    """Least ticks left of a W of this chunk, whatever of it is computed while rounds exchange tokens."""
    if not any(job.exchange_left):
        return job.backward_weight[chunk]
    room = max(job.exchange_left[other] for other in job.held[job.chunk_stages[chunk]])
    return max(0, job.backward_weight[chunk] - MOST_ROUNDS * room)


def broken_rounds(job: JobSpec, failed: FailureSet, ops: OpTable, start: Column) -> Iterator[str]:
    """Faults that keep these ops from being in rounds: every holder is in each, all begin it together, and go
    back with what they went forward with, in the same order."""
    gone = {worker_number(worker, job.pipelines) for worker in failed}
    part = PART[ops.kind]
    serves = np.isin(ops.kind, SERVICES)
    turn = turn_of(job, ops)
    for chunk, stages in enumerate(job.holders):
        cells = (stage * job.pipelines + one for stage in stages for one in range(job.pipelines))
        holders = [worker for worker in cells if worker not in gone]
        where = f"on chunk {chunk}"
        went: list[list[int]] = []
        for which, name in enumerate(("forward", "backward")):
            rows = np.flatnonzero((ops.chunk == chunk) & (part == which))
            rows = rows[np.lexsort((start[rows], ops.worker[rows]))]
            rounds = len(rows) // max(1, len(holders))
            if ops.worker[rows].tolist() != np.repeat(holders, rounds).tolist():
                yield f"a round of {name}s {where} is not one of all its {len(holders)} holders"
                return
            starts, kinds, served = (each[rows].reshape(-1, rounds) for each in (start, ops.kind, serves))
            if (starts != starts[:1]).any():
                yield f"a round of {name}s {where} does not begin at one time"
            if (ops.microbatch[rows].reshape(-1, rounds) != np.arange(rounds))[served].any():
                yield f"a worker serves a round of {name}s {where} that has another number"
            is_whole = (kinds == OpKind.B) | (kinds == OpKind.SB)
            if (is_whole != is_whole[:1]).any():
                yield f"a round {where} has whole backwards and others"
            went.append(np.where(serves, UNSET, turn)[rows].tolist())
        if went[0] != went[1]:
            yield f"rounds {where} do not go back as they went forward"
