"""Rules about time and memory, checked on the replayed times alone; and what a plan says of itself.

The replay makes ops wait for messages; whether that was enough is looked at here again, op by op, without
its help.
"""

import re
from collections.abc import Iterator

import numpy as np

from recycle_compiler.verifier.plan import (
    COMPUTE,
    LARGEST,
    MISSING,
    SERVE,
    CheckedPlan,
    Column,
    Grid,
    cells,
    live_hosts,
    where,
)
from recycle_compiler.verifier.replay import ReplayedTimes
from recycle_compiler.verifier.report import VerifierRule, Violation
from recycle_runtime.plan.isa import Opcode
from recycle_runtime.plan.overlap import MOST_ROUNDS

_Times = tuple[Grid, Grid]
"""Start and end of one kind of op; MISSING where it is not there."""


def check_dependencies(plan: CheckedPlan, timeline: ReplayedTimes) -> Iterator[Violation]:
    """Rules 1 to 4 and 6 of the planning problem."""
    forward, backward, by_input, by_weight = (
        _times(plan, timeline, opcode)
        for opcode in (Opcode.FORWARD, Opcode.BACKWARD, Opcode.BACKWARD_INPUT, Opcode.BACKWARD_WEIGHT)
    )
    # What the previous chunk waits for, whichever form the backward has.
    gradient = (np.maximum(backward[0], by_input[0]), np.maximum(backward[1], by_input[1]))
    transfer = _transfers(plan)
    no_lag = np.zeros(plan.job.chunks, dtype=np.int64)
    yield from _after(plan, "forward", _below(forward), "forward one stage up", _above(forward), transfer, 1)
    yield from _after(plan, "backward", _above(gradient), "backward one down", _below(gradient), transfer)
    yield from _after(plan, "backward", gradient, "forward", forward, no_lag)
    yield from _after(plan, "backward weight", by_weight, "backward input", by_input, no_lag)
    yield from _one_at_a_time(plan, timeline)
    yield from _reductions(plan, timeline)


def _transfers(plan: CheckedPlan) -> Grid:
    """Of each unit (one row for all, where they are alike), from each chunk to the next and back."""
    transfer = np.array(plan.job.transfer, dtype=np.int64)
    if not plan.job.groups:
        return transfer
    worker = np.where(plan.forward >= 0, plan.table.worker[plan.forward], MISSING)
    return np.where(worker[:, 1:] == worker[:, :-1], 0, transfer)


def _times(plan: CheckedPlan, timeline: ReplayedTimes, opcode: Opcode) -> _Times:
    start = np.full((plan.units, plan.job.chunks), MISSING, dtype=np.int64)
    end = start.copy()
    chosen = (plan.table.opcode[timeline.row] == opcode) & timeline.timed
    rows = timeline.row[chosen]
    where_to = plan.unit()[rows], plan.table.chunk[rows]
    start[where_to] = timeline.start[chosen]
    end[where_to] = timeline.end[chosen]
    return start, end


def _above(times: _Times) -> _Times:
    """All chunks but the last."""
    return times[0][:, :-1], times[1][:, :-1]


def _below(times: _Times) -> _Times:
    """All chunks but the first."""
    return times[0][:, 1:], times[1][:, 1:]


def _after(
    plan: CheckedPlan,
    later: str,
    after: _Times,
    earlier: str,
    before: _Times,
    lag: Grid,
    first_chunk: int = 0,
) -> Iterator[Violation]:
    start, end = after[0], before[1]
    allowed = end + lag
    for unit, column in cells((start >= 0) & (end >= 0) & (start < allowed)):
        message = (
            f"{later} of {plan.cell(unit, column + first_chunk)} starts at {start[unit, column]}, "
            f"its {earlier} allows {allowed[unit, column]}"
        )
        yield plan.overall(VerifierRule.DEPENDENCY, message)


def _one_at_a_time(plan: CheckedPlan, timeline: ReplayedTimes) -> Iterator[Violation]:
    rows, start, end = (column[timeline.timed] for column in (timeline.row, timeline.start, timeline.end))
    worker = plan.table.worker[rows]
    order = np.lexsort((start, worker))
    early, late = order[:-1], order[1:]
    for pair in where((worker[early] == worker[late]) & (start[late] < end[early])):
        row, busy = int(rows[late[pair]]), int(rows[early[pair]])
        message = f"{plan.table.name(row)} starts while {plan.table.name(busy)} runs"
        yield plan.at(VerifierRule.WORKER_OVERLAP, row, message)


