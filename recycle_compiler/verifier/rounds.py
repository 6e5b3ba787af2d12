"""Rounds of peers that share experts: all live workers that hold a chunk go through each of them together.

Streams do not number rounds: the k-th forward of a chunk in the stream of every holder is the same round,
with a micro-batch or in service, and so is the k-th backward. So they have to agree on what these are.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recycle_compiler.verifier.plan import COMPUTE, MISSING, SERVE, CheckedPlan, Column
from recycle_compiler.verifier.report import VerifierRule, Violation
from recycle_runtime.plan.isa import Opcode

_FORWARDS = (Opcode.FORWARD, Opcode.SERVE_FORWARD)
_WHOLE = (Opcode.BACKWARD, Opcode.SERVE_BACKWARD)
_BACKWARDS = (*_WHOLE, Opcode.BACKWARD_INPUT, Opcode.SERVE_BACKWARD_INPUT)
_AFTER = {
    Opcode.SERVE_FORWARD: (MISSING,),
    Opcode.SERVE_BACKWARD: (Opcode.SERVE_FORWARD,),
    Opcode.SERVE_BACKWARD_INPUT: (Opcode.SERVE_FORWARD,),
    Opcode.SERVE_BACKWARD_WEIGHT: (Opcode.SERVE_BACKWARD_INPUT,),
}
"""The last instruction that a buffer must have seen in which a round is served."""
_LAST = (Opcode.SERVE_BACKWARD, Opcode.SERVE_BACKWARD_WEIGHT)


@dataclass(frozen=True, slots=True, eq=False)
class RoundMeetings:
    """Columns over the rows of the table; MISSING where nobody is met."""

    line: Column
    """Twice the chunk, and one more for backwards."""
    rank: Column
    """Number of the row's round in its line, for its worker, from 0."""
    number: Column
    """The same for all who meet."""
    size: list[int]
    """By that number: how many workers hold the chunk."""


