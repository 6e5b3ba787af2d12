"""Ops in columns: a plan at 2,048 GPUs has tens of thousands, a bundle millions.

`OpTable` holds them as numpy columns; `Op` is the small value that people and tests look at.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.job import JobSpec

Column = NDArray[np.int64]


class OpKind(IntEnum):
    """Kind of an op; the letter users see is its name."""

    F = 0
    """Forward of one micro-batch through one chunk."""
    B = 1
    """Coupled backward."""
    I = 2  # noqa: E741
    """Gradient of the input: the previous chunk waits for it."""
    W = 3
    """Gradient of the weights: only the optimizer waits for it."""
    S = 4
    """Synchronization, takes no time: the end of all work on a chunk, or on all of them when chunk is -1."""
    R = 5
    """Reduction of a chunk's gradients over the live workers that hold it."""
    O = 6  # noqa: E741
    """Optimizer step of a chunk."""
    G = 7
    """Gathering of a chunk's weights from the owners of their shards, where the state is sharded."""
    SF = 8
    """Service in a round of forwards on a chunk: what a worker without a micro-batch in it does. The
    micro-batch of this and the next three is the number of the round."""
    SB = 9
    """Service in a round of coupled backwards."""
    SI = 10
    """Service in a round of I."""
    SW = 11
    """Gradients of the weights of what was served."""


MICROBATCH_KINDS = (OpKind.F, OpKind.B, OpKind.I, OpKind.W)
SERVICE: dict[OpKind, OpKind] = dict(
    zip(MICROBATCH_KINDS, (OpKind.SF, OpKind.SB, OpKind.SI, OpKind.SW), strict=True)
)
"""Services, by workers that have no micro-batch in a round of these."""
SERVICES = tuple(SERVICE.values())
UNSET = -1


class Op(NamedTuple):
    """One op; fields that do not apply to its kind are -1."""

    kind: OpKind
    pipeline: int
    microbatch: int
    chunk: int
    worker: int
    """The number of the worker that runs it; -1 until it is routed."""
    duration: int


@dataclass(frozen=True, slots=True, eq=False)
class OpTable:
    """Columns of equal length, one row per op."""

    kind: Column
    pipeline: Column
    microbatch: Column
    chunk: Column
    worker: Column
    duration: Column

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, row: int) -> Op:
        kind, *rest = (int(column[row]) for column in self.columns)
        return Op(OpKind(kind), *rest)

    def __iter__(self) -> Iterator[Op]:
        return (self[row] for row in range(len(self)))

    @property
    def columns(self) -> tuple[Column, ...]:
        return (self.kind, self.pipeline, self.microbatch, self.chunk, self.worker, self.duration)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> "OpTable":
        """The rows asked for, in that order."""
        return OpTable(*(column[rows] for column in self.columns))

    def same_as(self, other: "OpTable") -> bool:
        return len(self) == len(other) and all(
            np.array_equal(mine, theirs) for mine, theirs in zip(self.columns, other.columns, strict=True)
        )


def op_table(ops: list[Op]) -> OpTable:
    """Columns from values; for tests and for text that is read back."""
    rows = np.array([tuple(map(int, op)) for op in ops], dtype=np.int64).reshape(len(ops), 6)
    return OpTable(*(np.ascontiguousarray(rows[:, index]) for index in range(6)))


def concatenate(tables: list[OpTable]) -> OpTable:
    """One table after another."""
    return OpTable(*(np.concatenate(parts) for parts in zip(*(t.columns for t in tables), strict=True)))


def op_duration(job: JobSpec, kind: OpKind, chunk: int) -> int:
    """Ticks that an op of this kind takes by the job."""
    forward, back, weight = job.forward[chunk], job.backward_input[chunk], job.backward_weight[chunk]
    durations = {
        OpKind.F: forward,
        OpKind.B: back + weight,
        OpKind.I: back,
        OpKind.W: weight,
        OpKind.R: job.reduce[chunk],
        OpKind.O: job.optimizer[chunk],
        OpKind.G: job.gather[chunk],
    }
    durations |= {service: durations[work] for work, service in SERVICE.items()}
    return durations[kind]
