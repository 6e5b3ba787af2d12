"""How every stream ends: the barrier, the reduction, the optimizer step and its validation."""

from collections.abc import Iterator

import numpy as np

from recycle_compiler.verifier.plan import Plan, where
from recycle_compiler.verifier.report import Rule, Violation
from recycle_runtime.plan.isa import Opcode

_FINISH = (Opcode.BARRIER, Opcode.REDUCE, Opcode.OPTIMIZER, Opcode.VALIDATE)
_STAGGERED_END = (Opcode.REDUCE, Opcode.OPTIMIZER, Opcode.VALIDATE)
_BARRIER_END = (Opcode.BARRIER, Opcode.REDUCE, Opcode.OPTIMIZER)


def check_finish(plan: Plan) -> Iterator[Violation]:
    """Each live worker ends with exactly the steps of its kind of plan, behind everything else."""
    table = plan.table
    expected = _STAGGERED_END if plan.job.techniques.stagger else _BARRIER_END
    kind = "staggered" if plan.job.techniques.stagger else "non-staggered"
    complete = np.ones(len(table.workers), dtype=np.bool_)
    for opcode in _FINISH:
        found = np.bincount(table.worker[table.opcode == opcode], minlength=len(table.workers))
        wanted = int(opcode in expected)
        complete &= found == wanted
        for worker in where(found != wanted):
            message = f"a {kind} stream has {wanted} {opcode.name.lower()}, found {found[worker]}"
            yield plan.of_worker(Rule.FINISH_STEPS, worker, message)
    for worker in where(complete):
        stop = int(table.offsets[worker + 1])
        if tuple(table.opcode[stop - len(expected) : stop].tolist()) != expected:
            words = ", ".join(opcode.name.lower() for opcode in expected)
            yield plan.of_worker(Rule.FINISH_STEPS, worker, f"a {kind} stream must end with {words}")
