"""The streams of one plan as bytes, and back. Standard library only.

The streams of all workers lie in columns, one for each field of an instruction: first all opcodes, worker
after worker, then all chunks, and so on. A number takes one, two or four bytes, the lowest first, as its
column needs. Numbers are one higher than they are, so that NONE is 0. Of all fields but the opcode, the
difference is stored from the instruction before it in its stream that has the same opcode; it wraps around at
what the bytes can hold. Pipelines, and those of neighbours, count from the worker's own. So workers that do
the same have the same bytes, most differences are equal, and zlib leaves little of them.
"""

import sys
import zlib
from array import array
from typing import NamedTuple

from recycle_runtime.plan.isa import NONE, Instruction, Opcode
from recycle_runtime.plan.worker_ids import Worker

OPCODE, CHUNK, PIPELINE, MICROBATCH, BUFFER, INBOX, NEIGHBOUR = range(len(Instruction._fields))
"""The columns, in the order of the fields of Instruction."""
LARGEST_NUMBER = (1 << 20) - 1
"""Of any field, and of what a job has of anything."""
LARGEST_PLAN = 1 << 28
"""Bytes of the columns of a plan. One for 16,384 GPUs has 4 million."""
MOST_UNPACKED = 1032
"""Bytes that one packed byte can stand for: the format of zlib allows no more."""
TYPE_CODES = {1: "B", 2: "H", 4: "I"}
"""Of the array module, by the width of a column."""
_LAST_OPCODE = max(Opcode).value
_STORED_OPCODES = {opcode.value + 1: opcode for opcode in Opcode}


class StreamShape(NamedTuple):
    """Of a job, as far as streams depend on it."""

    chunks: int
    stages: int
    pipelines: int
    microbatches: int

    @property
    def limits(self) -> tuple[int, ...]:
        """Upper limits of the numbers in each column, exclusive."""
        workers = self.stages * self.pipelines
        many = LARGEST_NUMBER + 1
        return (_LAST_OPCODE + 1, self.chunks, self.pipelines, self.microbatches, many, many, workers)


class Columns(NamedTuple):
    """All streams of a plan, as they lie in memory."""

    data: bytes
    widths: tuple[int, ...]
    """Bytes that a number takes in each column."""
    rows: int
    """Instructions of all streams together."""

    def slices(self, first: int, last: int) -> list[list[int]]:
        """Some rows of every column, as stored."""
        found: list[list[int]] = []
        start = 0
        for width in self.widths:
            numbers = array(TYPE_CODES[width], self.data[start + first * width : start + last * width])
            if sys.byteorder == "big":
                numbers.byteswap()
            found.append(numbers.tolist())
            start += self.rows * width
        return found


def unpack_bytes(packed: bytes, size: int) -> bytes | None:
    """Unpack bytes that zlib has packed; None if they are not exactly `size` bytes. Never unpacks more."""
    if size > MOST_UNPACKED * len(packed):
        return None
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed, size + 1)
    except zlib.error:
        return None
    return data if len(data) == size and unpacker.eof and not unpacker.unused_data else None


def decode_stream(
    columns: Columns, first: int, last: int, worker: Worker, shape: StreamShape
) -> tuple[Instruction, ...] | None:
    """The stream that lies in these rows; None if a number in it is out of range."""
    opcodes, *stored = columns.slices(first, last)
    if opcodes and not (min(opcodes) > 1 and max(opcodes) <= _LAST_OPCODE + 1):
        return None
    fields = [_summed(opcodes, *each) for each in zip(stored, columns.widths[1:], strict=True)]
    if any(max(column, default=0) >= limit for column, limit in zip(fields, shape.limits[1:], strict=True)):
        return None
    home, pipelines = worker[0], shape.pipelines
    for place in (PIPELINE - 1, NEIGHBOUR - 1):
        fields[place] = [
            NONE if each == NONE else each - each % pipelines + (each + home) % pipelines
            for each in fields[place]
        ]
    return tuple(map(Instruction, (_STORED_OPCODES[opcode] for opcode in opcodes), *fields))


def _summed(opcodes: list[int], differences: list[int], width: int) -> list[int]:
    """The numbers of a column from their differences."""
    mask = (1 << 8 * width) - 1
    last = [0] * (_LAST_OPCODE + 2)
    found: list[int] = []
    for opcode, difference in zip(opcodes, differences, strict=True):
        number = last[opcode] = (last[opcode] + difference) & mask
        found.append(number - 1)
    return found
