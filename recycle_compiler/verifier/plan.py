"""One plan while it is being verified: what every check looks at."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.verifier.report import Rule, Violation
from recycle_compiler.verifier.source import PlanClaims
from recycle_compiler.verifier.table import Column, StreamTable
from recycle_runtime.plan.isa import Opcode

MISSING = -1

Grid = NDArray[np.int64]
"""One number per unit (row) and stage (column)."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The streams of one plan, the job they are for, and where each op stands.

    A micro-batch of any pipeline is one number `unit = pipeline * microbatches + microbatch`.
    Grids hold the table row of the first instruction of that kind, or MISSING.
    """

    index: int
    job: JobSpec
    claims: PlanClaims
    failed: tuple[Worker, ...]
    release: tuple[int, ...]
    """As claimed, or zeros where the claim makes no sense."""
    table: StreamTable
    forward: Grid
    backward: Grid
    backward_input: Grid
    backward_weight: Grid

    @property
    def units(self) -> int:
        return self.job.pipelines * self.job.microbatches

    @property
    def gradient(self) -> Grid:
        """The row after which the previous stage can go on: backward input, or all of backward."""
        return np.where(self.backward_input >= 0, self.backward_input, self.backward)

    def unit(self) -> Column:
        """The unit of every row; meaningless where the opcode has no micro-batch."""
        return self.table.pipeline * self.job.microbatches + self.table.microbatch

    def at(self, rule: Rule, row: int, message: str) -> Violation:
        """A violation at one instruction."""
        worker, position = self.table.place(row)
        return Violation(rule, self.index, worker, position, message)

    def of_worker(self, rule: Rule, worker: int, message: str) -> Violation:
        """A violation of a worker's whole stream."""
        return Violation(rule, self.index, self.table.workers[worker], None, message)

    def overall(self, rule: Rule, message: str) -> Violation:
        return Violation(rule, self.index, None, None, message)

    def worker_text(self, number: int) -> str:
        """A worker, of those that neighbours may name, in words: `0:2`."""
        stage, pipeline = divmod(number, self.job.pipelines)
        return f"{pipeline}:{stage}"

    def cell(self, unit: int, stage: int) -> str:
        """A unit on a stage in words: `p0 m3 on stage 2`."""
        pipeline, microbatch = divmod(unit, self.job.microbatches)
        return f"p{pipeline} m{microbatch} on stage {stage}"


def locate(table: StreamTable, job: JobSpec, opcode: Opcode) -> Grid:
    """The row of each unit's first instruction of this kind on each stage."""
    grid = np.full((job.pipelines * job.microbatches, job.stages), MISSING, dtype=np.int64)
    rows = np.flatnonzero(table.opcode == opcode)[::-1]
    # Backwards, so that of several the first is the one that stays.
    grid[table.pipeline[rows] * job.microbatches + table.microbatch[rows], table.stage[rows]] = rows
    return grid


def where(mask: NDArray[np.bool_]) -> Iterator[int]:
    """The indices at which a column is true, as plain integers."""
    return iter(np.flatnonzero(mask).tolist())


def cells(mask: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """The (unit, stage) pairs at which a grid is true."""
    units, stages = np.nonzero(mask)
    return zip(units.tolist(), stages.tolist(), strict=True)
