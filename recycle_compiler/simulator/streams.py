"""All streams of one plan in columns, one row for each instruction; and the memory that they take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.bundled import read_columns
from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import Column
from recycle_runtime.plan.assembly import describe
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Instruction, Opcode

Mask = NDArray[np.bool_]

WORK = (Opcode.FORWARD, Opcode.BACKWARD, Opcode.BACKWARD_INPUT, Opcode.BACKWARD_WEIGHT)
"""Opcodes of work on a micro-batch."""
SERVICE = (
    Opcode.SERVE_FORWARD,
    Opcode.SERVE_BACKWARD,
    Opcode.SERVE_BACKWARD_INPUT,
    Opcode.SERVE_BACKWARD_WEIGHT,
)
"""Services of a worker in rounds in which it has no micro-batch, in the order of `WORK`."""
TIMED = (*WORK, *SERVICE, Opcode.REDUCE, Opcode.OPTIMIZER, Opcode.GATHER)
"""Opcodes that take time."""


@dataclass(frozen=True, slots=True, eq=False)
class EngineStreams:
    """Rows are sorted by worker, then by position in its stream."""

    workers: tuple[Worker, ...]
    """By stage, then pipeline: peers stand together."""
    offsets: Column
    """Rows offsets[i] to offsets[i + 1] are the stream of workers[i]."""
    opcode: Column
    chunk: Column
    pipeline: Column
    microbatch: Column
    buffer: Column
    inbox: Column
    neighbour: Column
    pipelines: int
    """Of the job: how workers are numbered depends on it."""

    def __len__(self) -> int:
        return len(self.opcode)

    @property
    def worker(self) -> Column:
        """Of every row, which of `workers`."""
        return np.repeat(np.arange(len(self.workers)), np.diff(self.offsets))

    @property
    def stages(self) -> Column:
        """Of every worker."""
        return np.array([worker.stage for worker in self.workers], dtype=np.int64)

    def is_any(self, opcodes: Sequence[Opcode] | frozenset[Opcode]) -> Mask:
        """Mask of the rows with one of these opcodes."""
        wanted = np.zeros(max(Opcode) + 1, dtype=np.bool_)
        wanted[list(opcodes)] = True
        return wanted[self.opcode]

    def place(self, row: int) -> tuple[Worker, int]:
        """The worker of a row, and the position in its stream."""
        index = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return self.workers[index], row - int(self.offsets[index])

    def text(self, row: int) -> str:
        """The instruction in words."""
        fields = (int(getattr(self, name)[row]) for name in Instruction._fields[1:])
        instruction = Instruction(Opcode(int(self.opcode[row])), *fields)
        return describe(instruction, self.place(row)[0], self.pipelines)


def streams_from(streams: Mapping[Worker, Sequence[Instruction]], pipelines: int) -> EngineStreams:
    """Columns from values."""
    workers = tuple(sorted(streams, key=lambda worker: (worker.stage, worker.pipeline)))
    lengths = [len(streams[worker]) for worker in workers]
    values = chain.from_iterable(chain.from_iterable(streams[worker] for worker in workers))
    width = len(Instruction._fields)
    rows = np.fromiter(values, dtype=np.int64, count=sum(lengths) * width).reshape(-1, width)
    columns = (np.ascontiguousarray(rows[:, field]) for field in range(width))
    return EngineStreams(workers, np.cumsum([0, *lengths], dtype=np.int64), *columns, pipelines=pipelines)


def engine_streams(bundle: Bundle, plan: int) -> EngineStreams:
    """The streams of one plan of a bundle; BundleError when one of them cannot be decoded."""
    workers = tuple(Worker(*worker) for worker in bundle.workers(plan))
    offsets = np.cumsum([0, *bundle.layouts[plan].lengths], dtype=np.int64)
    return EngineStreams(workers, offsets, *read_columns(bundle, plan), pipelines=bundle.pipelines)


def streams_peak_memory(streams: EngineStreams, job: JobSpec) -> tuple[tuple[Worker, int], ...]:
    """The most that each worker holds of activations.

    A forward takes memory as it starts, the others give it back as they end. Workers do one thing after
    another, so no times are needed for it.
    """
    worker = streams.worker
    whole = np.array(job.activation, dtype=np.int64)[streams.chunk]
    kept = np.array(job.kept_for_weight, dtype=np.int64)[streams.chunk]
    opcode = streams.opcode
    forward, *backward = (np.isin(opcode, pair) for pair in zip(WORK, SERVICE, strict=True))
    taken = np.where(forward, whole, 0)
    freed = np.select(backward, [whole, whole - kept, kept], 0)
    total = np.cumsum(taken - freed)
    before = np.concatenate(([0], total))[streams.offsets[:-1]]
    peak = np.zeros(len(streams.workers), dtype=np.int64)
    np.maximum.at(peak, worker, total + freed - before[worker])
    return tuple(zip(streams.workers, peak.tolist(), strict=True))
