"""Structure of streams: fields in range, each micro-batch once per chunk on one worker, steps at the end."""

from collections.abc import Iterator

import numpy as np

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.verifier.plan import (
    COMPUTE,
    SERVE,
    CheckedPlan,
    Column,
    Grid,
    Mask,
    StreamTable,
    cells,
    live_hosts,
    where,
)
from recycle_compiler.verifier.report import VerifierRule, Violation
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

_WITH_PREVIOUS = (Opcode.RECV_ACTIVATION, Opcode.SEND_GRADIENT)
_WITH_NEXT = (Opcode.SEND_ACTIVATION, Opcode.RECV_GRADIENT)


def check_operands(table: StreamTable, job: JobSpec, index: int) -> tuple[list[Violation], Mask]:
    """Fields out of range, and the rows that the other checks can work with."""
    known = (table.opcode >= min(Opcode)) & (table.opcode <= max(Opcode))
    violations = [
        _violation(table, index, VerifierRule.FIELD_RANGE, row, f"unknown opcode {table.opcode[row]}")
        for row in where(~known)
    ]
    sound = known.copy()
    for name, values, used, limit in _limits(table, job, known):
        outside = known & used & ((values < 0) | (values >= limit))
        filled = known & ~used & (values != NONE)
        sound &= ~outside & ~filled
        for row in where(outside):
            message = f"{table.name(row)}: {name} must be between 0 and {limit - 1}, got {values[row]}"
            violations.append(_violation(table, index, VerifierRule.FIELD_RANGE, row, message))
        for row in where(filled):
            message = f"{table.name(row)}: {name} is not used here and must be {NONE}, got {values[row]}"
            violations.append(_violation(table, index, VerifierRule.FIELD_RANGE, row, message))
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
    yield "chunk", table.chunk, _among(opcode, USES_CHUNK), job.chunks
    yield "pipeline", table.pipeline, with_microbatch, job.pipelines
    yield "micro-batch", table.microbatch, with_microbatch, job.microbatches
    # A worker never needs more buffers than there are micro-batches, nor more inboxes than messages.
    most = units * max(map(len, job.held))
    yield "buffer", table.buffer, _among(opcode, USES_BUFFER), most
    needs_message = table.chunk != np.where(opcode == Opcode.FORWARD, 0, job.chunks - 1)
    takes_inbox = _among(opcode, RECEIVES) | (_among(opcode, CONSUMES) & needs_message)
    yield "inbox", table.inbox, takes_inbox, 2 * most
    yield "neighbour", table.neighbour, _among(opcode, USES_NEIGHBOUR), job.workers


def _misplaced(table: StreamTable, job: JobSpec, known: Mask) -> Iterator[tuple[VerifierRule, Mask, str]]:
    opcode = np.where(known, table.opcode, 0)
    uses_chunk = _among(opcode, USES_CHUNK) & (table.chunk >= 0) & (table.chunk < job.chunks)
    holds = np.zeros((job.stages, job.chunks), dtype=np.bool_)
    for chunk, stages in enumerate(job.holders):
        holds[list(stages), chunk] = True
    held = holds[table.stage, np.where(uses_chunk, table.chunk, 0)]
    yield VerifierRule.OP_HOST, uses_chunk & ~held, "the worker does not hold this chunk"
    first, last = table.chunk == 0, table.chunk == job.chunks - 1
    inner = ~first & ~last
    noun = "stage" if job.has_chunk_per_stage else "chunk"
    yield VerifierRule.LOAD_PLACE, (opcode == Opcode.LOAD) & inner, f"only the first and the last {noun} load"
    yield VerifierRule.MESSAGE_MATCH, _among(opcode, _WITH_PREVIOUS) & first, f"there is no previous {noun}"
    yield VerifierRule.MESSAGE_MATCH, _among(opcode, _WITH_NEXT) & last, f"there is no next {noun}"


def _among(opcode: Column, opcodes: frozenset[Opcode] | tuple[Opcode, ...]) -> Mask:
    wanted = np.zeros(max(Opcode) + 1, dtype=np.bool_)
    wanted[sorted(opcodes)] = True
    return wanted[opcode]


def _violation(table: StreamTable, index: int, rule: VerifierRule, row: int, message: str) -> Violation:
    worker, position = table.place(row)
    return Violation(rule, index, worker, position, message)


