"""The timing problem in the dense form that bounds, schedulers and the MILP work on.

A micro-batch of any pipeline is one number `unit = pipeline * microbatches + microbatch`. A stage that
is not split runs its whole backward as `backward` and has weight 0, and nothing is left to defer.
"""

from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.failure import FailureSet
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import OpKind, OpTable
from recycle_compiler.ir.target import Target

UNLIMITED = -1


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
    """Pipelines whose worker of this stage may run micro-batches."""
    host: NDArray[np.int64]
    """host[unit, stage]: the pipeline whose worker runs it."""

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
        return gcd(*self.forward, *self.backward, *self.weight, *self.transfer, *self.finish)


def problem_of(job: JobSpec, failed: FailureSet, ops: OpTable) -> Problem:
    """The timing problem of ops that have been routed."""
    split = tuple(bool(((ops.kind == OpKind.I) & (ops.stage == stage)).any()) for stage in range(job.stages))
    forwards = ops.kind == OpKind.F
    host = np.empty((job.pipelines, job.microbatches, job.stages), dtype=np.int64)
    host[ops.pipeline[forwards], ops.microbatch[forwards], ops.stage[forwards]] = ops.worker[forwards]
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