def _reductions(plan: CheckedPlan, timeline: ReplayedTimes) -> Iterator[Violation]:
    stage = plan.table.stage[timeline.row]
    for each, reduce_start in enumerate(timeline.reduce_start):
        together = plan.job.tied_chunks if each in plan.job.tied_chunks else (each,)
        waited_for = timeline.end[np.isin(stage, together)]
        waited_for = waited_for if plan.job.techniques.stagger else timeline.end
        work_end = int(waited_for.max(initial=0))
        if work_end > reduce_start:
            message = f"reduction of stage {each} starts at {reduce_start}, its work ends at {work_end}"
            yield plan.overall(VerifierRule.DEPENDENCY, message)


_LONGEST_REASON = 1000
_NO_LIMIT = 2**63 - 1


def peak_memory(plan: CheckedPlan, timeline: ReplayedTimes) -> tuple[int, ...]:
    """The most that each worker of the table holds at once."""
    worker, _, held = _levels(plan, timeline)
    peak = np.zeros(len(plan.table.workers), dtype=np.int64)
    np.maximum.at(peak, worker, held)
    return tuple(peak.tolist())


def check_memory(plan: CheckedPlan, timeline: ReplayedTimes) -> Iterator[Violation]:
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
        yield plan.of_worker(VerifierRule.MEMORY, at, message)


def _levels(plan: CheckedPlan, timeline: ReplayedTimes) -> tuple[Column, Column, Column]:
    """Every change of memory, sorted by worker and time: the worker, the time, and what it holds then."""
    rows, start, end = (column[timeline.timed] for column in (timeline.row, timeline.start, timeline.end))
    table = plan.table
    opcode, chunk, worker = (column[rows] for column in (table.opcode, table.chunk, table.worker))
    whole = np.array(plan.job.activation, dtype=np.int64)[chunk]
    kept = np.array(plan.job.kept_for_weight, dtype=np.int64)[chunk]
    change = np.select(
        [np.isin(opcode, pair) for pair in zip(COMPUTE[:3], SERVE[:3], strict=True)],
        [whole, -whole, kept - whole],
        default=-kept,
    )
    time = np.where(np.isin(opcode, (Opcode.FORWARD, Opcode.SERVE_FORWARD)), start, end)
    # What is released at a moment makes room for what is taken at that same moment.
    order = np.lexsort((change, time, worker))
    held = np.cumsum(change[order])
    sorted_worker = worker[order]
    bounds = np.searchsorted(sorted_worker, np.arange(len(table.workers) + 1))
    before = np.concatenate((np.zeros(1, dtype=np.int64), held))[bounds[:-1]]
    return sorted_worker, time[order], held - before[sorted_worker]


def replayed_makespan(timeline: ReplayedTimes) -> int:
    """From the start of the first op to the end of the last."""
    return int(timeline.end.max() - timeline.start.min())


def replayed_period(plan: CheckedPlan, timeline: ReplayedTimes) -> int:
    """Period of iterations that follow each other."""
    job = plan.job
    if not job.techniques.stagger:
        return max(timeline.optimizer_end) - int(timeline.start.min())
    stage = plan.table.stage[timeline.row]
    first_start = (int(timeline.start[stage == each].min(initial=LARGEST)) for each in range(job.stages))
    return max(end - start for start, end in zip(first_start, timeline.optimizer_end, strict=True))


def check_claims(plan: CheckedPlan, timeline: ReplayedTimes) -> Iterator[Violation]:
    """Yield every number of the index entry that does not follow from the streams."""
    claims = plan.claims
    if (makespan := replayed_makespan(timeline)) != claims.makespan:
        yield plan.overall(
            VerifierRule.CLAIM_MAKESPAN, f"claims {claims.makespan}, the streams take {makespan}"
        )
    if (period := replayed_period(plan, timeline)) != claims.period:
        yield plan.overall(VerifierRule.CLAIM_PERIOD, f"claims {claims.period}, the streams take {period}")
    if not 0 < claims.lower_bound <= claims.period:
        message = f"a lower bound must be between 1 and the period {claims.period}, got {claims.lower_bound}"
        yield plan.overall(VerifierRule.CLAIM_BOUND, message)
    yield from _reason(plan)
    yield from _load(plan)
    yield from _windows(plan, timeline)
    yield from _iterations(plan, timeline)


