"""Bound of a group of pipelines whose layers are summed with those of another group.

    group 0, stage 0    |==== work ====|R|
             stage 1       |==== work ====|R|       group 1 takes part in the sums of all three,
             stage 2          |==== work ====|R|    so they are one after the other
    group 1, stage 0      |=== work ===|R R R|

A worker sums its chunks in order. So two neighbouring stages of a group, between which the other group has no
border, sum one after the other: the sums of the later one end as much later, at least, as they take. Its
window is no longer than the period, so it opens later too. What has to wait for that comes back later, and
what comes back later is summed later. From the first F of the group on, all of it is followed until nothing
gets later any more; then the first stage has to end within the period.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout
from recycle_compiler.planner.layouts import Layouts
from recycle_compiler.scheduling.bounds.feeding import came_back, opens_at, passed
from recycle_compiler.scheduling.bounds.load import Load
from recycle_compiler.scheduling.bounds.rounds import leaves
from recycle_compiler.scheduling.problem import Problem

_TURNS = 12
"""Times that all stages are followed; what would be later still is left out, which keeps the bound valid."""


class Row(NamedTuple):
    """The sums of a group, beside those of another."""

    sums: tuple[int, ...]
    """Ticks of all sums of each stage."""
    follows: tuple[bool, ...]
    """True for each stage whose sums come after those of the stage before it."""


def row_beside(layout: Layout, other: Layout, sums: Sequence[int]) -> Row:
    """The row of a group with this layout beside one with another; `sums` are those of each layer."""
    borders = {first for first, _ in other.ranges}
    return Row(
        tuple(sum(sums[first:end]) for first, end in layout.ranges),
        tuple(first not in borders for first, _ in layout.ranges),
    )


def bound_in_a_row(problem: Problem, row: Row, known: int) -> int:
    """A period below which no plan of the group goes, from one that is known to be such."""
    high = _allowed(problem, row, known)
    if high <= known:
        return known
    low = known
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _allowed(problem, row, middle) > middle else (low, middle)
    return high


def _allowed(problem: Problem, row: Row, period: int) -> int:
    """The end of the first stage's window if windows are no longer than this: no sooner than that."""
    opens, ends = [0] * problem.chunks, [0] * problem.chunks
    found = 0
    for _ in range(_TURNS):
        back = _returned(problem, opens, period)
        before, summed = found, 0
        for stage, sums in enumerate(row.sums):
            worked = max(
                int(back[stage][-1]) + problem.weight[stage], opens[stage] + Load().span(problem, stage)
            )
            summed = max(worked, summed if row.follows[stage] else 0) + sums
            ends[stage] = summed + problem.finish[stage] - sums
            opens[stage] = max(opens[stage], ends[stage] - period if stage else 0)
        # The last ones of the first stage, from the end of their backwards on.
        left = int((back[0][::-1] + leaves(problem, 0)).max()) + problem.closes(0)
        found = max(left, ends[0])
        if found > period or found == before:
            break
    return found


def _returned(problem: Problem, opens: list[int], period: int) -> list[np.ndarray]:
    """The earliest ends of the backwards of each stage, whose windows open no sooner than they are said to;
    `opens` says when they do by then."""
    arrived = passed(problem, 0, np.zeros(problem.units, dtype=np.int64))
    for stage in range(1, problem.chunks):
        arrived = arrived + problem.forward[stage - 1] + problem.transfer[stage - 1]
        opens[stage] = max(opens[stage], int(arrived[0]), opens_at(problem, stage, arrived, period))
        arrived = passed(problem, stage, np.maximum(arrived, opens[stage]))
    return came_back(problem, opens)


def has_none_beside(job: JobSpec, workers: int, other: Layout, limit: int) -> bool:
    """True if no layout for so many workers has a plan below a limit beside a group with another layout.

    A dynamic program over layers and workers has the earliest time at which the first F can come to a layer,
    and the earliest end of the sums before it, each over all stages before. From there some worker has an
    even share of what is left to do, and its last backward still has to return to the first stage.
    """
    side = _AnySide(job, workers, other, limit)
    return all(
        side.has_none_after(end, count)
        for end in range(1, side.layers + 1)
        for count in range(int(side.needed[0, end]), workers + 1)
    )


