"""What a program does when nothing disturbs it: the schedule that its streams stand for.

A bundle keeps no times. Every op starts when the one before it on its worker has ended, its message has
arrived and the window of its stage is open; that gives back exactly the schedule the program was made from.
"""

import numpy as np

from recycle_compiler.ir.failure import Worker, worker_number
from recycle_compiler.ir.ops import UNSET, Op, OpKind, op_table
from recycle_compiler.ir.schedule import Schedule, schedule_order
from recycle_compiler.ir.streams import Program
from recycle_runtime.plan.isa import Opcode

_KINDS = {
    Opcode.FORWARD: OpKind.F,
    Opcode.BACKWARD: OpKind.B,
    Opcode.BACKWARD_INPUT: OpKind.I,
    Opcode.BACKWARD_WEIGHT: OpKind.W,
}


def replay(program: Program) -> Schedule:
    """The schedule of a program; raises ValueError if its streams wait for each other."""
    queues = {worker: _ops(program, worker, index) for index, worker in enumerate(program.workers)}
    ends: dict[tuple[OpKind, int, int, int], int] = {}
    clock = {worker: program.release[worker.stage] for worker in program.workers}
    position = dict.fromkeys(program.workers, 0)
    waiting: dict[tuple[OpKind, int, int, int], Worker] = {}
    runnable = list(program.workers)
    timed: list[tuple[Op, int]] = []
    while runnable:
        worker = runnable.pop()
        queue = queues[worker]
        while position[worker] < len(queue):
            op = queue[position[worker]]
            need, lag = _need(program, op)
            if need is not None and need not in ends:
                waiting[need] = worker
                break
            start = max(clock[worker], 0 if need is None else ends[need] + lag)
            clock[worker] = start + op.duration
            key = (_chain(op.kind), op.pipeline, op.microbatch, op.chunk)
            ends[key] = clock[worker]
            timed.append((op, start))
            position[worker] += 1
            if key in waiting:
                runnable.append(waiting.pop(key))
    if any(position[worker] < len(queue) for worker, queue in queues.items()):
        raise ValueError("the streams wait for each other")
    return _schedule(program, timed, clock)


def _ops(program: Program, worker: Worker, index: int) -> list[Op]:
    job, stage = program.job, worker.stage
    forward, back, weight = job.forward[stage], job.backward_input[stage], job.backward_weight[stage]
    durations = {OpKind.F: forward, OpKind.B: back + weight, OpKind.I: back, OpKind.W: weight}
    number = worker_number(worker, job.pipelines)
    rows = slice(int(program.offsets[index]), int(program.offsets[index + 1]))
    fields = zip(*(column[rows].tolist() for column in program.columns[:3]), strict=True)
    found: list[Op] = []
    for opcode, pipeline, microbatch in fields:
        kind = _KINDS.get(Opcode(opcode))
        if kind is not None:
            found.append(Op(kind, pipeline, microbatch, stage, number, durations[kind]))
    return found


def _chain(kind: OpKind) -> OpKind:
    """B and I are the same link of the chain of backwards."""
    return OpKind.I if kind is OpKind.B else kind


def _need(program: Program, op: Op) -> tuple[tuple[OpKind, int, int, int] | None, int]:
    """The op that this one waits for, and the time its message takes."""
    job, place = program.job, (op.pipeline, op.microbatch)
    if op.kind is OpKind.F:
        if op.chunk == 0:
            return None, 0
        return (OpKind.F, *place, op.chunk - 1), job.transfer[op.chunk - 1]
    if op.kind is OpKind.W:
        return (OpKind.I, *place, op.chunk), 0
    if op.chunk == job.chunks - 1:
        return (OpKind.F, *place, op.chunk), 0
    return (OpKind.I, *place, op.chunk + 1), job.transfer[op.chunk]


def _schedule(program: Program, timed: list[tuple[Op, int]], clock: dict[Worker, int]) -> Schedule:
    """Reductions and optimizer steps added, rows sorted."""
    job = program.job
    last = [max(clock[w] for w in program.workers if w.stage == stage) for stage in range(job.stages)]
    if not job.techniques.stagger:
        last = [max(last)] * job.stages
    for worker in program.workers:
        stage, begin = worker.stage, last[worker.stage]
        number = worker_number(worker, job.pipelines)
        reduction = Op(OpKind.R, UNSET, UNSET, stage, number, job.reduce[stage])
        step = Op(OpKind.O, UNSET, UNSET, stage, number, job.optimizer[stage])
        timed += [(reduction, begin), (step, begin + job.reduce[stage])]
    ops = op_table([op for op, _ in timed])
    start = np.array([start for _, start in timed], dtype=np.int64)
    order = schedule_order(ops, start)
    return Schedule(job, program.failed, ops.take(order), start[order], program.release, program.claims)
