"""What the engine has seen; all times in ticks."""

from dataclasses import dataclass

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.ops import Column


@dataclass(frozen=True, slots=True, eq=False)
class Ops:
    """Everything that takes time, in columns: a row for each, by worker, in the order in which it runs."""

    worker: Column
    """Which of the outcome's workers."""
    opcode: Column
    pipeline: Column
    microbatch: Column
    start: Column
    """A row for each iteration that was kept, a column for each op; so is the end."""
    end: Column


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A plan that has been run."""

    workers: tuple[Worker, ...]
    """By stage, then pipeline."""
    ops: Ops
    ends: tuple[int, ...]
    """When the last worker was done with each iteration."""
    period: float
    """Of an iteration in the long run. Exact without jitter, else the mean over those that were run."""
    spread: float
    """Standard deviation of the time from end to end; 0 without jitter."""
    makespan: int
    """Of the first iteration: from the start of its first work on a micro-batch to the end of the last."""
    peak_memory: tuple[tuple[Worker, int], ...]
    """The most of activations that each worker holds."""
    busy: tuple[tuple[Worker, float], ...]
    """What each worker works in an iteration, sums over peers and optimizer steps included."""

    @property
    def idle(self) -> tuple[tuple[Worker, float], ...]:
        """What is left of the period."""
        return tuple((worker, self.period - time) for worker, time in self.busy)
