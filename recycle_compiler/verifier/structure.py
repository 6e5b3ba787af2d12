"""Each micro-batch exactly once per stage, on one live worker, with the techniques that the job allows."""

from collections.abc import Iterator

import numpy as np

from recycle_compiler.verifier.claims import live_hosts
from recycle_compiler.verifier.plan import Grid, Plan, cells, where
from recycle_compiler.verifier.report import Rule, Violation
from recycle_compiler.verifier.table import COMPUTE, Mask
from recycle_runtime.plan.isa import Opcode


def check_structure(plan: Plan) -> Iterator[Violation]:
    """Yield what is missing, doubled, torn apart, out of order or not allowed."""
    yield from _counts(plan)
    parts = (("backward", plan.backward), ("backward input", plan.backward_input))
    for name, grid in (*parts, ("backward weight", plan.backward_weight)):
        yield from _follows(plan, "forward", plan.forward, name, grid)
    yield from _follows(plan, "backward input", plan.backward_input, "backward weight", plan.backward_weight)
    yield from _techniques(plan)
    yield from _loads(plan)


def _counts(plan: Plan) -> Iterator[Violation]:
    forward, backward, by_input, by_weight = (_count(plan, opcode) for opcode in COMPUTE)
    for unit, stage in cells(forward != 1):
        yield plan.overall(
            Rule.OP_COUNT, f"{plan.cell(unit, stage)} needs 1 forward, found {forward[unit, stage]}"
        )
    coupled = (backward == 1) & (by_input == 0) & (by_weight == 0)
    split = (backward == 0) & (by_input == 1) & (by_weight == 1)
    for unit, stage in cells(~coupled & ~split):
        yield plan.overall(
            Rule.OP_COUNT,
            f"{plan.cell(unit, stage)} needs 1 backward, or 1 backward input and 1 backward weight, found "
            f"{backward[unit, stage]}, {by_input[unit, stage]} and {by_weight[unit, stage]}",
        )


def _count(plan: Plan, opcode: Opcode) -> Grid:
    stages = plan.job.stages
    rows = plan.table.opcode == opcode
    keys = plan.unit()[rows] * stages + plan.table.stage[rows]
    return np.bincount(keys, minlength=plan.units * stages).reshape(plan.units, stages)


def _follows(plan: Plan, earlier: str, before: Grid, later: str, after: Grid) -> Iterator[Violation]:
    """Where both are there, `after` must stand behind `before` in the same stream."""
    both = (before >= 0) & (after >= 0)
    worker = plan.table.worker
    # The last row stands in for MISSING; `both` masks it out.
    apart = both & (worker[before] != worker[after])
    for unit, stage in cells(apart):
        other = plan.table.workers[int(worker[before[unit, stage]])]
        message = f"{later} of {plan.cell(unit, stage)} runs here, its {earlier} on worker {other}"
        yield plan.at(Rule.OP_HOST, int(after[unit, stage]), message)
    for unit, stage in cells(both & ~apart & (after < before)):
        _, position = plan.table.place(int(before[unit, stage]))
        message = f"{later} of {plan.cell(unit, stage)} stands before its {earlier} at {position}"
        yield plan.at(Rule.OP_ORDER, int(after[unit, stage]), message)


def _techniques(plan: Plan) -> Iterator[Violation]:
    table = plan.table
    if not plan.job.techniques.decouple:
        for row in where(table.is_any(Opcode.BACKWARD_INPUT, Opcode.BACKWARD_WEIGHT)):
            yield plan.at(Rule.TECHNIQUE_OFF, row, f"{table.name(row)}: decouple is off")
    if not plan.job.techniques.adaptive:
        yield from _whole_pipelines(plan)


def _whole_pipelines(plan: Plan) -> Iterator[Violation]:
    """Without adaptive pipelining a micro-batch keeps to one pipeline, and a failure takes that out."""
    table = plan.table
    rows = table.opcode == Opcode.FORWARD
    hosts = np.full((plan.units, plan.job.stages), -1, dtype=np.int64)
    hosts[plan.unit()[rows], table.stage[rows]] = table.number[rows] % plan.job.pipelines
    routes = len(np.unique(hosts, axis=0))
    whole = min(live_hosts(plan.job, plan.failed))
    if routes > whole:
        message = (
            f"adaptive is off: micro-batches take {routes} routes, only {whole} whole pipelines are left"
        )
        yield plan.overall(Rule.TECHNIQUE_OFF, message)


def _loads(plan: Plan) -> Iterator[Violation]:
    """On the first and the last stage, each forward has its load directly before it."""
    table = plan.table
    loads = table.opcode == Opcode.LOAD
    reads = (table.opcode == Opcode.FORWARD) & ((table.stage == 0) | (table.stage == plan.job.stages - 1))
    goes_with_next = np.zeros(len(table), dtype=np.bool_)
    goes_with_next[:-1] = loads[:-1] & reads[1:] & _same_unit_as_next(plan)
    has_load = np.zeros(len(table), dtype=np.bool_)
    has_load[1:] = goes_with_next[:-1]
    for row in where(loads & ~goes_with_next):
        yield plan.at(Rule.LOAD_PLACE, row, f"{table.name(row)} does not stand directly before its forward")
    for row in where(reads & ~has_load):
        yield plan.at(Rule.LOAD_PLACE, row, f"{table.name(row)} has no load directly before it")


def _same_unit_as_next(plan: Plan) -> Mask:
    unit, worker = plan.unit(), plan.table.worker
    return (unit[:-1] == unit[1:]) & (worker[:-1] == worker[1:])
