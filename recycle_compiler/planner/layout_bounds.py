"""Periods that no layout goes below, by whole bounds of all layouts that the table of cut_bounds admits.

The table knows one stage at a time. Whole bounds of a layout also know the workers of its other stages,
transfers between them, and crowds (scheduling/bounds.py). So, for a period that is known to be reached:

    admitted    layouts whose stages all keep below it by the table; no other layout is faster
    ranked      by the bounds of single workers with the stages around them
    raised      the least of their whole bounds, taken in this order until the next of the ranked is no less

Every layout that is not admitted takes the known period at least, so the least that is found holds for all.
Where too many are admitted, a lower limit takes the place of the period; where too many whole bounds would be
needed, the bound of the next of the ranked is what is known. Both keep the result valid.
"""

from collections.abc import Iterator, Mapping
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.graph import Edges
from recycle_compiler.ir.job import JobSpec, leading_chunks
from recycle_compiler.ir.layout import Layout, job_of_layout
from recycle_compiler.ir.rounds import always_left
from recycle_compiler.planner.cut_bounds import FAR, layout_period
from recycle_compiler.planner.layouts import Layouts, roughness
from recycle_compiler.scheduling.bounds import lower_bound
from recycle_compiler.scheduling.budget import Guard
from recycle_compiler.scheduling.problem import (
    UNLIMITED,
    Problem,
    Tasks,
    times_of_overlap,
    unhidden_weights,
)

_ADMITTED = 3000
"""Layouts that are ranked at most."""
_WHOLE = 200
"""Whole bounds that are computed at most."""
_FURTHER = 40
"""And after the least of them is known."""

Proven = Mapping[Layout, int]
"""Period that no plan of a layout goes below."""


class RaisedBound(NamedTuple):
    """Knowledge of all layouts with so many workers or fewer."""

    period: int
    """No plan of any of them goes below it."""
    promising: tuple[tuple[int, Layout], ...]
    """Layouts that may be faster than what was known, with their whole bounds, best and smoothest first."""
    others: int
    """No plan of any layout that is not promising goes below it."""

    def with_proven(self, proven: Proven) -> int:
        """The period with what is proven of some layouts by whole plans."""
        each = (max(bound, proven.get(layout, 0)) for bound, layout in self.promising)
        return max(self.period, min([self.others, *each]))


class AdmittedLayouts:
    """Layouts whose stages all keep to a period by the table, with so many workers together or fewer."""

    def __init__(self, layouts: Layouts, limit: int, workers: int) -> None:
        self._needed = layouts.needed(limit)
        self._layers = self._needed.shape[0] - 1
        self._workers = workers
        self._most = layouts.units
        self._ways = self._count()

    def __len__(self) -> int:
        return int(min(self._ways[0][self._workers], 1e15))

    def _count(self) -> list[NDArray[np.float64]]:
        """[first layer, workers left]: ways to cut the rest and to give workers to it."""
        ways = [np.zeros(self._workers + 1) for _ in range(self._layers + 1)]
        ways[-1][:] = 1.0
        sums = [np.zeros(self._workers + 2) for _ in ways]
        sums[-1][1:] = np.cumsum(ways[-1])
        left = np.arange(self._workers + 1)
        for first in range(self._layers - 1, -1, -1):
            for end in range(first + 1, self._layers + 1):
                fewest = int(self._needed[first, end])
                if fewest > self._workers:
                    continue
                # Stages of `fewest` workers up to as many as there are micro-batches.
                until, since = np.maximum(left - fewest + 1, 0), np.maximum(left - self._most, 0)
                ways[first] += np.maximum(0.0, sums[end][until] - sums[end][since])
            sums[first][1:] = np.cumsum(ways[first])
        return ways

    def __iter__(self) -> Iterator[Layout]:
        return self._from(0, self._workers, (), ())

    def _from(
        self, first: int, left: int, layers: tuple[int, ...], workers: tuple[int, ...]
    ) -> Iterator[Layout]:
        if first == self._layers:
            yield Layout(layers, workers)
            return
        for end in range(first + 1, self._layers + 1):
            for count in range(int(self._needed[first, end]), min(left, self._most) + 1):
                if not self._ways[end][left - count]:
                    break
                yield from self._from(end, left - count, (*layers, end - first), (*workers, count))


