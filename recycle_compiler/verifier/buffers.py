"""Lifetimes: what a buffer or an inbox holds is never overwritten, and instructions name the right one."""

from collections.abc import Iterator

import numpy as np

from recycle_compiler.verifier.plan import MISSING, CheckedPlan, Column
from recycle_compiler.verifier.report import VerifierRule, Violation
from recycle_runtime.plan.isa import NONE, RECEIVES, USES_BUFFER, Opcode

_TAKES = (Opcode.LOAD, Opcode.FORWARD, Opcode.SERVE_FORWARD)
_FREES = (
    Opcode.BACKWARD,
    Opcode.BACKWARD_WEIGHT,
    Opcode.SERVE_BACKWARD,
    Opcode.SERVE_BACKWARD_WEIGHT,
)
_SENDS = (Opcode.SEND_ACTIVATION, Opcode.SEND_GRADIENT)

_Use = tuple[int, int, int, int]
"""Row, opcode, unit and chunk as a number, and the place: a buffer or inbox of one worker, as a number."""


def check_buffers(plan: CheckedPlan) -> Iterator[Violation]:
    """A buffer belongs to one micro-batch from its load or forward to the end of its backward; or to a round
    that its worker serves."""
    table = plan.table
    taken_by: dict[int, tuple[int, int, int]] = {}
    held: set[int] = set()
    for row, opcode, unit, place in _uses(plan, table.buffer, np.flatnonzero(table.is_any(*USES_BUFFER))):
        taker, first_use, owner = taken_by.get(place, (MISSING, MISSING, MISSING))
        if opcode in _TAKES:
            # A load takes the buffer for the forward that follows it.
            loaded = owner == unit and first_use == Opcode.LOAD and opcode == Opcode.FORWARD
            if place in held and not loaded:
                yield _at(plan, VerifierRule.BUFFER_REUSE, row, f"which {table.name(taker)} still holds")
            taken_by[place] = (row, opcode, unit)
            held.add(place)
        elif owner != unit:
            yield _at(plan, VerifierRule.BUFFER_MATCH, row, "which holds another micro-batch or nothing")
        elif place not in held and opcode not in _SENDS:
            # A coupled backward frees the buffer, and the send of its gradient follows.
            yield _at(plan, VerifierRule.BUFFER_MATCH, row, "which is free by then")
        elif opcode in _FREES:
            held.discard(place)
    for place in sorted(held):
        yield _at(plan, VerifierRule.BUFFER_MATCH, taken_by[place][0], "which is never freed")


def check_inboxes(plan: CheckedPlan) -> Iterator[Violation]:
    """An inbox is filled by a receive and emptied by the op that consumes that very message."""
    table = plan.table
    content: dict[int, tuple[int, int, bool]] = {}
    for row, opcode, unit, place in _uses(plan, table.inbox, np.flatnonzero(table.inbox != NONE)):
        is_activation = opcode in (Opcode.RECV_ACTIVATION, Opcode.FORWARD)
        if opcode in RECEIVES:
            if place in content:
                yield _at(
                    plan, VerifierRule.INBOX_REUSE, row, f"which still holds {table.name(content[place][0])}"
                )
            content[place] = (row, unit, is_activation)
        elif place not in content or content[place][1:] != (unit, is_activation):
            yield _at(plan, VerifierRule.INBOX_MATCH, row, "which does not hold its message")
        else:
            del content[place]
    for place in sorted(content):
        yield _at(plan, VerifierRule.INBOX_MATCH, content[place][0], "which is never emptied")


def _uses(plan: CheckedPlan, number: Column, rows: Column) -> Iterator[_Use]:
    """In stream order, worker after worker. What is served has a unit of its own, less than any other."""
    numbers = number[rows]
    place = plan.table.worker[rows] * (int(numbers.max(initial=0)) + 1) + numbers
    work = plan.unit()[rows] * plan.job.chunks + plan.table.chunk[rows]
    columns = (rows, plan.table.opcode[rows], work, place)
    return zip(*(column.tolist() for column in columns), strict=True)


def _at(plan: CheckedPlan, rule: VerifierRule, row: int, what: str) -> Violation:
    table = plan.table
    name, number = ("inbox", table.inbox[row]) if "inbox" in rule else ("buffer", table.buffer[row])
    return plan.at(rule, row, f"{table.name(row)} names {name} {number}, {what}")
