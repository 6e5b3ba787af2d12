"""Turn the schedule into instructions, with a send and a receive for all that goes from chunk to chunk.

    F(c) on 0:1, then F(c+1) on 2:2    -->    0:1  forward, send-activation -> 2:2
                                              2:2  recv-activation <- 0:1, ..., forward

A send stands right after the op that makes the message; its receive is posted on the other worker at the
time of that send, before anything that starts then. Receives on a pair of workers are therefore in the
order of its sends, and even if every send had to wait for its receive there would be no deadlock: in order
of (time; receive, send, compute), each instruction waits only for earlier ones. A worker that has two chunks
in a row sends to itself, by the same instructions.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.ops import SERVICES, Column, OpKind
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.streams import Streams
from recycle_compiler.passes.pipeline import Pass
from recycle_runtime.plan.isa import NONE, USES_CHUNK, Opcode

Mask = NDArray[np.bool_]

_RECEIVE, _SEND, _OVER, _LOAD, _COMPUTE, _BARRIER, _REDUCE, _OPTIMIZER, _VALIDATE = range(9)
"""Rank among instructions of one worker at one time; the weights of a chunk follow its step. A W that takes
no time of its own is over before anything else begins."""

_COMPUTE_OPCODE = np.array(
    [Opcode.FORWARD, Opcode.BACKWARD, Opcode.BACKWARD_INPUT, Opcode.BACKWARD_WEIGHT], dtype=np.int64
)

_SERVE_OPCODE = np.array(
    [
        Opcode.SERVE_FORWARD,
        Opcode.SERVE_BACKWARD,
        Opcode.SERVE_BACKWARD_INPUT,
        Opcode.SERVE_BACKWARD_WEIGHT,
    ],
    dtype=np.int64,
)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Instructions before they are sorted into streams."""

    worker: Column
    time: Column
    rank: Column
    opcode: Column
    chunk: Column
    pipeline: Column
    microbatch: Column
    neighbour: Column