def check_structure(plan: CheckedPlan) -> Iterator[Violation]:
    """Yield what is missing, doubled, torn apart, out of order or not allowed."""
    yield from _counts(plan)
    parts = (("backward", plan.backward), ("backward input", plan.backward_input))
    for name, grid in (*parts, ("backward weight", plan.backward_weight)):
        yield from _follows(plan, "forward", plan.forward, name, grid)
    yield from _follows(plan, "backward input", plan.backward_input, "backward weight", plan.backward_weight)
    yield from _techniques(plan)
    yield from _loads(plan)
    yield from _groups(plan)


def _counts(plan: CheckedPlan) -> Iterator[Violation]:
    forward, backward, by_input, by_weight = (_count(plan, opcode) for opcode in COMPUTE)
    for unit, chunk in cells(forward != 1):
        yield plan.overall(
            VerifierRule.OP_COUNT, f"{plan.cell(unit, chunk)} needs 1 forward, found {forward[unit, chunk]}"
        )
    coupled = (backward == 1) & (by_input == 0) & (by_weight == 0)
    split = (backward == 0) & (by_input == 1) & (by_weight == 1)
    for unit, chunk in cells(~coupled & ~split):
        yield plan.overall(
            VerifierRule.OP_COUNT,
            f"{plan.cell(unit, chunk)} needs 1 backward, or 1 backward input and 1 backward weight, found "
            f"{backward[unit, chunk]}, {by_input[unit, chunk]} and {by_weight[unit, chunk]}",
        )


def _count(plan: CheckedPlan, opcode: Opcode) -> Grid:
    chunks = plan.job.chunks
    rows = plan.table.opcode == opcode
    keys = plan.unit()[rows] * chunks + plan.table.chunk[rows]
    return np.bincount(keys, minlength=plan.units * chunks).reshape(plan.units, chunks)


def _follows(plan: CheckedPlan, earlier: str, before: Grid, later: str, after: Grid) -> Iterator[Violation]:
    """Violations where `after` does not stand behind `before` in the same stream, if both are there."""
    both = (before >= 0) & (after >= 0)
    worker = plan.table.worker
    # The last row stands in for MISSING; `both` masks it out.
    apart = both & (worker[before] != worker[after])
    for unit, chunk in cells(apart):
        other = plan.table.workers[int(worker[before[unit, chunk]])]
        message = f"{later} of {plan.cell(unit, chunk)} runs here, its {earlier} on worker {other}"
        yield plan.at(VerifierRule.OP_HOST, int(after[unit, chunk]), message)
    for unit, chunk in cells(both & ~apart & (after < before)):
        _, position = plan.table.place(int(before[unit, chunk]))
        message = f"{later} of {plan.cell(unit, chunk)} stands before its {earlier} at {position}"
        yield plan.at(VerifierRule.OP_ORDER, int(after[unit, chunk]), message)


def _techniques(plan: CheckedPlan) -> Iterator[Violation]:
    table = plan.table
    if not plan.job.techniques.decouple:
        for row in where(table.is_any(*COMPUTE[2:], *SERVE[2:])):
            yield plan.at(VerifierRule.TECHNIQUE_OFF, row, f"{table.name(row)}: decouple is off")
    if not plan.job.techniques.adaptive:
        yield from _whole_pipelines(plan)


def _whole_pipelines(plan: CheckedPlan) -> Iterator[Violation]:
    """Without adaptive pipelining a micro-batch keeps to one pipeline, and a failure takes that out."""
    table = plan.table
    rows = table.opcode == Opcode.FORWARD
    hosts = np.full((plan.units, plan.job.chunks), -1, dtype=np.int64)
    hosts[plan.unit()[rows], table.chunk[rows]] = table.number[rows] % plan.job.pipelines
    routes = len(np.unique(hosts, axis=0))
    whole = min(live_hosts(plan.job, plan.failed))
    if routes > whole:
        message = (
            f"adaptive is off: micro-batches take {routes} routes, only {whole} whole pipelines are left"
        )
        yield plan.overall(VerifierRule.TECHNIQUE_OFF, message)


def _loads(plan: CheckedPlan) -> Iterator[Violation]:
    """For the first and the last chunk, each forward has its load directly before it."""
    table = plan.table
    loads = table.opcode == Opcode.LOAD
    edge = (table.chunk == 0) | (table.chunk == plan.job.chunks - 1)
    reads = (table.opcode == Opcode.FORWARD) & edge
    goes_with_next = np.zeros(len(table), dtype=np.bool_)
    goes_with_next[:-1] = loads[:-1] & reads[1:] & _same_unit_as_next(plan)
    has_load = np.zeros(len(table), dtype=np.bool_)
    has_load[1:] = goes_with_next[:-1]
    for row in where(loads & ~goes_with_next):
        yield plan.at(
            VerifierRule.LOAD_PLACE, row, f"{table.name(row)} does not stand directly before its forward"
        )
    for row in where(reads & ~has_load):
        yield plan.at(VerifierRule.LOAD_PLACE, row, f"{table.name(row)} has no load directly before it")