def raised_bound(
    job: JobSpec,
    layouts: Layouts,
    workers: int,
    least: int,
    known: int,
    deepest: int,
    guard: Guard,
) -> RaisedBound:
    """A period below which no plan of any layout goes, from `least`, which holds, to `known`, reached.

    Of layouts with more stages than `deepest` no whole bound is computed: it would take long.
    """
    admitted = _widest(layouts, workers, least, known)
    if admitted is None:
        return RaisedBound(least, (), least)
    limit, every = admitted
    ranked = sorted((layout_period(job, one), one.stages, str(one), one) for one in every)
    found = others = limit + 1
    whole, further = list[tuple[int, int, str, Layout]](), 0
    for bound, _, name, layout in ranked:
        # From here on no bound is less than what is found: others may still be faster than what is known.
        further += bound >= found
        if bound > limit or further > _FURTHER or len(whole) == _WHOLE or guard.strikes():
            others = min(others, bound)
            break
        whole_bound = layout_bound(job, layout) if layout.stages <= deepest else 0
        exact = max(bound, whole_bound)
        found = min(found, exact)
        whole.append((exact, roughness(layout), name, layout))
    promising = tuple((bound, layout) for bound, _, _, layout in sorted(whole) if bound < known)
    return RaisedBound(max(least, min(found, others)), promising, others)


def _widest(layouts: Layouts, workers: int, least: int, known: int) -> tuple[int, AdmittedLayouts] | None:
    """The largest limit below what is known that does not admit too many layouts; None if all do."""
    steps = layouts.periods_between(least, known - 1)
    if not steps:
        return None
    low, high = -1, len(steps) - 1
    best: tuple[int, AdmittedLayouts] | None = None
    while low < high:
        middle = (low + high + 1) // 2
        admitted = AdmittedLayouts(layouts, steps[middle], workers)
        if len(admitted) > _ADMITTED:
            high = middle - 1
            continue
        # Up to the next of the table's periods nothing more is admitted.
        limit = known - 1 if middle + 1 == len(steps) else steps[middle + 1] - 1
        best, low = (limit, admitted), middle
    return best


def layout_bound(job: JobSpec, layout: Layout) -> int:
    """A period below which no plan of this layout goes, by all bounds; its graph is not made."""
    derived = job_of_layout(job, layout)
    return lower_bound(problem_of_layout(derived, layout)).period if has_room(derived) else FAR


def has_room(job: JobSpec) -> bool:
    """True if the workers of every stage can hold one micro-batch, and have slots for all experts."""
    return job.short_of_slots is None and all(
        room is None or room >= sum(job.activation[chunk] for chunk in held)
        for room, held in zip(job.capacity, job.held, strict=True)
    )


def problem_of_layout(job: JobSpec, layout: Layout) -> Problem:
    """What bounds are made of; `job` is that of the layout."""
    split, staggered = job.techniques.decouple, job.techniques.stagger
    # The best case: what may be computed in exchanges takes no time.
    left = tuple(always_left(job, chunk) for chunk in range(job.stages))
    weight = left if split else (0,) * job.stages
    backward = tuple(
        one + (0 if split else other)
        for one, other in zip(job.backward_input, job.backward_weight, strict=True)
    )
    finish = tuple(map(sum, zip(job.reduce, job.optimizer, job.gather, strict=True)))
    nothing = np.empty(0, dtype=np.int64)
    stages = tuple(range(job.stages))
    return Problem(
        chunks=job.stages,
        pipelines=job.pipelines,
        microbatches=job.microbatches,
        staggered=staggered,
        forward=job.forward,
        backward=backward,
        weight=weight,
        split=(split,) * job.stages,
        transfer=job.transfer,
        finish=finish,
        optimizer=job.optimizer,
        activation=job.activation,
        kept=job.kept_for_weight if split else (0,) * job.stages,
        capacity=tuple(UNLIMITED if room is None else room for room in job.capacity),
        hosts=tuple(
            tuple(stage * job.pipelines + rank for rank in range(workers))
            for stage, workers in enumerate(layout.workers)
        ),
        pool=stages,
        window=tuple(leading_chunks(job)) if staggered else (0,) * job.stages,
        grain=gcd(*job.forward, *backward, *weight, *job.transfer, *finish, *times_of_overlap(job)),
        is_uniform=True,
        worker_capacity=(),
        tasks=Tasks(nothing, nothing, nothing, nothing, Edges(nothing, nothing, nothing)),
        late=nothing,
        meets=job.slots > 0,
        unhidden=unhidden_weights(job, (split,) * job.stages),
    )
