"""Times of everything: streams hold no times, so they are replayed with the times of the job.

A compute instruction starts as soon as the one before it on its worker has ended, the message that
it consumes has arrived, and the window of its stage is open. Where peers share experts, those that hold a
chunk go through its rounds together: each begins when the last of them is there.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recycle_compiler.verifier.plan import COMPUTE, MISSING, SERVE, CheckedPlan, Column, Mask
from recycle_compiler.verifier.report import VerifierRule, Violation
from recycle_compiler.verifier.rounds import RoundMeetings, meetings
from recycle_runtime.plan.isa import Opcode
from recycle_runtime.plan.overlap import StreamOp, overlapped


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedTimes:
    """Start and end of every compute instruction, and of the steps that finish each stage; in ticks."""

    row: Column
    """Rows of the table; the other columns go with this one."""
    start: Column
    """MISSING where the replay got stuck; so is the end."""
    end: Column
    reduce_start: tuple[int, ...]
    """Per stage; the same for all its live workers, since they reduce together, chunk after chunk."""
    optimizer_end: tuple[int, ...]

    @property
    def timed(self) -> Mask:
        return self.end >= 0

    @property
    def complete(self) -> bool:
        return len(self.row) > 0 and bool(self.timed.all())


def replay_checked(plan: CheckedPlan) -> tuple[list[Violation], ReplayedTimes]:
    """The times of a plan, and a violation for each worker that is blocked."""
    rows = np.flatnonzero(plan.table.is_any(*COMPUTE, *SERVE))
    producer, arrival_lag = _waits(plan, rows)
    together = meetings(plan)
    start, end = _run(plan, rows, producer, arrival_lag, together)
    violations = list(_stuck(plan, rows, producer, end))
    reduce_start, optimizer_end = _finish(plan, rows, end)
    return violations, ReplayedTimes(rows, start, end, reduce_start, optimizer_end)


def _waits(plan: CheckedPlan, rows: Column) -> tuple[Column, Column]:
    """For each compute instruction, which one (an index into `rows`) it hears from, and the transfer time."""
    table = plan.table
    opcode, chunk, unit = table.opcode[rows], table.chunk[rows], plan.unit()[rows]
    producer = np.full(len(rows), MISSING, dtype=np.int64)
    lag = np.zeros(len(rows), dtype=np.int64)
    index_of_row = np.full(len(table) + 1, MISSING, dtype=np.int64)
    index_of_row[rows] = np.arange(len(rows))

    fed = (opcode == Opcode.FORWARD) & (chunk > 0)
    source = plan.forward[unit[fed], chunk[fed] - 1]
    producer[fed] = index_of_row[source]
    lag[fed] = plan.hop_lags(source, rows[fed], chunk[fed] - 1)
    backward = (opcode == Opcode.BACKWARD) | (opcode == Opcode.BACKWARD_INPUT)
    fed = backward & (chunk < plan.job.chunks - 1)
    source = plan.gradient[unit[fed], chunk[fed] + 1]
    producer[fed] = index_of_row[source]
    lag[fed] = plan.hop_lags(source, rows[fed], chunk[fed])
    return producer, lag


def _durations(plan: CheckedPlan, rows: Column) -> Column:
    """Of every compute instruction; of a W what the exchanges of rounds before it leave."""
    job, table = plan.job, plan.table
    by_opcode = np.zeros((max(Opcode) + 1, job.chunks), dtype=np.int64)
    by_opcode[Opcode.FORWARD] = job.forward
    by_opcode[Opcode.BACKWARD_INPUT] = job.backward_input
    by_opcode[Opcode.BACKWARD_WEIGHT] = job.backward_weight
    by_opcode[Opcode.BACKWARD] = np.add(job.backward_input, job.backward_weight)
    by_opcode[list(SERVE)] = by_opcode[list(COMPUTE)]
    durations = by_opcode[table.opcode[rows], table.chunk[rows]]
    if not any(job.exchange):
        return durations
    is_weight = table.is_any(Opcode.BACKWARD_WEIGHT, Opcode.SERVE_BACKWARD_WEIGHT)[rows]
    ticks = np.where(is_weight, durations, np.array(job.exchange, dtype=np.int64)[table.chunk[rows]])
    for worker in range(len(table.workers)):
        own = np.flatnonzero(table.worker[rows] == worker)
        columns = (table.buffer[rows[own]], is_weight[own], ticks[own])
        hidden = overlapped(map(StreamOp, *(column.tolist() for column in columns)))
        durations[own] -= np.array(hidden, dtype=np.int64)
    return durations


def _run(
    plan: CheckedPlan, rows: Column, producer: Column, arrival_lag: Column, together: RoundMeetings
) -> tuple[Column, Column]:
    """Go through each stream as far as possible; whoever ends an op wakes those who wait for it, and the last
    to come to a round its peers."""
    table = plan.table
    duration: list[int] = _durations(plan, rows).tolist()
    producers: list[int] = producer.tolist()
    lags: list[int] = arrival_lag.tolist()
    # Where each worker's compute instructions begin among `rows`.
    bounds = np.searchsorted(rows, table.offsets).tolist()
    cursor = bounds[:-1]
    clock = [plan.release[worker.stage] for worker in table.workers]
    start = [MISSING] * len(rows)
    end = [MISSING] * len(rows)
    sleepers: dict[int, list[int]] = {}
    rounds: list[int] = together.number[rows].tolist()
    arrived: dict[int, dict[int, int]] = {}
    ready = list(range(len(table.workers)))
    while ready:
        worker = ready.pop()
        now = clock[worker]
        for op in range(cursor[worker], bounds[worker + 1]):
            source = producers[op]
            if source >= 0:
                if end[source] < 0:
                    sleepers.setdefault(source, []).append(worker)
                    cursor[worker] = op
                    break
                now = max(now, end[source] + lags[op])
            if rounds[op] >= 0:
                there = arrived.setdefault(rounds[op], {})
                is_late = worker not in there
                there[worker] = max(now, there.get(worker, now))
                if len(there) < together.size[rounds[op]]:
                    cursor[worker] = op
                    break
                if is_late:
                    ready += [other for other in there if other != worker]
                now = max(there.values())
            start[op] = now
            now += duration[op]
            end[op] = now
            if op in sleepers:
                ready += sleepers.pop(op)
        else:
            cursor[worker] = bounds[worker + 1]
        clock[worker] = now
    return np.array(start, dtype=np.int64), np.array(end, dtype=np.int64)


def _stuck(plan: CheckedPlan, rows: Column, producer: Column, end: Column) -> Iterator[Violation]:
    table = plan.table
    stuck = np.flatnonzero(end < 0)
    _, first = np.unique(table.worker[rows[stuck]], return_index=True)
    for op in stuck[first].tolist():
        row = int(rows[op])
        if producer[op] < 0 or end[producer[op]] >= 0:
            message = f"{table.name(row)} waits for a round that some worker of its chunk never comes to"
            yield plan.at(VerifierRule.REPLAY_STUCK, row, message)
            continue
        source = int(rows[producer[op]])
        worker, position = table.place(source)
        message = (
            f"{table.name(row)} waits for {table.name(source)} at {position} of {worker}, which never runs"
        )
        yield plan.at(VerifierRule.REPLAY_STUCK, row, message)


def _finish(plan: CheckedPlan, rows: Column, end: Column) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Start of each stage's reductions, and the end of its workers' steps of all chunks."""
    job = plan.job
    stage = plan.table.stage[rows]
    last = [int(end[stage == each].max(initial=0)) for each in range(job.stages)]
    if not job.techniques.stagger:
        last = [max(last)] * job.stages
    for each in job.tied_chunks:
        # What they share is summed when the work of all of them is done.
        last[each] = max(last[other] for other in job.tied_chunks)
    if job.groups:
        return _finish_of_groups(plan, last)
    ends = list(last)
    for chunk, holder in enumerate(job.chunk_stages):
        ends[holder] += job.reduce[chunk] + job.optimizer[chunk] + job.gather[chunk]
    return tuple(last), tuple(ends)


def _finish_of_groups(plan: CheckedPlan, last: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The same where stages of several groups meet for a sum: it begins when the last of them is there.

    They do so chunk after chunk, and step when all chunks of the stage are summed. Where state is sharded,
    they meet again after the step of each chunk.
    """
    job = plan.job
    begins, free = [MISSING] * job.stages, list(last)
    for chunk in range(job.chunks):
        there = [stage for stage in range(job.stages) if chunk in plan.chunks_of(stage)]
        start = max(free[stage] for stage in there)
        for stage in there:
            begins[stage] = start if begins[stage] == MISSING else begins[stage]
            free[stage] = start + job.reduce[chunk]
    for chunk in range(job.chunks):
        there = [stage for stage in range(job.stages) if chunk in plan.chunks_of(stage)]
        stepped = [free[stage] + job.optimizer[chunk] for stage in there]
        for stage, end in zip(there, stepped, strict=True):
            free[stage] = max(stepped) + job.gather[chunk] if job.owners else end
    return tuple(begins), tuple(free)
