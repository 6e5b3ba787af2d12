"""The most that each worker holds: workers do one thing after another, so no times are needed for it."""

import numpy as np

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.simulator.streams import Streams
from recycle_runtime.plan.isa import Opcode


def peak_memory(streams: Streams, job: JobSpec) -> tuple[tuple[Worker, int], ...]:
    """Of activations. A forward takes memory as it starts, the others give it back as they end."""
    worker = streams.worker
    stage = streams.stages[worker]
    whole = np.array(job.activation, dtype=np.int64)[stage]
    kept = np.array(job.kept_for_weight, dtype=np.int64)[stage]
    opcode = streams.opcode
    taken = np.where(opcode == Opcode.FORWARD, whole, 0)
    ends = [opcode == each for each in (Opcode.BACKWARD, Opcode.BACKWARD_INPUT, Opcode.BACKWARD_WEIGHT)]
    freed = np.select(ends, [whole, whole - kept, kept], 0)
    total = np.cumsum(taken - freed)
    before = np.concatenate(([0], total))[streams.offsets[:-1]]
    peak = np.zeros(len(streams.workers), dtype=np.int64)
    np.maximum.at(peak, worker, total + freed - before[worker])
    return tuple(zip(streams.workers, peak.tolist(), strict=True))
