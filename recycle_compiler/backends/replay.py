"""Replay of undisturbed streams: the schedule that they stand for.

A bundle keeps no times. Every op starts when the one before it on its worker has ended, its message has
arrived and the window of its stage is open; that gives back exactly the schedule the streams were made from.
"""

import numpy as np

from recycle_compiler.ir.failure import Worker, worker_number
from recycle_compiler.ir.groups import ending_starts
from recycle_compiler.ir.hops import hop_times
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import SERVICE, SERVICES, UNSET, Op, OpKind, op_duration, op_table
from recycle_compiler.ir.rounds import with_overlap
from recycle_compiler.ir.schedule import Schedule, schedule_order
from recycle_compiler.ir.streams import Streams
from recycle_runtime.plan.isa import Opcode

_KINDS = {
    Opcode.FORWARD: OpKind.F,
    Opcode.BACKWARD: OpKind.B,
    Opcode.BACKWARD_INPUT: OpKind.I,
    Opcode.BACKWARD_WEIGHT: OpKind.W,
    Opcode.SERVE_FORWARD: OpKind.SF,
    Opcode.SERVE_BACKWARD: OpKind.SB,
    Opcode.SERVE_BACKWARD_INPUT: OpKind.SI,
    Opcode.SERVE_BACKWARD_WEIGHT: OpKind.SW,
}
_SERVED = {service: work for work, service in SERVICE.items()}


_FINISH = {Opcode.REDUCE: OpKind.R, Opcode.OPTIMIZER: OpKind.O, Opcode.GATHER: OpKind.G}


def replay(streams: Streams) -> Schedule:
    """The schedule of a plan; raises ValueError if its streams wait for each other."""
    queues = {worker: _ops(streams, worker, index) for index, worker in enumerate(streams.workers)}
    ends: dict[tuple[OpKind, int, int, int], int] = {}
    rounds = {worker: _rounds(queue) for worker, queue in queues.items()}
    if any(streams.job.exchange_left):
        queues = {worker: _overlapped(streams.job, queue, rounds[worker]) for worker, queue in queues.items()}
    clock = {worker: streams.release[worker.stage] for worker in streams.workers}
    position = dict.fromkeys(streams.workers, 0)
    waiting: dict[tuple[OpKind, int, int, int], Worker] = {}
    runnable = list(streams.workers)
    timed: list[tuple[Op, int]] = []
    hops = _hops(streams.job)
    meetings = _Meetings(streams)
    while runnable:
        worker = runnable.pop()
        queue = queues[worker]
        while position[worker] < len(queue):
            op = queue[position[worker]]
            need, border = _need(streams, op)
            lag = (
                0 if border is None else hops[op.pipeline * streams.job.microbatches + op.microbatch][border]
            )
            if need is not None and need not in ends:
                waiting[need] = worker
                break
            start = max(clock[worker], 0 if need is None else ends[need] + lag)
            number = rounds[worker][position[worker]]
            met = meetings.come(worker, op, number, start)
            if met is None:
                break
            runnable += meetings.woken()
            start = met
            clock[worker] = start + op.duration
            key = (_chain(op.kind), op.pipeline, op.microbatch, op.chunk)
            ends[key] = clock[worker]
            timed.append((op._replace(microbatch=number) if op.kind in SERVICES else op, start))
            position[worker] += 1
            if key in waiting:
                runnable.append(waiting.pop(key))
    if any(position[worker] < len(queue) for worker, queue in queues.items()):
        raise ValueError("the streams wait for each other")
    return _schedule(streams, timed, clock)


class _Meetings:
    """Rounds of peers that share experts: each begins when the last worker of the chunk is there."""

    def __init__(self, streams: Streams) -> None:
        job = streams.job
        self._is_met = job.slots > 0
        self._holders = [sum(w.stage in stages for w in streams.workers) for stages in job.holders]
        self._there: dict[tuple[OpKind, int, int], dict[Worker, int]] = {}
        self._woken: list[Worker] = []

    def come(self, worker: Worker, op: Op, number: int, start: int) -> int | None:
        """Start of the op, for which its worker is ready at `start`; None while others are missing."""
        if not self._is_met or _chain(op.kind) is OpKind.W:
            return start
        there = self._there.setdefault((_chain(op.kind), op.chunk, number), {})
        is_new = worker not in there
        there.setdefault(worker, start)
        if len(there) < self._holders[op.chunk]:
            return None
        self._woken = [peer for peer in there if is_new and peer != worker]
        return max(there.values())

    def woken(self) -> list[Worker]:
        """Workers that have waited for the last one to come; each is returned once."""
        woken, self._woken = self._woken, []
        return woken


