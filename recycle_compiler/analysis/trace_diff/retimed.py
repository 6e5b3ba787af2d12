"""How long a step of a plan takes when its ops take other times than those it was made for."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from recycle_compiler.analysis.trace_diff.matching import Floats
from recycle_compiler.analysis.trace_diff.network import network_of, steady_step
from recycle_compiler.ir.failure import Worker, worker_number
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.ir.schedule import Schedule


def retimed_step(schedule: Schedule, job: JobSpec, slow: Mapping[Worker, float]) -> float:
    """Ticks of a step if ops and messages take the times of this job of the same shape.

    A slow worker takes so many times longer for all that it computes. Sums over peers are not its work.
    """
    network = network_of(replace(schedule, job=job))
    planned = network_of(schedule)
    ops = schedule.ops
    whole = steady_step(planned, ops.duration.astype(np.float64), planned.lag.astype(np.float64))
    # For nearly all plans this is the period itself; one that could be faster keeps what it gives away.
    share = schedule.claims.period / whole
    return share * steady_step(network, _durations(schedule, job, slow), network.lag.astype(np.float64))


def _durations(schedule: Schedule, job: JobSpec, slow: Mapping[Worker, float]) -> Floats:
    ops = schedule.ops
    forward, back, weight, reduce, step = (
        np.array(values, dtype=np.float64)
        for values in (job.forward, job.backward_input, job.backward_weight, job.reduce, job.optimizer)
    )
    times = {
        OpKind.F: forward,
        OpKind.B: back + weight,
        OpKind.I: back,
        OpKind.W: weight,
        OpKind.R: reduce,
        OpKind.O: step,
    }
    durations = np.zeros(len(ops))
    for kind, per_chunk in times.items():
        rows = ops.kind == kind
        durations[rows] = per_chunk[ops.chunk[rows]]
    for worker, factor in slow.items():
        own = (ops.worker == worker_number(worker, job.pipelines)) & (ops.kind != OpKind.R)
        durations[own] *= factor
    return durations
