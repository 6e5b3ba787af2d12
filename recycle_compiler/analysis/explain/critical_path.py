"""The chain of ops that fills one period: each starts at the moment the one before it lets it start.

The chain ends with the optimizer step of a stage whose window is the whole period. It is followed backwards,
from an op to what it waited for last: the op before it on its worker, or its message. Mostly it leads to the
op that opened the same window, and so proves that this order of ops cannot be faster. Otherwise it leads to
an op that waited for its stage to end the previous iteration, one period earlier, and goes on there.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum

import numpy as np

from recycle_compiler.analysis.explain.timeline import NOTHING, Timeline
from recycle_compiler.ir.failure import Worker, worker_at

_TRIED = 8
"""Of the stages whose window is the period, those tried for a chain that begins where their window opens."""


class StepKind(Enum):
    """Activity during a step of the path."""

    COMPUTE = "compute"
    TRANSFER = "transfer"
    FINISH = "finish"
    """Reduction and optimizer."""
    NOTHING = "nothing"
    """No worker works towards the end; plans made by recyclec have none of it."""


@dataclass(frozen=True, slots=True)
class PathStep:
    """Ops in a row on one worker, or what lies between two of those; times in ticks."""

    kind: StepKind
    start: int
    end: int
    stage: int
    """Stage where the step happens; of a transfer, the stage where it arrives."""
    worker: Worker | None = None
    first: str = ""
    last: str = ""
    ops: int = 0
    iteration: int = 0
    """-1 for a step of the previous iteration."""

    @property
    def ticks(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """One period without a hole; times in ticks, as in the schedule."""

    stage: int
    """Stage whose window the path fills."""
    closed: bool
    """It begins with the op that opens this window: no other timing of these orders is faster."""
    steps: tuple[PathStep, ...]

    @property
    def length(self) -> int:
        return sum(step.ticks for step in self.steps)

    def total(self, kind: StepKind) -> int:
        return sum(step.ticks for step in self.steps if step.kind is kind)

    def computed_on(self, stage: int) -> int:
        """Ticks of the path that are work of this stage."""
        return sum(step.ticks for step in self.steps if step.kind is StepKind.COMPUTE and step.stage == stage)


@dataclass(frozen=True, slots=True)
class _Link:
    row: int
    iteration: int


def critical_path(timeline: Timeline, bottleneck: int) -> CriticalPath:
    """The path through the window of the bottleneck if that is the period, else of another such stage."""
    spans = [close - open_ for open_, close in zip(timeline.opens, timeline.closes, strict=True)]
    widest = [stage for stage, span in enumerate(spans) if span == timeline.period]
    if not timeline.staggered:
        # There is one window for all, closed by whoever ends last and has the longest step.
        widest = [max(widest, key=lambda stage: timeline.stages.finish[stage])]
    widest.sort(key=lambda stage: (stage != bottleneck, stage))
    for stage in widest[:_TRIED]:
        rows = _closed_chain(timeline, stage)
        if rows is not None:
            return CriticalPath(stage, True, _steps(timeline, stage, [_Link(row, 0) for row in rows]))
    stage = widest[0]
    return CriticalPath(stage, False, _steps(timeline, stage, _walk(timeline, stage)))


def _last_rows(timeline: Timeline, stage: int) -> list[int]:
    """The ops that the reduction of this stage waits for."""
    if timeline.staggered:
        together = np.isin(timeline.ops.chunk, timeline.stages.waits_for[stage])
        chosen = together & (timeline.end == timeline.last[stage])
    else:
        chosen = timeline.end == max(timeline.last)
    return np.flatnonzero(chosen).tolist()


def _closed_chain(timeline: Timeline, stage: int) -> list[int] | None:
    """Rows from the op that opens the window to the one that ends its work; with few changes of worker."""
    opening = timeline.opens[stage]
    start, end = timeline.start.tolist(), timeline.end.tolist()
    before, source, lag = timeline.before.tolist(), timeline.source.tolist(), timeline.lag.tolist()
    in_window = ((timeline.start == opening) & (timeline.ops.chunk == stage)).tolist()
    if not timeline.staggered:
        in_window = (timeline.start == opening).tolist()
    waiting = deque((row, NOTHING) for row in _last_rows(timeline, stage))
    leads_to: dict[int, int] = {}
    while waiting:
        row, following = waiting.popleft()
        if row in leads_to:
            continue
        leads_to[row] = following
        if in_window[row]:
            return _follow(leads_to, row)
        if start[row] <= opening:
            continue
        if before[row] != NOTHING and end[before[row]] == start[row]:
            waiting.appendleft((before[row], row))
        if source[row] != NOTHING and end[source[row]] + lag[row] == start[row]:
            waiting.append((source[row], row))
    return None


def _follow(leads_to: dict[int, int], row: int) -> list[int]:
    rows: list[int] = []
    while row != NOTHING:
        rows.append(row)
        row = leads_to[row]
    return rows


def _walk(timeline: Timeline, stage: int) -> list[_Link]:
    """From the end of the window back to its beginning, through the previous iteration if need be."""
    link: _Link | None = _Link(_last_rows(timeline, stage)[0], 0)
    links: list[_Link] = []
    while link is not None:
        links.append(link)
        at = int(timeline.start[link.row]) + link.iteration * timeline.period
        link = _cause(timeline, link) if at > timeline.opens[stage] else None
    return links[::-1]


def _cause(timeline: Timeline, link: _Link) -> _Link | None:
    """Op before this one in the chain, which let it start when it did; None if the chain begins here."""
    row = link.row
    start, stage = int(timeline.start[row]), int(timeline.ops.chunk[row])
    before, source = int(timeline.before[row]), int(timeline.source[row])
    freed = int(timeline.end[before]) if before != NOTHING else -1
    arrived = int(timeline.end[source] + timeline.lag[row]) if source != NOTHING else -1
    if start in (freed, arrived):
        return _Link(before if freed == start else source, link.iteration)
    if timeline.staggered and timeline.closes[stage] - timeline.period == start:
        return _Link(_last_rows(timeline, stage)[0], link.iteration - 1)
    if freed == arrived == -1:
        return None
    return _Link(before if freed >= arrived else source, link.iteration)


def _steps(timeline: Timeline, stage: int, links: list[_Link]) -> tuple[PathStep, ...]:
    """The chain in steps, cut off where the window opens."""
    opening, closing = timeline.opens[stage], timeline.closes[stage]
    steps: list[PathStep] = []
    reached = opening
    for previous, link in zip([None, *links], links, strict=False):
        shift = link.iteration * timeline.period
        start, end = int(timeline.start[link.row]) + shift, int(timeline.end[link.row]) + shift
        if start > reached:
            steps.append(_between(timeline, previous, link, reached, start))
        if end > opening:
            _add_op(timeline, steps, link, max(start, opening), end)
        reached = max(end, opening)
    if closing > reached:
        steps.append(PathStep(StepKind.FINISH, reached, closing, stage))
    return tuple(steps)


def _between(timeline: Timeline, previous: _Link | None, link: _Link, start: int, end: int) -> PathStep:
    """Step that fills the time between two ops of the chain."""
    stage = int(timeline.ops.chunk[link.row])
    if previous is None:
        return PathStep(StepKind.NOTHING, start, end, stage)
    if previous.iteration < link.iteration:
        return PathStep(StepKind.FINISH, start, end, stage, iteration=previous.iteration)
    arrived = timeline.end[previous.row] + timeline.lag[link.row]
    sent = previous.row == timeline.source[link.row] and arrived == timeline.start[link.row]
    return PathStep(
        StepKind.TRANSFER if sent else StepKind.NOTHING, start, end, stage, iteration=link.iteration
    )


def _add_op(timeline: Timeline, steps: list[PathStep], link: _Link, start: int, end: int) -> None:
    """One more op: a step of its own, or more of the last one."""
    op, label = timeline.ops[link.row], timeline.label(link.row)
    worker = worker_at(op.worker, timeline.pipelines)
    last = steps[-1] if steps else None
    if last is None or (last.worker, last.iteration) != (worker, link.iteration):
        steps.append(
            PathStep(StepKind.COMPUTE, start, end, op.chunk, worker, label, label, 1, link.iteration)
        )
        return
    steps[-1] = PathStep(
        StepKind.COMPUTE, last.start, end, op.chunk, worker, last.first, label, last.ops + 1, link.iteration
    )
