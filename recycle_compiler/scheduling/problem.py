"""The timing problem in the dense form that bounds, schedulers and the MILP work on.

A micro-batch of any pipeline is one number `unit = pipeline * microbatches + microbatch`. A stage that
is not split runs its whole backward as `backward` and has weight 0, and nothing is left to defer.
"""

from dataclasses import dataclass, replace
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.failure import FailureSet
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import OpKind, OpTable
from recycle_compiler.ir.target import Target
from recycle_compiler.scheduling.slow_workers import SlowWorkers

UNLIMITED = -1


class SlowTimes(NamedTuple):
    """Of a worker that is not like its peers, in ticks."""

    pipeline: int
    stage: int
    work: tuple[int, int, int]
    """Forward, backward, weight."""
    finish: int


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What must be timed. Tuples have one value per stage; times in ticks."""

    stages: int
    pipelines: int
    microbatches: int
    """Per pipeline."""
    staggered: bool
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    """What the previous stage waits for: I where the stage is split, else all of B."""
    weight: tuple[int, ...]
    """W where the stage is split, else 0."""
    split: tuple[bool, ...]
    transfer: tuple[int, ...]
    finish: tuple[int, ...]
    """Reduction and optimizer of the stage."""
    activation: tuple[int, ...]
    kept: tuple[int, ...]
    """What of an activation stays after `backward` until W is done; 0 where the stage is not split."""
    capacity: tuple[int, ...]
    """UNLIMITED or an amount."""
    hosts: tuple[tuple[int, ...], ...]
    """Numbers of the workers that may run micro-batches there."""
    host: NDArray[np.int64]
    """host[unit, stage]: the number of the worker that runs it."""
    slow: tuple[SlowTimes, ...] = ()
    """Workers to which the times of their stage do not apply; bounds and MILP know nothing of them."""

    @property
    def units(self) -> int:
        return self.pipelines * self.microbatches

    @property
    def ops(self) -> int:
        """How many ops must be timed."""
        return self.units * (2 * self.stages + sum(self.split))

    @property
    def grain(self) -> int:
        """The largest step that all times are multiples of: starts and periods are too."""
        slow = (time for one in self.slow for time in (*one.work, one.finish))
        return gcd(*self.forward, *self.backward, *self.weight, *self.transfer, *self.finish, *slow)

    @property
    def times(self) -> NDArray[np.int64]:
        """[kind, stage, pipeline]: how long forward, backward and weight take on a worker."""
        each = np.array([self.forward, self.backward, self.weight], dtype=np.int64)
        times = np.repeat(each[:, :, None], self.pipelines, axis=2)
        for one in self.slow:
            times[:, one.stage, one.pipeline] = one.work
        return times

    @property
    def finishes(self) -> NDArray[np.int64]:
        """[stage, pipeline]: how long reduction and optimizer take on a worker."""
        finishes = np.repeat(np.array(self.finish, dtype=np.int64)[:, None], self.pipelines, axis=1)
        for one in self.slow:
            finishes[one.stage, one.pipeline] = one.finish
        return finishes

    @property
    def load(self) -> NDArray[np.int64]:
        """[stage, pipeline]: how long the work of a worker on its micro-batches takes."""
        hosted = np.bincount(self.host.ravel(), minlength=self.stages * self.pipelines)
        return hosted.reshape(self.stages, -1) * self.times.sum(axis=0)


def slowed(problem: Problem, job: JobSpec, slow: SlowWorkers) -> Problem:
    """The problem with the times that slow workers take. A reduction is not their own work."""
    times = zip(problem.forward, problem.backward, problem.weight, strict=True)
    work = [tuple(each) for each in times]
    return replace(
        problem,
        slow=tuple(
            SlowTimes(
                *one.worker,
                (one.stretched(forward), one.stretched(backward), one.stretched(weight)),
                job.reduce[one.worker.stage] + one.stretched(job.optimizer[one.worker.stage]),
            )
            for one in slow
            for forward, backward, weight in [work[one.worker.stage]]
        ),
    )


def problem_of(job: JobSpec, failed: FailureSet, ops: OpTable) -> Problem:
    """The timing problem of ops that have been routed."""
    split = tuple(bool(((ops.kind == OpKind.I) & (ops.chunk == stage)).any()) for stage in range(job.stages))
    forwards = ops.kind == OpKind.F
    host = np.empty((job.pipelines, job.microbatches, job.stages), dtype=np.int64)
    host[ops.pipeline[forwards], ops.microbatch[forwards], ops.chunk[forwards]] = ops.worker[forwards]
    times = tuple(zip(split, job.backward_input, job.backward_weight, strict=True))
    return Problem(
        stages=job.stages,
        pipelines=job.pipelines,
        microbatches=job.microbatches,
        staggered=job.techniques.stagger,
        forward=job.forward,
        backward=tuple(i if apart else i + w for apart, i, w in times),
        weight=tuple(w if apart else 0 for apart, _, w in times),
        split=split,
        transfer=job.transfer,
        finish=tuple(r + o for r, o in zip(job.reduce, job.optimizer, strict=True)),
        activation=job.activation,
        kept=tuple(kept if apart else 0 for apart, kept in zip(split, job.kept_for_weight, strict=True)),
        capacity=tuple(UNLIMITED if amount is None else amount for amount in job.capacity),
        hosts=Target(job, failed).hosts,
        host=host.reshape(-1, job.stages),
    )
