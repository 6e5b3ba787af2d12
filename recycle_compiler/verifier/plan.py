"""One plan while it is being verified: where it comes from, its streams in columns, where each op stands."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.verifier.report import VerifierRule, Violation
from recycle_runtime.plan.isa import Instruction, Opcode

Column = NDArray[np.int64]
Mask = NDArray[np.bool_]
Grid = NDArray[np.int64]
"""One number per unit (row) and chunk (column)."""

MISSING = -1
LARGEST = 2**62
"""Keeps sums of what the verifier adds up within 64 bits."""

MOST_OF_A_KIND = 1000
"""Violations of one kind in one plan: a file of a few kilobytes can have millions."""

COMPUTE = (Opcode.FORWARD, Opcode.BACKWARD, Opcode.BACKWARD_INPUT, Opcode.BACKWARD_WEIGHT)
SERVE = (
    Opcode.SERVE_FORWARD,
    Opcode.SERVE_BACKWARD,
    Opcode.SERVE_BACKWARD_INPUT,
    Opcode.SERVE_BACKWARD_WEIGHT,
)
"""Service for peers in a round, in the order of `COMPUTE`; it takes the same times and memory."""


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
    """Of the worker."""
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
        """Mask of the rows with one of these opcodes."""
        wanted = np.zeros(max(Opcode) + 1, dtype=np.bool_)
        wanted[list(opcodes)] = True
        return wanted[self.opcode]

    def name(self, row: int) -> str:
        """The instruction in a few words: `forward p0 m3`."""
        words = Opcode(int(self.opcode[row])).name.lower().replace("_", " ")
        if self.microbatch[row] >= 0:
            words += f" p{self.pipeline[row]} m{self.microbatch[row]}"
        return words if self.chunk[row] in (MISSING, self.stage[row]) else f"{words} c{self.chunk[row]}"

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


class PlanClaims(Protocol):
    """The index entry of one plan: its failure state and what it says of itself. Times in ticks."""

    @property
    def failed(self) -> Sequence[tuple[int, int]]:
        """(pipeline, stage) of every failed worker."""
        ...

    @property
    def release(self) -> Sequence[int]:
        """Start of the window of each stage."""
        ...

    @property
    def makespan(self) -> int: ...

    @property
    def period(self) -> int: ...

    @property
    def lower_bound(self) -> int: ...

    @property
    def reason(self) -> str:
        """Binding lower bound, in words."""
        ...

    @property
    def bound_over_cuts(self) -> int:
        """Lower bound on the period of any cut for as many workers; 0 when it is not known."""
        ...


class PlanSource(Protocol):
    """A bundle as far as the verifier is concerned."""

    @property
    def stages(self) -> int: ...

    @property
    def pipelines(self) -> int: ...

    @property
    def tensor(self) -> int: ...

    @property
    def microbatches(self) -> int: ...

    @property
    def chunk_stages(self) -> Sequence[int]:
        """The stage whose workers hold each chunk."""
        ...

    @property
    def cut(self) -> Sequence[int]:
        """Number of layers of each chunk; none when the job gives whole stages only."""
        ...

    @property
    def tied_chunks(self) -> Sequence[int]:
        """Chunks that share parameters."""
        ...

    @property
    def groups(self) -> Sequence[Sequence[int]]:
        """For each group of pipelines the stage that holds each chunk; none where all have one cut."""
        ...

    @property
    def owners(self) -> int:
        """Owners of each shard of the optimizer's state; 0 where it is whole."""
        ...

    @property
    def slots(self) -> int:
        """Slots of each worker for experts; 0 where peers share none."""
        ...

    @property
    def placed_every(self) -> int:
        """Steps after which experts are placed again; 0: never."""
        ...

    @property
    def recuts(self) -> Sequence["PlanSource"]:
        """Plans of the same model under other cuts."""
        ...

    @property
    def job_text(self) -> str:
        """The resolved job, as `print_job` writes it."""
        ...

    @property
    def plans(self) -> Sequence[PlanClaims]: ...

    def workers(self, plan_index: int, /) -> Sequence[tuple[int, int]]:
        """(pipeline, stage) of every worker that has a stream."""
        ...

    def length(self, plan_index: int, worker: tuple[int, int], /) -> int:
        """Number of instructions in the stream of a worker."""
        ...

    def stream(self, plan_index: int, worker: tuple[int, int], /) -> Sequence[Instruction]: ...