def _reason(plan: CheckedPlan) -> Iterator[Violation]:
    """Violations in the reason of the bound: a line of words that names existing stages and chunks."""
    reason = plan.claims.reason
    if not reason.isprintable() or not 0 < len(reason) <= _LONGEST_REASON:
        yield plan.overall(VerifierRule.CLAIM_REASON, "the reason of its bound is no line of words")
        return
    for noun, there in (("stage", plan.job.stages), ("chunks?", plan.job.chunks)):
        for numbers in re.findall(rf"\b{noun} (\d+(?:, \d+)*)", reason):
            if any(int(number) >= there for number in numbers.split(", ")):
                message = f"its bound is said to come from {reason}, of {there} {noun.rstrip('?s')}s"
                yield plan.overall(VerifierRule.CLAIM_REASON, message)


def _load(plan: CheckedPlan) -> Iterator[Violation]:
    """Some worker of each stage carries at least its even share, so no period is shorter than that takes."""
    job = plan.job
    for stage, hosts in enumerate(live_hosts(job, plan.failed)):
        if hosts < 1:
            yield plan.overall(VerifierRule.CLAIM_PERIOD, f"no live worker may run stage {stage}")
            continue
        chunks, units = plan.chunks_of(stage), _units_of(plan, stage)
        # Of a W, what the exchanges of two rounds have room for may take no time.
        room = MOST_ROUNDS * max(job.exchange[chunk] for chunk in chunks) if job.exchange else 0
        left = [max(0, job.backward_weight[chunk] - room) for chunk in chunks]
        work = [job.forward[c] + job.backward_input[c] + w for c, w in zip(chunks, left, strict=True)]
        # Some worker has its share of one chunk, rounded up; and of all its chunks together.
        share = max(-(-units // hosts) * max(work), -(-units * sum(work) // hosts))
        least = share + sum(job.reduce[c] + job.optimizer[c] + job.gather[c] for c in chunks)
        if least > plan.claims.period:
            message = f"claims {plan.claims.period}, the load of stage {stage} alone takes {least}"
            yield plan.overall(VerifierRule.CLAIM_PERIOD, message)


def _units_of(plan: CheckedPlan, stage: int) -> int:
    """Number of micro-batches that pass a stage: all, or those of its group."""
    for group, share in zip(plan.job.groups, plan.job.shares, strict=True):
        if stage in group:
            return share
    return plan.units


def _windows(plan: CheckedPlan, timeline: ReplayedTimes) -> Iterator[Violation]:
    """Times count from 0, and nothing starts before the window of its stage opens."""
    if (first := int(timeline.start.min())) != 0:
        yield plan.overall(VerifierRule.CLAIM_RELEASE, f"the first op must start at 0, got {first}")
    release = np.array(plan.release, dtype=np.int64)
    for op in where(timeline.start < release[plan.table.stage[timeline.row]]):
        row = int(timeline.row[op])
        message = f"{plan.table.name(row)} starts at {timeline.start[op]}, before its window opens"
        yield plan.at(VerifierRule.CLAIM_RELEASE, row, message)


def _iterations(plan: CheckedPlan, timeline: ReplayedTimes) -> Iterator[Violation]:
    """Lay two iterations one claimed period apart: no worker may have two things to do at once."""
    period = plan.claims.period
    if not 0 < period <= LARGEST // 2:
        return
    stage_of = np.array([worker.stage for worker in plan.table.workers], dtype=np.int64)
    all_workers = np.arange(len(stage_of))
    worker = np.concatenate((plan.table.worker[timeline.row], all_workers))
    start = np.concatenate((timeline.start, np.array(timeline.reduce_start)[stage_of]))
    end = np.concatenate((timeline.end, np.array(timeline.optimizer_end)[stage_of]))
    worker, start, end = np.tile(worker, 2), np.append(start, start + period), np.append(end, end + period)
    # A step that takes no time may share its moment with the start of another.
    order = np.lexsort((end, start, worker))
    worker, start, end = worker[order], start[order], end[order]
    collide = (worker[1:] == worker[:-1]) & (start[1:] < end[:-1])
    for index in np.unique(worker[1:][collide]).tolist():
        message = f"is still busy with one iteration when the next one, {period} later, needs it"
        yield plan.of_worker(VerifierRule.ITERATION_OVERLAP, index, message)
