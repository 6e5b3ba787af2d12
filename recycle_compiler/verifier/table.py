"""All streams of one plan as numpy columns, one row per instruction."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.failure import Worker
from recycle_runtime.plan.isa import Instruction, Opcode

Column = NDArray[np.int64]
Mask = NDArray[np.bool_]

LARGEST = 2**62
"""Keeps sums of what the verifier adds up within 64 bits."""

COMPUTE = (Opcode.FORWARD, Opcode.BACKWARD, Opcode.BACKWARD_INPUT, Opcode.BACKWARD_WEIGHT)


@dataclass(frozen=True, slots=True, eq=False)
class StreamTable:
    """Rows are sorted by worker, then by position in its stream."""

    workers: tuple[Worker, ...]
    """Sorted by stage, then pipeline."""
    offsets: Column
    """Rows offsets[i] to offsets[i + 1] belong to workers[i]."""
    worker: Column
    """Index into `workers`."""
    stage: Column
    number: Column
    """Of the worker, as neighbours name it."""
    position: Column
    """In the stream as it was read: rows that could not be understood are left out of the table."""
    opcode: Column
    chunk: Column
    pipeline: Column
    microbatch: Column
    buffer: Column
    inbox: Column
    neighbour: Column

    def __len__(self) -> int:
        return len(self.opcode)

    def is_any(self, *opcodes: Opcode) -> Mask:
        """Which rows have one of these opcodes."""
        wanted = np.zeros(max(Opcode) + 1, dtype=np.bool_)
        wanted[list(opcodes)] = True
        return wanted[self.opcode]

    def name(self, row: int) -> str:
        """The instruction in a few words: `forward p0 m3`."""
        words = Opcode(int(self.opcode[row])).name.lower().replace("_", " ")
        if self.microbatch[row] < 0:
            return words
        return f"{words} p{self.pipeline[row]} m{self.microbatch[row]}"

    def place(self, row: int) -> tuple[Worker, int]:
        """The worker of a row and the position in its stream."""
        return self.workers[int(self.worker[row])], int(self.position[row])

    def keep(self, sound: Mask) -> "StreamTable":
        """The table without the rows that are not sound."""
        if sound.all():
            return self
        kept_before = np.concatenate(([0], np.cumsum(sound)))
        columns = (self.worker, self.stage, self.number, self.position, *self.fields)
        return StreamTable(self.workers, kept_before[self.offsets], *(column[sound] for column in columns))

    @property
    def fields(self) -> tuple[Column, ...]:
        """In the order of the fields of Instruction."""
        return (
            self.opcode,
            self.chunk,
            self.pipeline,
            self.microbatch,
            self.buffer,
            self.inbox,
            self.neighbour,
        )


def stream_table(streams: Sequence[tuple[Worker, Sequence[Instruction]]], pipelines: int) -> StreamTable:
    """Columns from streams."""
    ordered = sorted(streams, key=lambda item: (item[0].stage, item[0].pipeline))
    workers = tuple(worker for worker, _ in ordered)
    lengths = np.array([len(stream) for _, stream in ordered], dtype=np.int64)
    offsets = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths)))
    fields = _columns([stream for _, stream in ordered], int(offsets[-1]))
    worker = np.repeat(np.arange(len(workers)), lengths)
    return StreamTable(
        workers=workers,
        offsets=offsets,
        worker=worker,
        stage=np.array([worker.stage for worker in workers], dtype=np.int64)[worker],
        number=np.array([w.stage * pipelines + w.pipeline for w in workers], dtype=np.int64)[worker],
        position=np.arange(int(offsets[-1])) - offsets[worker],
        **dict(zip(Instruction._fields, fields, strict=True)),
    )


def _columns(streams: list[Sequence[Instruction]], rows: int) -> list[Column]:
    width = len(Instruction._fields)
    values = chain.from_iterable(chain.from_iterable(streams))
    try:
        flat = np.fromiter(values, dtype=np.int64, count=rows * width)
    except OverflowError:
        # No field of a good stream comes near the limit, so what is cut off is reported as out of range.
        values = chain.from_iterable(chain.from_iterable(streams))
        flat = np.array([min(max(value, -LARGEST), LARGEST) for value in values], dtype=np.int64)
    return [np.ascontiguousarray(column) for column in flat.reshape(rows, width).T]
