"""The last level before bytes: one instruction stream per live worker, in columns."""

from collections.abc import Iterator
from dataclasses import dataclass

from recycle_compiler.ir.failure import FailureSet, Worker
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import Column
from recycle_runtime.plan.isa import Instruction, Opcode


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims of a plan about itself; times in ticks."""

    makespan: int
    period: int
    lower_bound: int
    """No plan for this failure state has a shorter period."""
    reason: str
    """Binding lower bound, in words: `load of stage 2`."""
    cut_short: bool = False
    """The time limit struck before the planner was done."""
    bound_over_cuts: int = 0
    """No plan of any cut for as many workers has a shorter period; 0 when that is not known."""

    @property
    def status(self) -> str:
        return "optimal" if self.period == self.lower_bound else "bounded"

    @property
    def gap(self) -> float:
        """Distance of the period from its bound, as a share of the bound."""
        return (self.period - self.lower_bound) / self.lower_bound


@dataclass(frozen=True, slots=True, eq=False)
class Streams:
    """The streams of one plan. Rows of the columns are sorted by worker, then by position in its stream."""

    job: JobSpec
    failed: FailureSet
    release: tuple[int, ...]
    """Start of the window of each stage, in ticks: its first op starts no earlier."""
    claims: Claims
    workers: tuple[Worker, ...]
    """Live workers, sorted by stage, then pipeline."""
    offsets: Column
    """Rows offsets[i] to offsets[i + 1] are the stream of workers[i]."""
    opcode: Column
    chunk: Column
    pipeline: Column
    microbatch: Column
    buffer: Column
    inbox: Column
    neighbour: Column

    @property
    def columns(self) -> tuple[Column, ...]:
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

    def verify(self) -> Iterator[str]:
        """Yield every broken invariant of the table; `recyclec verify` judges what the streams do."""
        if len(self.offsets) != len(self.workers) + 1 or int(self.offsets[-1]) != len(self.opcode):
            yield "offsets do not cover the rows"
        if self.workers != tuple(sorted(self.workers, key=lambda worker: (worker.stage, worker.pipeline))):
            yield "workers are not sorted"
        if set(self.workers) & set(self.failed):
            yield "a failed worker has a stream"
        if len(self.workers) != self.job.workers - len(self.failed):
            yield "a live worker has no stream"

    def stream(self, index: int) -> tuple[Instruction, ...]:
        """The stream of workers[index], as values."""
        rows = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        fields = (column[rows].tolist() for column in self.columns)
        return tuple(Instruction(Opcode(opcode), *rest) for opcode, *rest in zip(*fields, strict=True))

    def items(self) -> Iterator[tuple[Worker, tuple[Instruction, ...]]]:
        """Each worker and its stream."""
        for index, worker in enumerate(self.workers):
            yield worker, self.stream(index)