def _groups(plan: CheckedPlan) -> Iterator[Violation]:
    """Violations where a micro-batch leaves its group, or one worker of a stage, if groups have own cuts."""
    job, table = plan.job, plan.table
    if not job.groups:
        return
    group = np.repeat(np.arange(len(job.groups)), job.shares)
    expected = np.array(job.groups, dtype=np.int64)[group]
    there = plan.forward >= 0
    for unit, chunk in cells(there & (table.stage[plan.forward] != expected)):
        message = f"forward of {plan.cell(unit, chunk)} is not on a worker of group {group[unit]}"
        yield plan.at(VerifierRule.OP_HOST, int(plan.forward[unit, chunk]), message)
    host = table.worker[plan.forward]
    apart = there[:, 1:] & there[:, :-1] & (host[:, 1:] != host[:, :-1])
    for unit, before in cells(apart & (expected[:, 1:] == expected[:, :-1])):
        message = f"forward of {plan.cell(unit, before + 1)} is not where that of the chunk before is"
        yield plan.at(VerifierRule.OP_HOST, int(plan.forward[unit, before + 1]), message)


def _same_unit_as_next(plan: CheckedPlan) -> Mask:
    columns = (plan.unit(), plan.table.chunk, plan.table.worker)
    return np.all([column[:-1] == column[1:] for column in columns], axis=0)


_FINISH = (Opcode.BARRIER, Opcode.REDUCE, Opcode.OPTIMIZER, Opcode.GATHER, Opcode.VALIDATE)


def check_finish(plan: CheckedPlan) -> Iterator[Violation]:
    """Each live worker ends with exactly the steps of its kind of plan, behind everything else."""
    table = plan.table
    staggered = plan.job.techniques.stagger
    kind = "staggered" if staggered else "non-staggered"
    opcodes = [opcode for opcode in (_FINISH[1:] if staggered else _FINISH[:-1])]
    if not plan.job.owners:
        opcodes.remove(Opcode.GATHER)
    held = [plan.chunks_of(worker.stage) for worker in table.workers]
    complete = np.ones(len(table.workers), dtype=np.bool_)
    for opcode in _FINISH:
        found = np.bincount(table.worker[table.opcode == opcode], minlength=len(table.workers))
        per_chunk = opcode in USES_CHUNK
        wanted = np.array([(len(chunks) if per_chunk else 1) * (opcode in opcodes) for chunks in held])
        complete &= found == wanted
        for worker in where(found != wanted):
            message = f"a {kind} stream has {wanted[worker]} {opcode.name.lower()}, found {found[worker]}"
            yield plan.of_worker(VerifierRule.FINISH_STEPS, worker, message)
    for worker in where(complete):
        expected = _ending(opcodes, len(held[worker]))
        stop = int(table.offsets[worker + 1])
        rows = slice(stop - len(expected), stop)
        if table.opcode[rows].tolist() != expected or not _each_chunk_once(plan, rows, held[worker]):
            words = ", ".join(opcode.name.lower() for opcode in expected)
            yield plan.of_worker(VerifierRule.FINISH_STEPS, worker, f"a {kind} stream must end with {words}")


def _ending(opcodes: list[Opcode], chunks: int) -> list[Opcode]:
    """Each once, and those of chunks once for every chunk; weights are gathered right after their step."""
    found: list[Opcode] = []
    for opcode in opcodes:
        if opcode is Opcode.GATHER:
            found[-chunks:] = [Opcode.OPTIMIZER, Opcode.GATHER] * chunks
        else:
            found += [opcode] * (chunks if opcode in USES_CHUNK else 1)
    return found


def _each_chunk_once(plan: CheckedPlan, rows: slice, held: tuple[int, ...]) -> bool:
    """True if the reductions are those of all chunks of the worker, and so the optimizer steps.

    Where sums have different holders, they must be in order: else holders wait for each other. So must steps
    be where weights are gathered after each, and these are of the same chunk.
    """
    opcode, chunk = plan.table.opcode[rows], plan.table.chunk[rows]
    sums, steps, gathers = (
        chunk[opcode == each].tolist() for each in (Opcode.REDUCE, Opcode.OPTIMIZER, Opcode.GATHER)
    )
    if plan.job.groups and (sums != list(held) or (gathers and gathers != list(held))):
        return False
    if gathers and gathers != steps:
        return False
    return sorted(sums) == sorted(steps) == list(held)