def meetings(plan: CheckedPlan) -> RoundMeetings:
    """Workers that meet in each round; none where peers share no experts."""
    table, job = plan.table, plan.job
    line, rank, number = (np.full(len(table), MISSING, dtype=np.int64) for _ in range(3))
    if not job.slots:
        return RoundMeetings(line, rank, number, [])
    back = table.is_any(*_BACKWARDS)
    rows = np.flatnonzero(table.is_any(*_FORWARDS) | back)
    line[rows] = 2 * table.chunk[rows] + back[rows]
    own = table.worker[rows] * 2 * job.chunks + line[rows]
    order = np.argsort(own, kind="stable")
    rank[rows[order]] = np.arange(len(rows)) - np.searchsorted(own[order], own[order])
    key = line[rows] * (len(table) + 1) + rank[rows]
    keys, place = np.unique(key, return_inverse=True)
    number[rows] = place.ravel()
    here = np.bincount([worker.stage for worker in table.workers], minlength=job.stages)
    holders = [int(here[list(stages)].sum()) for stages in job.holders]
    return RoundMeetings(
        line, rank, number, [holders[each // (len(table) + 1) // 2] for each in keys.tolist()]
    )


def check_rounds(plan: CheckedPlan) -> Iterator[Violation]:
    """Yield rounds that holders do not share, and services that are not whole."""
    table = plan.table
    if not plan.job.slots:
        for row in np.flatnonzero(table.is_any(*SERVE)).tolist():
            message = f"{table.name(row)}, and the job has no experts that peers share"
            yield plan.at(VerifierRule.ROUND_SERVICE, row, message)
        return
    yield from _too_few_slots(plan)
    yield from _services(plan)
    together = meetings(plan)
    forward_of = _forwards(plan, together)
    rows = np.flatnonzero(together.number >= 0)
    rows = rows[np.lexsort((table.worker[rows], together.number[rows]))]
    bounds = np.searchsorted(together.number[rows], np.arange(len(together.size) + 1)).tolist()
    for number, size in enumerate(together.size):
        yield from _round(plan, together, forward_of, rows[bounds[number] : bounds[number + 1]], size)


def _too_few_slots(plan: CheckedPlan) -> Iterator[Violation]:
    """Chunks whose experts do not fit into the slots of the workers that hold them."""
    job = plan.job
    here = np.bincount([worker.stage for worker in plan.table.workers], minlength=job.stages)
    for chunk, experts in enumerate(job.expert_counts):
        workers = int(here[list(job.holders[chunk])].sum())
        if workers * job.slots < experts:
            message = f"the {experts} experts of {plan.chunk_text(chunk)} need as many slots, and {workers} "
            message += f"workers with {job.slots} each have {workers * job.slots}"
            yield plan.overall(VerifierRule.ROUND_SLOTS, message)


def _round(
    plan: CheckedPlan, together: RoundMeetings, forward_of: Column, rows: Column, size: int
) -> Iterator[Violation]:
    """One round: all holders are in it, and bring what they went forward with in one round."""
    table, first = plan.table, int(rows[0])
    is_back = bool(together.line[first] % 2)
    what = f"round {together.rank[first]} of {'backwards' if is_back else 'forwards'} on "
    what += plan.chunk_text(int(table.chunk[first]))
    if len(rows) != size:
        yield plan.overall(VerifierRule.ROUND_HOLDERS, f"{what} needs all {size} holders, found {len(rows)}")
        return
    if not table.is_any(*COMPUTE)[rows].any():
        yield plan.at(VerifierRule.ROUND_SERVICE, first, f"{what} has no micro-batch: all serve")
    if not is_back:
        return
    whole = table.is_any(*_WHOLE)[rows]
    for row in rows[whole != whole[0]].tolist()[:1]:
        message = f"{table.name(row)} in {what}, where {table.name(first)} is of another form"
        yield plan.at(VerifierRule.ROUND_GROUPS, row, message)
    for row in rows[forward_of[rows] != forward_of[first]].tolist()[:1]:
        message = f"{table.name(row)} in {what} went forward in round {forward_of[row]}, "
        message += f"{table.name(first)} of {table.workers[int(table.worker[first])]} in {forward_of[first]}"
        yield plan.at(VerifierRule.ROUND_GROUPS, row, message)


def _forwards(plan: CheckedPlan, together: RoundMeetings) -> Column:
    """For every backward, in which round of its worker it went forward; MISSING where that is not known."""
    table = plan.table
    found = np.full(len(table), MISSING, dtype=np.int64)
    own = np.flatnonzero(table.is_any(Opcode.BACKWARD, Opcode.BACKWARD_INPUT))
    forward = plan.forward[plan.unit()[own], table.chunk[own]]
    known = forward >= 0
    found[own[known]] = together.rank[forward[known]]
    served: dict[tuple[int, int], int] = {}
    for row in np.flatnonzero(table.is_any(*SERVE)).tolist():
        place = int(table.worker[row]), int(table.buffer[row])
        if table.opcode[row] == Opcode.SERVE_FORWARD:
            served[place] = int(together.rank[row])
        elif together.number[row] >= 0:
            found[row] = served.get(place, MISSING)
    return found


def _services(plan: CheckedPlan) -> Iterator[Violation]:
    """Whoever serves a round goes forward, then back, in one buffer; and nothing is left open."""
    table = plan.table
    held: dict[tuple[int, int], tuple[int, int]] = {}
    for row in np.flatnonzero(table.is_any(*SERVE)).tolist():
        place = int(table.worker[row]), int(table.buffer[row])
        opcode = Opcode(int(table.opcode[row]))
        last, chunk = held.pop(place, (MISSING, int(table.chunk[row])))
        if last not in _AFTER[opcode] or chunk != table.chunk[row]:
            before = "nothing" if last == MISSING else Opcode(last).name.lower().replace("_", " ")
            message = f"{table.name(row)} in buffer {table.buffer[row]}, which has served {before} before"
            yield plan.at(VerifierRule.ROUND_SERVICE, row, message)
        if opcode not in _LAST:
            held[place] = (opcode, int(table.chunk[row]))
    for worker, buffer in sorted(held):
        message = f"what buffer {buffer} served is not finished"
        yield plan.of_worker(VerifierRule.ROUND_SERVICE, worker, message)
