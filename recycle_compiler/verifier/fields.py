"""Every field of every instruction in range, and no instruction on a stage where it has no meaning."""

from collections.abc import Iterator

import numpy as np

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.verifier.plan import where
from recycle_compiler.verifier.report import Rule, Violation
from recycle_compiler.verifier.table import Column, Mask, StreamTable
from recycle_runtime.plan.isa import (
    CONSUMES,
    NONE,
    RECEIVES,
    USES_BUFFER,
    USES_CHUNK,
    USES_MICROBATCH,
    USES_NEIGHBOUR,
    Opcode,
)

_WITH_PREVIOUS_STAGE = (Opcode.RECV_ACTIVATION, Opcode.SEND_GRADIENT)
_WITH_NEXT_STAGE = (Opcode.SEND_ACTIVATION, Opcode.RECV_GRADIENT)


def check_fields(table: StreamTable, job: JobSpec, index: int) -> tuple[list[Violation], Mask]:
    """What is out of range, and which rows the other checks can work with."""
    known = (table.opcode >= min(Opcode)) & (table.opcode <= max(Opcode))
    violations = [
        _violation(table, index, Rule.FIELD_RANGE, row, f"unknown opcode {table.opcode[row]}")
        for row in where(~known)
    ]
    sound = known.copy()
    for name, values, used, limit in _limits(table, job, known):
        outside = known & used & ((values < 0) | (values >= limit))
        filled = known & ~used & (values != NONE)
        sound &= ~outside & ~filled
        for row in where(outside):
            message = f"{table.name(row)}: {name} must be between 0 and {limit - 1}, got {values[row]}"
            violations.append(_violation(table, index, Rule.FIELD_RANGE, row, message))
        for row in where(filled):
            message = f"{table.name(row)}: {name} is not used here and must be {NONE}, got {values[row]}"
            violations.append(_violation(table, index, Rule.FIELD_RANGE, row, message))
    for rule, misplaced, why in _misplaced(table, job, known):
        sound &= ~misplaced
        for row in where(misplaced):
            message = f"{table.name(row)} on stage {table.stage[row]}: {why}"
            violations.append(_violation(table, index, rule, row, message))
    return violations, sound


def _limits(table: StreamTable, job: JobSpec, known: Mask) -> Iterator[tuple[str, Column, Mask, int]]:
    """Name of a field, its values, where it is used, and below what it must stay there."""
    opcode = np.where(known, table.opcode, 0)
    units = job.pipelines * job.microbatches
    with_microbatch = _among(opcode, USES_MICROBATCH)
    yield "chunk", table.chunk, _among(opcode, USES_CHUNK), job.stages
    yield "pipeline", table.pipeline, with_microbatch, job.pipelines
    yield "micro-batch", table.microbatch, with_microbatch, job.microbatches
    # A worker never needs more buffers than there are micro-batches, nor more inboxes than messages.
    yield "buffer", table.buffer, _among(opcode, USES_BUFFER), units
    needs_message = table.stage != np.where(opcode == Opcode.FORWARD, 0, job.stages - 1)
    takes_inbox = _among(opcode, RECEIVES) | (_among(opcode, CONSUMES) & needs_message)
    yield "inbox", table.inbox, takes_inbox, 2 * units
    yield "neighbour", table.neighbour, _among(opcode, USES_NEIGHBOUR), job.workers


def _misplaced(table: StreamTable, job: JobSpec, known: Mask) -> Iterator[tuple[Rule, Mask, str]]:
    opcode = np.where(known, table.opcode, 0)
    first, last = table.stage == 0, table.stage == job.stages - 1
    inner = ~first & ~last
    yield Rule.LOAD_PLACE, (opcode == Opcode.LOAD) & inner, "only the first and the last stage load"
    yield Rule.MESSAGE_MATCH, _among(opcode, _WITH_PREVIOUS_STAGE) & first, "there is no previous stage"
    yield Rule.MESSAGE_MATCH, _among(opcode, _WITH_NEXT_STAGE) & last, "there is no next stage"


def _among(opcode: Column, opcodes: frozenset[Opcode] | tuple[Opcode, ...]) -> Mask:
    wanted = np.zeros(max(Opcode) + 1, dtype=np.bool_)
    wanted[sorted(opcodes)] = True
    return wanted[opcode]


def _violation(table: StreamTable, index: int, rule: Rule, row: int, message: str) -> Violation:
    worker, position = table.place(row)
    return Violation(rule, index, worker, position, message)