@dataclass(frozen=True, slots=True)
class InsertTransfers(Pass[Schedule, Streams]):
    """Schedule -> Streams whose buffers and inboxes have no numbers yet."""

    name = "insert-transfers"

    def run(self, schedule: Schedule) -> Streams:
        rows = _concatenate(
            [
                _compute(schedule),
                _services(schedule),
                _loads(schedule),
                *_transfers(schedule),
                *_endings(schedule),
            ]
        )
        order = np.lexsort((_among_equals(schedule, rows), rows.time, rows.worker))
        owner = rows.worker[order]
        present = np.unique(owner)
        pipelines = schedule.job.pipelines
        unset = np.full(len(order), NONE, dtype=np.int64)
        works_on_a_chunk = np.isin(rows.opcode[order], sorted(USES_CHUNK))
        return Streams(
            schedule.job,
            schedule.failed,
            schedule.release,
            schedule.claims,
            tuple(Worker(number % pipelines, number // pipelines) for number in present.tolist()),
            np.append(np.searchsorted(owner, present), len(owner)),
            rows.opcode[order],
            np.where(works_on_a_chunk, rows.chunk[order], NONE),
            rows.pipeline[order],
            rows.microbatch[order],
            unset,
            unset,
            rows.neighbour[order],
        )


def _among_equals(schedule: Schedule, rows: _Rows) -> Column:
    """Sort key of a worker's instructions at one time: by rank, pipeline, micro-batch, chunk and opcode."""
    job, place = schedule.job, rows.rank
    # One number, since sorting by one key is faster than by five; NONE comes before all others.
    for column, size in (
        (rows.pipeline, job.pipelines),
        (rows.microbatch, job.microbatches),
        (rows.chunk, job.chunks),
        (rows.opcode, max(Opcode) + 1),
    ):
        place = place * (size + 1) + column - NONE
    return place


def _compute(schedule: Schedule) -> _Rows:
    ops, work = schedule.ops, schedule.is_compute
    opcode = _COMPUTE_OPCODE[ops.kind[work]]
    return _rows(schedule, work, schedule.start[work], _rank(schedule, work), opcode)


def _services(schedule: Schedule) -> _Rows:
    """Whoever has no micro-batch in a round: a stream says neither that nor which round it is."""
    serves = np.isin(schedule.ops.kind, SERVICES)
    opcode = _SERVE_OPCODE[schedule.ops.kind[serves] - SERVICES[0]]
    found = _rows(schedule, serves, schedule.start[serves], _rank(schedule, serves), opcode)
    return replace(found, microbatch=np.full(len(opcode), NONE))


def _rank(schedule: Schedule, chosen: Mask) -> Column:
    return np.where(schedule.ops.duration[chosen] > 0, _COMPUTE, _OVER)


def _loads(schedule: Schedule) -> _Rows:
    """The first chunk needs inputs, the last one targets."""
    ops = schedule.ops
    edge = (ops.chunk == 0) | (ops.chunk == schedule.job.chunks - 1)
    chosen = (ops.kind == OpKind.F) & edge
    return _rows(schedule, chosen, schedule.start[chosen], _LOAD, Opcode.LOAD)


def _transfers(schedule: Schedule) -> list[_Rows]:
    """Activations to the next chunk and gradients to the one before."""
    job, ops = schedule.job, schedule.ops
    host = np.empty((job.pipelines, job.microbatches, job.chunks), dtype=np.int64)
    forwards = ops.kind == OpKind.F
    host[ops.pipeline[forwards], ops.microbatch[forwards], ops.chunk[forwards]] = ops.worker[forwards]
    backwards = (ops.kind == OpKind.B) | (ops.kind == OpKind.I)
    found: list[_Rows] = []
    for chosen, step, send, receive in (
        (forwards & (ops.chunk < job.chunks - 1), 1, Opcode.SEND_ACTIVATION, Opcode.RECV_ACTIVATION),
        (backwards & (ops.chunk > 0), -1, Opcode.SEND_GRADIENT, Opcode.RECV_GRADIENT),
    ):
        pipeline, microbatch = ops.pipeline[chosen], ops.microbatch[chosen]
        target = ops.chunk[chosen] + step
        other = host[pipeline, microbatch, target]
        sent = schedule.end[chosen]
        found.append(_rows(schedule, chosen, sent, _SEND, send, other))
        size = len(sent)
        found.append(
            _Rows(
                other,
                sent,
                np.full(size, _RECEIVE),
                np.full(size, int(receive)),
                target,
                pipeline,
                microbatch,
                ops.worker[chosen],
            )
        )
    return found


def _endings(schedule: Schedule) -> list[_Rows]:
    """Reduction and optimizer of every chunk, behind one barrier or before one validation of the worker."""
    ops = schedule.ops
    reductions, steps, gathers = (ops.kind == kind for kind in (OpKind.R, OpKind.O, OpKind.G))
    found = [
        _rows(schedule, reductions, schedule.start[reductions], _REDUCE, Opcode.REDUCE),
        _rows(schedule, steps, schedule.start[steps], _OPTIMIZER, Opcode.OPTIMIZER),
        _rows(schedule, gathers, schedule.start[gathers], _OPTIMIZER, Opcode.GATHER),
    ]
    if schedule.job.techniques.stagger:
        last = _first_of_each_worker(schedule, gathers if gathers.any() else steps, -schedule.end)
        return [*found, _rows(schedule, last, schedule.end[last], _VALIDATE, Opcode.VALIDATE)]
    first = _first_of_each_worker(schedule, reductions, schedule.start)
    return [*found, _rows(schedule, first, schedule.start[first], _BARRIER, Opcode.BARRIER)]


def _first_of_each_worker(schedule: Schedule, chosen: Mask, time: Column) -> Mask:
    """Of the chosen ops, the one of each worker whose time is least."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((time[rows], schedule.ops.worker[rows]))]
    _, first = np.unique(schedule.ops.worker[rows], return_index=True)
    found = np.zeros(len(chosen), dtype=np.bool_)
    found[rows[first]] = True
    return found


def _rows(
    schedule: Schedule,
    chosen: Mask,
    time: Column,
    rank: int | Column,
    opcode: Opcode | Column,
    neighbour: Column | int = NONE,
) -> _Rows:
    """Instructions on the workers of the chosen ops."""
    ops, size = schedule.ops, int(chosen.sum())
    return _Rows(
        ops.worker[chosen],
        time,
        np.broadcast_to(np.asarray(rank, dtype=np.int64), size),
        np.broadcast_to(np.asarray(opcode, dtype=np.int64), size),
        ops.chunk[chosen],
        ops.pipeline[chosen],
        ops.microbatch[chosen],
        np.broadcast_to(np.asarray(neighbour, dtype=np.int64), size),
    )


def _concatenate(parts: list[_Rows]) -> _Rows:
    names = _Rows.__slots__
    return _Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