class _Reached(NamedTuple):
    """Times that no stages before a layer go below, whichever they are."""

    arrival: int
    """Of the first F."""
    summed: int
    """The end of the sums of the stage before."""


class _AnySide:
    """A group of which only its job, its workers and the layout beside it are known."""

    def __init__(self, job: JobSpec, workers: int, other: Layout, limit: int) -> None:
        costs, techniques = job.layer_costs, job.techniques
        assert costs is not None and techniques.decouple and techniques.stagger and not job.owners
        self.layers = costs.count
        self.needed = Layouts(job, workers).needed(limit - 1)
        self._workers, self._period = workers, limit - 1
        self._units = job.pipelines * job.microbatches
        self._transfer = (*costs.transfer, 0)
        self._borders = {first for first, _ in other.ranges}
        self._forward, self._backward, self._weight, self._optimizer = (
            [0, *accumulate(ticks)]
            for ticks in (costs.forward, costs.backward_input, costs.backward_weight, costs.optimizer)
        )
        self._sums = [
            [0, *accumulate(sums_beside(costs.reduce, [here] * costs.count, per_layer(other)))]
            for here in range(workers + 1)
        ]

    def has_none_after(self, end: int, count: int) -> bool:
        """True if no layout is left whose first stage has the layers up to `end` and so many workers."""
        after = self._weight[end] + self._sums[count][end] + self._optimizer[end]
        first_stage = self._through(0, end, count, _Reached(0, 0), after)
        if first_stage is None:
            return True
        best: list[dict[int, _Reached]] = [{} for _ in range(self.layers + 1)]
        best[end][count] = first_stage
        for first in range(end, self.layers):
            for used, before in best[first].items():
                left = self._workers - used
                if not left or self._returns_late(first, left, before.arrival, after):
                    continue
                for last in range(first + 1, self.layers + 1):
                    for more in range(int(self.needed[first, last]), left + 1):
                        found = self._through(first, last, more, before, after)
                        if found is not None:
                            known = best[last].get(used + more, found)
                            best[last][used + more] = _Reached(*map(min, known, found))
        return not best[self.layers]

    def _returns_late(self, first: int, workers: int, arrival: int, after: int) -> bool:
        """True if the layers from here on keep one of so many workers busy for too long."""
        work = sum(ticks[-1] - ticks[first] for ticks in (self._forward, self._backward)) * self._units
        return arrival + -(-work // workers) + self._backward[first] + after > self._period

    def _through(self, first: int, last: int, count: int, before: _Reached, after: int) -> _Reached | None:
        """The times behind a stage of these layers; None if its window or its way back is too long."""
        forward, backward, weight, optimizer, sums = (
            ticks[last] - ticks[first]
            for ticks in (
                *(self._forward, self._backward, self._weight, self._optimizer),
                self._sums[count],
            )
        )
        share = -(-self._units // count)
        follows = first not in self._borders
        opens, summed = before.arrival, 0
        for _ in range(2):
            worked = opens + share * (forward + backward + weight)
            summed = max(worked, before.summed if follows else 0) + sums
            opens = max(opens, summed + optimizer - self._period)
        if not first and opens:
            return None
        if first and opens + share * (forward + backward) + self._backward[first] + after > self._period:
            return None
        return _Reached(opens + forward + self._transfer[last - 1], summed)


def per_layer(layout: Layout) -> list[int]:
    """Workers that hold each layer."""
    return [count for layers, count in zip(layout.layers, layout.workers, strict=True) for _ in range(layers)]


def sums_beside(reduce: Sequence[int], here: Sequence[int], beside: Sequence[int]) -> list[int]:
    """Ticks of the sum of each layer over its holders in both groups."""
    return [
        ticks * (mine + theirs - 1) // (mine + theirs)
        for ticks, mine, theirs in zip(reduce, here, beside, strict=True)
    ]
