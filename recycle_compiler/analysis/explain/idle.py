"""Time of every stage by use: work, and idle time by cause, each tick counted once.

A worker's period is cut at its first backward, at its last F and at its last op:

- ramp-up: idle before the first backward.
- tail: idle after the last F; and after the last op while no peer works either.
- imbalance: done, while a peer of the stage still works. A worker with fewer micro-batches than its peers
  idles that much longer, so its waits for other stages count here as far as they make up for that.

What is left lies between, before an op that waited for its input:

- transfer: the input was on its way.
- memory: an F had its input, but memory was full.
- dependency: another stage had not produced the input yet.

Slack is what the window of a stage is shorter than the period: its workers wait for the next iteration. Where
groups of pipelines have cuts of their own, a stage that is done may wait for others that take part in the
same sums.
"""

from dataclasses import dataclass

import numpy as np

from recycle_compiler.analysis.explain.timeline import NOTHING, Timeline
from recycle_compiler.ir.failure import live_pipelines
from recycle_compiler.ir.ops import Column, OpKind
from recycle_compiler.scheduling.problem import UNLIMITED

CAUSES = ("ramp-up", "tail", "transfer", "imbalance", "memory", "dependency")
_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class StageTime:
    """The period of all live workers of one stage, added up; in ticks."""

    stage: int
    workers: int
    """Number of live workers."""
    window: int
    """From the first op to the end of the optimizer step, for each of them."""
    period: int
    compute: int
    finish: int
    """Reduction and optimizer."""
    idle: tuple[int, ...]
    """For each of CAUSES."""
    slack: int
    full_ramp_up: int
    """Of the ramp-up, what an F could have filled if memory had not been full."""
    sums: int = 0
    """Waiting for other groups of pipelines, which take part in the same sums."""

    @property
    def busy(self) -> int:
        return self.compute + self.finish

    @property
    def whole(self) -> int:
        """All the time there is."""
        return self.workers * self.period


@dataclass(frozen=True, slots=True, eq=False)
class _Gaps:
    """Idle time before each op, cut by cause; and for each worker with work, what it has of it."""

    ramp_up: Column
    full_ramp_up: Column
    tail: Column
    transfer: Column
    memory: Column
    dependency: Column


def idle_times(timeline: Timeline) -> tuple[StageTime, ...]:
    """The account of every stage."""
    gaps = _gaps(timeline)
    return tuple(_stage_time(timeline, gaps, stage) for stage in range(len(timeline.stages)))


def _stage_time(timeline: Timeline, gaps: _Gaps, stage: int) -> StageTime:
    pipelines, own_finish = timeline.pipelines, timeline.stages.finish[stage]
    rows = np.flatnonzero(timeline.ops.chunk == stage)
    alive = live_pipelines(timeline.schedule.failed, stage, pipelines)
    after_work, imbalance = _after_last_ops(timeline, rows, stage, alive)
    dependency = np.bincount(
        timeline.ops.worker[rows] % pipelines, gaps.dependency[rows], minlength=pipelines
    ).astype(np.int64)
    made_up = np.minimum(dependency, np.maximum(0, _missing_work(timeline, rows, stage) - imbalance))
    window = timeline.closes[stage] - timeline.opens[stage]
    sums = len(alive) * _waits_for_sums(timeline, rows, stage)
    idle = {
        "ramp-up": int(gaps.ramp_up[rows].sum()),
        "tail": int(gaps.tail[rows].sum() + after_work.sum()) - sums,
        "transfer": int(gaps.transfer[rows].sum()),
        "imbalance": int((imbalance + made_up)[list(alive)].sum()),
        "memory": int(gaps.memory[rows].sum()),
        "dependency": int((dependency - made_up).sum()),
    }
    account = StageTime(
        stage=stage,
        workers=len(alive),
        window=window,
        period=timeline.period,
        compute=int(timeline.ops.duration[rows].sum()),
        finish=len(alive) * own_finish,
        idle=tuple(idle[cause] for cause in CAUSES),
        slack=len(alive) * (timeline.period - window),
        full_ramp_up=int(gaps.full_ramp_up[rows].sum()),
        sums=sums,
    )
    whole = account.busy + sum(account.idle) + account.sums + account.slack
    assert whole == account.whole, f"stage {stage} does not add up"
    return account


def _waits_for_sums(timeline: Timeline, rows: np.ndarray[tuple[int], np.dtype[np.intp]], stage: int) -> int:
    """From the end of a stage's work to its reductions and between them, because others are not there yet."""
    if not (timeline.schedule.job.groups and timeline.staggered):
        return 0
    return timeline.closes[stage] - timeline.stages.finish[stage] - int(timeline.end[rows].max())


