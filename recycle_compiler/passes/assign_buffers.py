"""Number the buffers and inboxes of every worker: memory is decided here, not discovered at run time.

    load p0 m0           -->    load p0 m0 b0
    forward p0 m0               forward p0 m0 b0 <- i2

A micro-batch keeps one buffer from its load or forward to the end of its backward; a message keeps one
inbox from the posting of its receive to the start of the op that consumes it. The lowest free number is
taken, so a worker needs no more of them than it ever uses at once.
"""

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from recycle_compiler.ir.program import Program
from recycle_runtime.isa import CONSUMES, NONE, RECEIVES, USES_BUFFER, Opcode

_FREES = frozenset({Opcode.BACKWARD, Opcode.BACKWARD_WEIGHT})
_BUFFERED = frozenset(map(int, USES_BUFFER))
_FREEING = frozenset(map(int, _FREES))
_RECEIVING = frozenset(map(int, RECEIVES))
_CONSUMING = frozenset(map(int, CONSUMES))


@dataclass(frozen=True, slots=True)
class AssignBuffers:
    """Fill in `buffer` and `inbox`."""

    name: str = "assign-buffers"

    def run(self, program: Program) -> Program:
        unit = (program.pipeline * program.job.microbatches + program.microbatch).tolist()
        opcode = program.opcode.tolist()
        buffer = [NONE] * len(opcode)
        inbox = [NONE] * len(opcode)
        limits = program.offsets.tolist()
        for first, last in pairwise(limits):
            _number_buffers(opcode, unit, buffer, first, last)
            _number_inboxes(opcode, unit, inbox, first, last)
        return replace(
            program, buffer=np.array(buffer, dtype=np.int64), inbox=np.array(inbox, dtype=np.int64)
        )


def _number_buffers(opcode: list[int], unit: list[int], buffer: list[int], first: int, last: int) -> None:
    numbers = _Numbers()
    freed = NONE
    for row in range(first, last):
        if opcode[row] not in _BUFFERED:
            continue
        if opcode[row] == Opcode.SEND_GRADIENT and not numbers.holds(unit[row]):
            # Its backward has just freed the buffer, and nothing takes a buffer between the two.
            buffer[row] = freed
            continue
        buffer[row] = numbers.take(unit[row])
        if opcode[row] in _FREEING:
            freed = buffer[row]
            numbers.free(unit[row])


def _number_inboxes(opcode: list[int], unit: list[int], inbox: list[int], first: int, last: int) -> None:
    numbers = _Numbers()
    for row in range(first, last):
        if opcode[row] in _RECEIVING:
            inbox[row] = numbers.take(unit[row])
        elif opcode[row] in _CONSUMING and numbers.holds(unit[row]):
            inbox[row] = numbers.take(unit[row])
            numbers.free(unit[row])


class _Numbers:
    """Hands out the lowest free number to each holder."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._free: list[int] = []
        self._next = 0

    def holds(self, holder: int) -> bool:
        return holder in self._held

    def take(self, holder: int) -> int:
        """The holder's number; a new one if it has none."""
        if holder not in self._held:
            if not self._free:
                heappush(self._free, self._next)
                self._next += 1
            self._held[holder] = heappop(self._free)
        return self._held[holder]

    def free(self, holder: int) -> None:
        heappush(self._free, self._held.pop(holder))
