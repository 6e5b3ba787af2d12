"""Time of a micro-batch from one chunk to the next: the job's transfer, or nothing within one stage."""

import numpy as np

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import Column


def unit_stages(job: JobSpec) -> Column:
    """[unit, chunk]: the stage that has it, in a job in groups, whose first units are those of the first."""
    return np.repeat(np.array(job.groups, dtype=np.int64), job.shares, axis=0)


def hop_times(job: JobSpec, unit: Column, chunk: Column) -> Column:
    """For micro-batches by their numbers: how long a message takes between a chunk and the next, or back.

    Nothing behind the last chunk, where there is no next one.
    """
    transfer = np.array([*job.transfer, 0], dtype=np.int64)[chunk]
    if not job.groups:
        return transfer
    stages = unit_stages(job)
    after = np.minimum(chunk + 1, job.chunks - 1)
    return np.where(stages[unit, chunk] == stages[unit, after], 0, transfer)
