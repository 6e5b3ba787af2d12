"""Number the buffers and inboxes of every worker: memory is decided here, not discovered at run time.

    load p0 m0           -->    load p0 m0 b0
    forward p0 m0               forward p0 m0 b0 <- i2

A micro-batch keeps one buffer per chunk from its load or forward to the end of its backward; a message keeps
one inbox from the posting of its receive to the start of the op that consumes it. The lowest free number is
taken, so a worker needs no more of them than it ever uses at once: while none is free, the numbers in use
are the first ones.
"""

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from recycle_compiler.ir.streams import Streams
from recycle_compiler.passes.pipeline import Pass
from recycle_runtime.plan.isa import CONSUMES, NONE, RECEIVES, USES_BUFFER, Opcode

_FREES = frozenset({Opcode.BACKWARD, Opcode.BACKWARD_WEIGHT})
_BUFFERED = frozenset(map(int, USES_BUFFER))
_FREEING = frozenset(map(int, _FREES))
_RECEIVING = frozenset(map(int, RECEIVES))
_CONSUMING = frozenset(map(int, CONSUMES))
_SEND_GRADIENT = int(Opcode.SEND_GRADIENT)


@dataclass(frozen=True, slots=True)
class AssignBuffers(Pass[Streams, Streams]):
    """Fill in `buffer` and `inbox`."""

    name = "assign-buffers"

    def run(self, streams: Streams) -> Streams:
        job = streams.job
        unit = streams.pipeline * job.microbatches + streams.microbatch
        unit = (unit * job.chunks + streams.chunk).tolist()
        opcode = streams.opcode.tolist()
        buffer = [NONE] * len(opcode)
        inbox = [NONE] * len(opcode)
        limits = streams.offsets.tolist()
        for first, last in pairwise(limits):
            _number_buffers(opcode, unit, buffer, first, last)
            _number_inboxes(opcode, unit, inbox, first, last)
        return replace(
            streams, buffer=np.array(buffer, dtype=np.int64), inbox=np.array(inbox, dtype=np.int64)
        )


def _number_buffers(opcode: list[int], unit: list[int], buffer: list[int], first: int, last: int) -> None:
    held: dict[int, int] = {}
    free: list[int] = []
    freed = NONE
    for row in range(first, last):
        code = opcode[row]
        if code not in _BUFFERED:
            continue
        number = held.get(unit[row])
        if number is None and code == _SEND_GRADIENT:
            # Its backward has just freed the buffer, and nothing takes a buffer between the two.
            buffer[row] = freed
            continue
        if number is None:
            number = held[unit[row]] = heappop(free) if free else len(held)
        buffer[row] = number
        if code in _FREEING:
            freed = number
            del held[unit[row]]
            heappush(free, number)


def _number_inboxes(opcode: list[int], unit: list[int], inbox: list[int], first: int, last: int) -> None:
    held: dict[int, int] = {}
    free: list[int] = []
    for row in range(first, last):
        if opcode[row] in _RECEIVING:
            if unit[row] not in held:
                held[unit[row]] = heappop(free) if free else len(held)
            inbox[row] = held[unit[row]]
        elif opcode[row] in _CONSUMING and unit[row] in held:
            inbox[row] = held.pop(unit[row])
            heappush(free, inbox[row])