def _ops(streams: Streams, worker: Worker, index: int) -> list[Op]:
    number = worker_number(worker, streams.job.pipelines)
    found: list[Op] = []
    for instruction in streams.stream(index):
        kind = _KINDS.get(instruction.opcode)
        if kind is not None:
            _, chunk, pipeline, microbatch, *_ = instruction
            duration = op_duration(streams.job, kind, chunk)
            found.append(Op(kind, pipeline, microbatch, chunk, number, duration))
    return found


def _chain(kind: OpKind) -> OpKind:
    """B and I are the same link of the chain of backwards, and services are what they serve."""
    kind = _SERVED.get(kind, kind)
    return OpKind.I if kind is OpKind.B else kind


def _rounds(queue: list[Op]) -> list[int]:
    """For each op of a worker, how many such it has had before on the chunk."""
    counts: dict[tuple[OpKind, int], int] = {}
    found: list[int] = []
    for op in queue:
        line = (_chain(op.kind), op.chunk)
        found.append(counts.get(line, 0))
        counts[line] = found[-1] + 1
    return found


def _overlapped(job: JobSpec, queue: list[Op], rounds: list[int]) -> list[Op]:
    """The same ops of a worker, with W that take what is left of them."""
    numbered = [
        op._replace(microbatch=number) if op.kind in SERVICES else op
        for op, number in zip(queue, rounds, strict=True)
    ]
    left = with_overlap(job, op_table(numbered)).duration.tolist()
    return [op._replace(duration=ticks) for op, ticks in zip(queue, left, strict=True)]


def _hops(job: JobSpec) -> list[list[int]]:
    """For every micro-batch what its messages take, from each chunk to the next and back."""
    units = job.pipelines * job.microbatches
    if not job.groups:
        return [list(job.transfer)] * units
    return hop_times(job, *np.indices((units, job.chunks - 1))).tolist()


def _need(streams: Streams, op: Op) -> tuple[tuple[OpKind, int, int, int] | None, int | None]:
    """The op that this one waits for, and behind which chunk the border lies that its message crosses."""
    job, place = streams.job, (op.pipeline, op.microbatch)
    if op.kind in SERVICES:
        return None, None
    if op.kind is OpKind.F:
        if op.chunk == 0:
            return None, None
        return (OpKind.F, *place, op.chunk - 1), op.chunk - 1
    if op.kind is OpKind.W:
        return (OpKind.I, *place, op.chunk), None
    if op.chunk == job.chunks - 1:
        return (OpKind.F, *place, op.chunk), None
    return (OpKind.I, *place, op.chunk + 1), op.chunk


def _schedule(streams: Streams, timed: list[tuple[Op, int]], clock: dict[Worker, int]) -> Schedule:
    """Reductions and optimizer steps added, rows sorted."""
    job = streams.job
    last = [max(clock[w] for w in streams.workers if w.stage == stage) for stage in range(job.stages)]
    if job.groups:
        return _schedule_of(streams, [*timed, *_endings_of_groups(streams, last)])
    together = range(job.stages) if not job.techniques.stagger else job.tied_chunks
    latest = max((last[stage] for stage in together), default=0)
    last = [latest if stage in together else end for stage, end in enumerate(last)]
    for index, worker in enumerate(streams.workers):
        number, now = worker_number(worker, job.pipelines), last[worker.stage]
        for instruction in streams.stream(index):
            # Holders of a chunk hold the same chunks, and reduce them in the same order.
            if instruction.opcode in _FINISH:
                kind, chunk = _FINISH[instruction.opcode], instruction.chunk
                op = Op(kind, UNSET, UNSET, chunk, number, op_duration(job, kind, chunk))
                timed.append((op, now))
                now += op.duration
    return _schedule_of(streams, timed)


def _endings_of_groups(streams: Streams, last: list[int]) -> list[tuple[Op, int]]:
    """Reductions and steps where holders of a chunk hold others too: a sum waits for all of them."""
    job = streams.job
    sums, steps, gathers = ending_starts(job, last)
    found: list[tuple[Op, int]] = []
    for worker in streams.workers:
        number = worker_number(worker, job.pipelines)
        for chunk in job.held[worker.stage]:
            starts = {OpKind.R: sums[chunk], OpKind.O: steps[worker.stage, chunk]}
            if gathers:
                starts[OpKind.G] = gathers[chunk]
            for kind, start in starts.items():
                found.append((Op(kind, UNSET, UNSET, chunk, number, op_duration(job, kind, chunk)), start))
    return found


def _schedule_of(streams: Streams, timed: list[tuple[Op, int]]) -> Schedule:
    ops = op_table([op for op, _ in timed])
    start = np.array([start for _, start in timed], dtype=np.int64)
    order = schedule_order(ops, start)
    return Schedule(
        streams.job, streams.failed, ops.take(order), start[order], streams.release, streams.claims
    )
