"""A plan beside a run of it: how long a step took, and what made it so.

The plan's order is replayed twice with the times that its ops were measured to take: first with the median
of each kind on each stage, then with every single one. What the first takes beyond the planned period is due
to ops that are longer than the profile says, what the second takes beyond that to ops that are not all alike.
What is left of the real step is waiting: for messages, for each other, and for what is done between ops.
"""

from dataclasses import dataclass, field

import numpy as np

from recycle_compiler.analysis.trace_diff.breakdown import (
    LateOp,
    OpTime,
    Reason,
    WorkerTime,
    latest_ops,
    op_times,
    reasons,
    typical_times,
    worker_times,
)
from recycle_compiler.analysis.trace_diff.matching import Floats, Measured, OtherOrder, match
from recycle_compiler.analysis.trace_diff.network import network_of, steady_step, waiting_inside
from recycle_compiler.analysis.trace_diff.trace_file import RunTrace, TraceError
from recycle_compiler.ir.schedule import Schedule

_MICROSECONDS_PER_TICK = 0.001
"""Unless the plan counts in slots."""
_WARM_UP = 1
"""Steps at the start that do not count if there are others."""


class NoSuchStep(Exception):  # noqa: N818
    """A step was asked for that the trace does not have, in one sentence."""


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """All that there is to say; times in microseconds."""

    schedule: Schedule
    tick: float
    """Microseconds of a tick; measured if the plan counts in slots."""
    steps: tuple[tuple[int, float], ...]
    """Each step with the time it took; the first one as the plan counts a period."""
    warm_up: tuple[int, ...]
    """Steps that do not count."""
    step: int
    """The one that is taken apart: the one asked for, else the median of those that count."""
    asked: bool
    time: float
    planned: float
    typical: float
    """The step if each op took the median of its kind on its stage, and all waited as planned."""
    replayed: float
    """The same with the times that the ops of this step took."""
    reasons: tuple[Reason, ...]
    """Largest first; kinds on all stages, and the same kinds on single ones."""
    op_times: tuple[OpTime, ...]
    workers: tuple[WorkerTime, ...]
    latest: tuple[LateOp, ...]
    other_order: tuple[OtherOrder, ...]
    start: Floats = field(compare=False, repr=False)
    """Of every row of the schedule, when it began in this step."""
    end: Floats = field(compare=False, repr=False)

    @property
    def counted(self) -> tuple[int, ...]:
        return tuple(step for step, _ in self.steps if step not in self.warm_up)

    @property
    def is_calibrated(self) -> bool:
        """True if a unit of the plan stands for no time of its own."""
        return self.schedule.job.unit == "slot"

    @property
    def longer(self) -> float:
        """Time due to ops that take longer than planned."""
        return self.typical - self.planned

    @property
    def uneven(self) -> float:
        """Time due to ops that differ from others of their kind."""
        return self.replayed - self.typical

    @property
    def longest_data_wait(self) -> WorkerTime | None:
        """The worker that waited longest for data in this step; None if none did."""
        found = max(self.workers, key=lambda row: row.data)
        return found if found.data else None

    @property
    def waiting(self) -> float:
        """The rest."""
        return self.time - self.replayed


def compare_with_run(schedule: Schedule, trace: RunTrace, step: int | None = None) -> TraceComparison:
    """The plan beside its run; TraceError if the trace is not a run of this plan."""
    measured = match(trace, schedule)
    network = network_of(schedule)
    inside = waiting_inside(network, measured)
    work = measured.end - measured.start - inside
    times = _step_times(schedule, measured)
    counted = _counted(measured.steps, step)
    chosen = _chosen(times, counted)
    tick = _tick(schedule, work[counted])
    lag = network.lag.astype(np.float64) * tick
    planned_ops = schedule.ops.duration.astype(np.float64) * tick
    planned = schedule.claims.period * tick
    # For nearly all plans this is the period itself; one that could be faster keeps what it gives away.
    share = planned / steady_step(network, planned_ops, lag)

    times_of_ops = tuple(op_times(schedule, work[counted], planned_ops))
    typical = typical_times(schedule, times_of_ops)

    def replay(durations: Floats) -> float:
        return share * steady_step(network, durations, lag)

    return TraceComparison(
        schedule,
        tick,
        tuple(zip(measured.steps, times.tolist(), strict=True)),
        tuple(measured.steps[: counted[0]]) if step is None else (),
        measured.steps[chosen],
        step is not None,
        float(times[chosen]),
        planned,
        replay(typical),
        replay(work[chosen]),
        reasons(schedule, replay, typical, planned_ops),
        times_of_ops,
        tuple(worker_times(schedule, measured, work, inside, chosen, planned_ops, trace.data)),
        latest_ops(schedule, (measured.start + inside)[chosen], tick),
        measured.other_order,
        measured.start[chosen],
        measured.end[chosen],
    )


def _step_times(schedule: Schedule, measured: Measured) -> Floats:
    """From the last end of the step before to the last end of each; for the first one its longest window."""
    ends = measured.end.max(axis=1)
    start, end, job = measured.start[0] - measured.waited[0], measured.end[0], schedule.job
    # Without stagger there is one window for all.
    stage = schedule.ops.worker // job.pipelines * job.techniques.stagger
    opens, closes = np.full(job.stages, np.inf), np.full(job.stages, -np.inf)
    work = schedule.is_compute
    np.minimum.at(opens, stage[work], start[work])
    np.maximum.at(closes, stage, end)
    times = np.diff(ends, prepend=ends[0] - (closes - opens)[np.isfinite(opens)].max())
    for step in np.flatnonzero(times <= 0).tolist():
        raise TraceError(f"step {measured.steps[step]} takes no time, or ends before the step before it")
    return times


def _counted(steps: tuple[int, ...], asked: int | None) -> list[int]:
    if asked is None:
        first = _WARM_UP if len(steps) > _WARM_UP else 0
        return list(range(first, len(steps)))
    if asked not in steps:
        held = f"{min(steps)} to {max(steps)}" if len(steps) > 1 else f"only {min(steps)}"
        raise NoSuchStep(f"no step {asked} in the trace: it holds {held}")
    return [steps.index(asked)]


def _chosen(times: Floats, counted: list[int]) -> int:
    """The median of them, which is one of them."""
    return sorted(counted, key=lambda step: (times[step], step))[(len(counted) - 1) // 2]


def _tick(schedule: Schedule, work: Floats) -> float:
    if schedule.job.unit != "slot":
        return _MICROSECONDS_PER_TICK
    compute = schedule.is_compute & (schedule.ops.duration > 0)
    tick = float(np.median(work[:, compute] / schedule.ops.duration[compute]))
    if tick <= 0:
        raise TraceError("most of its ops take no time, so the length of a slot cannot be told")
    return tick
