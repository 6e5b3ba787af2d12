"""The order that PROBLEM.md demands, checked on the replayed times alone.

The replay makes ops wait for messages; whether that was enough is looked at here again, op by op,
without its help.
"""

from collections.abc import Iterator

import numpy as np

from recycle_compiler.verifier.plan import MISSING, Grid, Plan, cells, where
from recycle_compiler.verifier.replay import Timeline
from recycle_compiler.verifier.report import Rule, Violation
from recycle_runtime.plan.isa import Opcode

_Times = tuple[Grid, Grid]
"""Start and end of one kind of op; MISSING where it is not there."""


def check_dependencies(plan: Plan, timeline: Timeline) -> Iterator[Violation]:
    """Rules 1 to 4 and 6 of the planning problem."""
    forward, backward, by_input, by_weight = (
        _times(plan, timeline, opcode)
        for opcode in (Opcode.FORWARD, Opcode.BACKWARD, Opcode.BACKWARD_INPUT, Opcode.BACKWARD_WEIGHT)
    )
    # What the previous stage waits for, whichever form the backward has.
    gradient = (np.maximum(backward[0], by_input[0]), np.maximum(backward[1], by_input[1]))
    transfer = np.array(plan.job.transfer, dtype=np.int64)
    no_lag = np.zeros(plan.job.stages, dtype=np.int64)
    yield from _after(plan, "forward", _below(forward), "forward one stage up", _above(forward), transfer, 1)
    yield from _after(plan, "backward", _above(gradient), "backward one down", _below(gradient), transfer)
    yield from _after(plan, "backward", gradient, "forward", forward, no_lag)
    yield from _after(plan, "backward weight", by_weight, "backward input", by_input, no_lag)
    yield from _one_at_a_time(plan, timeline)
    yield from _reductions(plan, timeline)


def _times(plan: Plan, timeline: Timeline, opcode: Opcode) -> _Times:
    start = np.full((plan.units, plan.job.stages), MISSING, dtype=np.int64)
    end = start.copy()
    chosen = (plan.table.opcode[timeline.row] == opcode) & timeline.timed
    rows = timeline.row[chosen]
    where_to = plan.unit()[rows], plan.table.stage[rows]
    start[where_to] = timeline.start[chosen]
    end[where_to] = timeline.end[chosen]
    return start, end


def _above(times: _Times) -> _Times:
    """All stages but the last."""
    return times[0][:, :-1], times[1][:, :-1]


def _below(times: _Times) -> _Times:
    """All stages but the first."""
    return times[0][:, 1:], times[1][:, 1:]


def _after(
    plan: Plan, later: str, after: _Times, earlier: str, before: _Times, lag: Grid, first_stage: int = 0
) -> Iterator[Violation]:
    start, end = after[0], before[1]
    allowed = end + lag
    for unit, column in cells((start >= 0) & (end >= 0) & (start < allowed)):
        message = (
            f"{later} of {plan.cell(unit, column + first_stage)} starts at {start[unit, column]}, "
            f"its {earlier} allows {allowed[unit, column]}"
        )
        yield plan.overall(Rule.DEPENDENCY, message)


def _one_at_a_time(plan: Plan, timeline: Timeline) -> Iterator[Violation]:
    rows, start, end = (column[timeline.timed] for column in (timeline.row, timeline.start, timeline.end))
    worker = plan.table.worker[rows]
    order = np.lexsort((start, worker))
    early, late = order[:-1], order[1:]
    for pair in where((worker[early] == worker[late]) & (start[late] < end[early])):
        row, busy = int(rows[late[pair]]), int(rows[early[pair]])
        message = f"{plan.table.name(row)} starts while {plan.table.name(busy)} runs"
        yield plan.at(Rule.WORKER_OVERLAP, row, message)


def _reductions(plan: Plan, timeline: Timeline) -> Iterator[Violation]:
    stage = plan.table.stage[timeline.row]
    for each, reduce_start in enumerate(timeline.reduce_start):
        waited_for = timeline.end[stage == each] if plan.job.techniques.stagger else timeline.end
        work_end = int(waited_for.max(initial=0))
        if work_end > reduce_start:
            message = f"reduction of stage {each} starts at {reduce_start}, its work ends at {work_end}"
            yield plan.overall(Rule.DEPENDENCY, message)
