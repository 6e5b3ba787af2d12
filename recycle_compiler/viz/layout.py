"""How a grid turns time into columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from math import gcd

from recycle_compiler.ir.failure import Worker, worker_at
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import MICROBATCH_KINDS, Op
from recycle_compiler.ir.schedule import Schedule

BATCH = "batch "
"""Heads the second line of a worker when kind and micro-batch stand below each other."""
_LEAST_COLUMNS = 20
_NICE_STEPS = (1, 2, 5)


@dataclass(frozen=True, slots=True)
class Box:
    """One op as it is drawn."""

    op: Op
    start: int
    end: int
    is_guest: bool
    """Whether the micro-batch belongs to another pipeline than the worker."""
    chunk: int | None = None
    """Where the number of its chunk is not that of its worker's stage."""

    @property
    def label(self) -> str:
        if self.op.kind not in MICROBATCH_KINDS:
            return self.op.kind.name
        home = f"{self.op.pipeline}." if self.is_guest else ""
        return (
            f"{self.op.kind.name}{home}{self.op.microbatch}{'' if self.chunk is None else f'c{self.chunk}'}"
        )


class Detail(Enum):
    """How much of an op can be seen, most first."""

    CELLS = "a cell per slot, with a label"
    STACKED = "kind, micro-batch and home pipeline on lines below each other"
    BOXES = "to scale, labelled where there is room"
    SHARES = "it shows what takes more than half of its time"


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns a time stands for."""

    detail: Detail
    margin: int
    """Columns left of time 0."""
    columns: int
    ticks: int
    """From time 0 to the right end of the last column."""
    pitch: int
    """Columns from one idle mark to the next."""

    def column(self, ticks: int) -> int:
        return self.margin + ticks * self.columns // self.ticks

    def nice_step(self, ticks_per_unit: int) -> Fraction:
        """Units between two numbers of the ruler: 1, 2, 5, 10, ... or 0.5, 0.2, 0.1, ..."""
        spacing = max(8, 2 * self.pitch + 1)
        least = Fraction(self.ticks * spacing, self.columns * ticks_per_unit)
        power = Fraction(1)
        while power > least:
            power /= 10
        while power * _NICE_STEPS[-1] < least:
            power *= 10
        return next(power * factor for factor in _NICE_STEPS if power * factor >= least)


def boxes_by_worker(schedule: Schedule) -> dict[Worker, list[Box]]:
    """What each live worker runs, in order; ops that take no time are not drawn."""
    job, failed = schedule.job, set(schedule.failed)
    everyone = (Worker(pipeline, stage) for pipeline in range(job.pipelines) for stage in range(job.stages))
    boxes: dict[Worker, list[Box]] = {worker: [] for worker in everyone if worker not in failed}
    for op, start, end in schedule.rows():
        if end > start:
            worker = worker_at(op.worker, job.pipelines)
            guest = op.kind in MICROBATCH_KINDS and op.pipeline != worker.pipeline
            chunk = None if op.chunk == worker.stage else op.chunk
            boxes[worker].append(Box(op, start, end, guest, chunk))
    return boxes


def choose_layout(job: JobSpec, boxes: Sequence[Box], width: int) -> Layout:
    """The layout with most detail that fits."""
    margin = max(len("worker"), len(f"{job.pipelines - 1}:{job.stages - 1}")) + 2
    horizon = max((box.end for box in boxes), default=1)
    slot = gcd(horizon, *(box.start for box in boxes), *(box.end for box in boxes))
    slots = horizon // slot
    cell = max((len(box.label) for box in boxes), default=1) + 1
    if margin + slots * cell <= width:
        return Layout(Detail.CELLS, margin, slots * cell, horizon, cell)
    digits = len(str(max(job.microbatches, job.pipelines) - 1))
    if margin + len(BATCH) + slots * digits <= width:
        return Layout(Detail.STACKED, margin + len(BATCH), slots * digits, horizon, digits)
    room = max(width - margin, _LEAST_COLUMNS)
    if slots <= room:
        # Whole columns per slot keep equal ops equally wide.
        return Layout(Detail.BOXES, margin, slots * (room // slots), horizon, 1)
    shortest = min(box.end - box.start for box in boxes if box.op.kind in MICROBATCH_KINDS)
    if shortest * room >= horizon:
        return Layout(Detail.BOXES, margin, room, horizon, 1)
    return _shares(margin, horizon, room, job.ticks_per_unit if job.unit == "slot" else 1)


def _shares(margin: int, horizon: int, room: int, grain: int) -> Layout:
    """Columns of equal length, in whole slots where the job counts in slots."""
    per_column = -(-horizon // (room * grain)) * grain
    columns = -(-horizon // per_column)
    return Layout(Detail.SHARES, margin, columns, columns * per_column, 1)