def _gaps(timeline: Timeline) -> _Gaps:
    """Idle time before each op, by cause."""
    ops, start, before = timeline.ops, timeline.start, timeline.before
    stage = ops.chunk
    began = np.where(before == NOTHING, np.array(timeline.opens)[stage], timeline.end[before])
    gap = start - began
    firsts = np.flatnonzero(before == NOTHING)
    owner = np.cumsum(before == NOTHING) - 1
    is_backward = (ops.kind == OpKind.I) | (ops.kind == OpKind.B)
    first_backward = np.minimum.reduceat(np.where(is_backward, start, _FAR), firsts)[owner]
    last_forward = np.maximum.reduceat(np.where(ops.kind == OpKind.F, start, -1), firsts)[owner]
    ramps = start <= first_backward
    tails = ~ramps & (start > last_forward)
    between = ~ramps & ~tails
    sent = np.clip(timeline.arrival - timeline.lag, began, start)
    ready = np.maximum(began, _next_forward_arrival(timeline, owner))
    full = _memory_is_full(timeline, firsts, owner)
    starved = np.where(full, np.maximum(0, np.where(ramps, start, sent) - ready), 0)
    return _Gaps(
        ramp_up=np.where(ramps, gap, 0),
        full_ramp_up=np.where(ramps, starved, 0),
        tail=np.where(tails, gap, 0),
        transfer=np.where(between, start - sent, 0),
        memory=np.where(between, starved, 0),
        dependency=np.where(between, sent - began - starved, 0),
    )


def _next_forward_arrival(timeline: Timeline, owner: Column) -> Column:
    """For each op, when the first input arrives of all F that its worker has not started before it."""
    arrival = np.where(timeline.ops.kind == OpKind.F, timeline.arrival, _FAR)
    for _, rows in timeline.workers():
        arrival[rows] = np.minimum.accumulate(arrival[rows][::-1])[::-1]
    return arrival


def _memory_is_full(
    timeline: Timeline, firsts: np.ndarray[tuple[int], np.dtype[np.intp]], owner: Column
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """For each op, whether there is no room for one more activation just before it."""
    ops = timeline.ops
    activation = np.array(timeline.stages.activation)[ops.chunk]
    kept = np.array(timeline.stages.kept)[ops.chunk]
    effects = (activation, -activation, kept - activation, -kept)
    # A service takes what it serves takes.
    change = np.choose(ops.kind % OpKind.SF, effects)
    held = np.cumsum(change) - change
    held -= held[firsts][owner]
    capacity = np.array(timeline.stages.capacity)[ops.chunk]
    return (capacity != UNLIMITED) & (held + activation > capacity)


def _after_last_ops(
    timeline: Timeline, rows: np.ndarray[tuple[int], np.dtype[np.intp]], stage: int, alive: tuple[int, ...]
) -> tuple[Column, Column]:
    """For each pipeline's worker, once it is done: idle time while no peer works, and while one does."""
    pipelines = timeline.pipelines
    ended = np.full(pipelines, timeline.opens[stage])
    np.maximum.at(ended, timeline.ops.worker[rows] % pipelines, timeline.end[rows])
    by_start = rows[np.argsort(timeline.start[rows], kind="stable")]
    until = np.maximum.accumulate(timeline.end[by_start])
    # Where any worker works: each op adds what lies beyond the end of all ops that began before it.
    since = np.maximum(timeline.start[by_start], np.concatenate([[0], until[:-1]]))
    idle, imbalance = (np.zeros(pipelines, dtype=np.int64) for _ in range(2))
    for pipeline in alive:
        shared = np.maximum(0, until - np.maximum(since, ended[pipeline]))
        imbalance[pipeline] = shared.sum()
        whole = timeline.closes[stage] - timeline.stages.finish[stage] - ended[pipeline]
        idle[pipeline] = whole - imbalance[pipeline]
    return idle, imbalance


def _missing_work(timeline: Timeline, rows: np.ndarray[tuple[int], np.dtype[np.intp]], stage: int) -> Column:
    """Ticks of work that each pipeline's worker has less than the busiest of the stage."""
    pipelines = timeline.pipelines
    work = np.bincount(
        timeline.ops.worker[rows] % pipelines, timeline.ops.duration[rows], minlength=pipelines
    ).astype(np.int64)
    return work.max() - work