@dataclass(frozen=True, slots=True, eq=False)
class CheckedPlan:
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
        """The row after which the previous chunk can go on: backward input, or all of backward."""
        return np.where(self.backward_input >= 0, self.backward_input, self.backward)

    def unit(self) -> Column:
        """The unit of every row; meaningless where the opcode has no micro-batch."""
        return self.table.pipeline * self.job.microbatches + self.table.microbatch

    def at(self, rule: VerifierRule, row: int, message: str) -> Violation:
        """A violation at one instruction."""
        worker, position = self.table.place(row)
        return Violation(rule, self.index, worker, position, message)

    def of_worker(self, rule: VerifierRule, worker: int, message: str) -> Violation:
        """A violation of a worker's whole stream."""
        return Violation(rule, self.index, self.table.workers[worker], None, message)

    def overall(self, rule: VerifierRule, message: str) -> Violation:
        return Violation(rule, self.index, None, None, message)

    def worker_text(self, number: int) -> str:
        """A worker, of those that neighbours may name, in words: `0:2`."""
        stage, pipeline = divmod(number, self.job.pipelines)
        return f"{pipeline}:{stage}"

    def cell(self, unit: int, chunk: int) -> str:
        """A unit on a chunk in words: `p0 m3 on stage 2`, where a stage has one chunk, else `on chunk 2`."""
        pipeline, microbatch = divmod(unit, self.job.microbatches)
        return f"p{pipeline} m{microbatch} on {self.chunk_text(chunk)}"

    def chunks_of(self, stage: int) -> tuple[int, ...]:
        """The chunks that the workers of a stage hold."""
        return self.job.held[stage]

    def hop_lags(self, before: Column, after: Column, border: Column) -> Column:
        """Time that messages between these rows take, over the border behind each chunk.

        In a job in groups, neighbouring chunks of one worker are one stage, and nothing is sent between them.
        """
        lag = np.array([*self.job.transfer, 0], dtype=np.int64)[border]
        if not self.job.groups:
            return lag
        return np.where(self.table.worker[before] == self.table.worker[after], 0, lag)

    def chunk_text(self, chunk: int) -> str:
        """`stage 2`, where every stage has one chunk, else `chunk 2`."""
        return f"stage {chunk}" if self.job.has_chunk_per_stage else f"chunk {chunk}"


def locate(table: StreamTable, job: JobSpec, opcode: Opcode) -> Grid:
    """The row of each unit's first instruction of this kind for each chunk."""
    grid = np.full((job.pipelines * job.microbatches, job.chunks), MISSING, dtype=np.int64)
    rows = np.flatnonzero(table.opcode == opcode)[::-1]
    # Backwards, so that of several the first is the one that stays.
    grid[table.pipeline[rows] * job.microbatches + table.microbatch[rows], table.chunk[rows]] = rows
    return grid


def where(mask: NDArray[np.bool_]) -> Iterator[int]:
    """The first indices at which a column is true, as plain integers."""
    return iter(np.flatnonzero(mask)[:MOST_OF_A_KIND].tolist())


def cells(mask: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """The first (unit, chunk) pairs at which a grid is true."""
    units, chunks = np.nonzero(mask)
    return zip(units[:MOST_OF_A_KIND].tolist(), chunks[:MOST_OF_A_KIND].tolist(), strict=True)


def live_hosts(job: JobSpec, failed: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """Number of workers of each stage that may run micro-batches.

    Without adaptive pipelining only whole pipelines work. Peers are interchangeable, so the survivors make
    as many of those as the stage with most failures has workers left.
    """
    live = tuple(job.pipelines - sum(at == stage for _, at in failed) for stage in range(job.stages))
    return live if job.techniques.adaptive else (min(live),) * job.stages
