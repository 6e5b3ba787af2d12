"""The dynamic program over layers and workers: which layouts a number of workers can have, best first.

For a period T, the fewest workers with which a stage of layers i..j can keep to it are known from the table
of cut_bounds. A layout with every stage within T exists if the fewest workers for all layers are no more than
there are:

    g[0] = 0        g[j] = min over i < j of g[i] + workers(i, j, T)        g[layers] <= workers

The least such T, one of the table's periods, is found by bisection: no plan of any cut goes below it. With
the number of stages as a second index the program gives the layouts that come near that period, for every
number of stages. Workers that are left over go, one by one, to the stage that is slowest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout
from recycle_compiler.planner.cut_bounds import FAR, Ints, StageTable, layout_period, stage_table

_NONE = 1 << 40
"""More workers than any job has."""
_LADDER = (0, 1, 3, 10, 30)
"""In thousandths above the least period: layouts are collected up to there."""
_WIDE_LADDER = (*_LADDER, 60)
"""The same of a small job: where memory is tight, layouts with worse bounds may have faster plans."""
_OF_EACH_DEPTH = 4
"""Layouts with the same number of stages that are looked at."""
_WIDE_OF_EACH_DEPTH = 6
_CLASSES = 300
"""Periods whose shares of the least one differ by less than one in so many count as equal, where layouts are
sorted: the smoother layout is the better one then."""


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """A layout, and what no plan of it goes below by the bounds of single workers."""

    layout: Layout
    period: int


def roughness(layout: Layout) -> int:
    """Sum of the differences in layers between neighbouring stages.

    A stage after smaller ones gets micro-batches in smaller portions than it works in, and waits for them.
    """
    return sum(abs(here - there) for here, there in pairwise(layout.layers))


class Layouts:
    """All layouts of a job in layers, by the number of workers."""

    def __init__(self, job: JobSpec, most_workers: int) -> None:
        costs = job.layer_costs
        assert costs is not None, "a job in layers"
        self._job = job
        self._layers = costs.count
        self.units = job.pipelines * job.microbatches
        self._table: StageTable = stage_table(job, most_workers)
        self._range = self._table.ranges(self._layers)
        values = np.unique(self._table.period)
        self._periods = values[values < FAR]
        every = np.arange(max(most_workers, self.units) + 1)
        self._choice = np.searchsorted(self._table.workers, every, side="right") - 1

    def least_period(self, workers: int, at_least: int = 0) -> int | None:
        """Lower bound on the period of any layout with so many workers; None if there is no layout.

        It may be known to be `at_least` something.
        """
        if not len(self._periods) or not self.may_keep_to(int(self._periods[-1]), workers):
            return None
        if self.may_keep_to(at_least, workers):
            return at_least
        # With more time, stages do with fewer workers where one of the table's periods is reached.
        low, high = int(np.searchsorted(self._periods, at_least, side="right")), len(self._periods) - 1
        while low < high:
            middle = (low + high) // 2
            if self.may_keep_to(int(self._periods[middle]), workers):
                high = middle
            else:
                low = middle + 1
        return int(self._periods[low])

    def periods_between(self, least: int, most: int) -> list[int]:
        """The table's periods in this range, ascending: what a layout keeps to changes at these alone."""
        low, high = np.searchsorted(self._periods, [least, most + 1])
        found: list[int] = self._periods[low:high].tolist()
        return found

    def may_keep_to(self, period: int, workers: int) -> bool:
        """True if the bounds of single workers leave so many workers a layout with this period."""
        return self._fewest(period) <= workers

    def near(self, workers: int, *, wide: bool = False) -> list[LayoutChoice]:
        """For every number of stages that comes near the least period, a few layouts; best first.

        More of them, and from further above, if `wide`.
        """
        least = self.least_period(workers)
        if least is None:
            return []
        found: dict[Layout, int] = {}
        seen: dict[int, int] = {}
        each = _WIDE_OF_EACH_DEPTH if wide else _OF_EACH_DEPTH
        for thousandths in _WIDE_LADDER if wide else _LADDER:
            limit = least + least * thousandths // 1000
            for layout in self._within(limit, workers):
                # A looser period seldom gives a better layout of as many stages; some of each are enough.
                if layout not in found and seen.get(layout.stages, 0) < each:
                    seen[layout.stages] = seen.get(layout.stages, 0) + 1
                    found[layout] = self.period(layout)
        choices = [
            LayoutChoice(layout, max(period, layout_period(self._job, layout)))
            for layout, period in found.items()
        ]
        # What is shared out may leave too little room with the workers that a layout really has.
        choices = [one for one in choices if one.period < FAR]
        return sorted(
            choices, key=lambda one: (one.period * _CLASSES // least, roughness(one.layout), one.period)
        )

    def period(self, layout: Layout) -> int:
        """Lower bound on the period of this layout, by the table."""
        choices = self._choice[np.array(layout.workers, dtype=np.int64)]
        return int(self._table.period[self._ranges_of(layout.layers), choices].max())

    def _ranges_of(self, layers: Sequence[int]) -> Ints:
        """The rows of the table for stages of so many layers each."""
        each = np.array(layers, dtype=np.int64)
        ends = np.cumsum(each)
        return self._range[ends - each, ends]

    def even_cut(self, stages: int, workers: int) -> tuple[int, ...] | None:
        """The cut into stages of so many workers each whose slowest is fastest; None if none fits."""
        choice = self._choice[workers]
        period = np.full((self._layers + 1, self._layers + 1), FAR, dtype=np.int64)
        period[self._table.first, self._table.end] = self._table.period[:, choice]
        slowest = np.full(self._layers + 1, FAR, dtype=np.int64)
        slowest[0] = 0
        origin: list[Ints] = []
        for _ in range(stages):
            ways = np.maximum(slowest[:, None], period)
            origin.append(ways.argmin(axis=0))
            slowest = ways.min(axis=0)
        if slowest[-1] >= FAR:
            return None
        borders = [self._layers]
        for best in reversed(origin):
            borders.append(int(best[borders[-1]]))
        return tuple(end - first for end, first in pairwise(borders))[::-1]

    def needed(self, limit: int) -> Ints:
        """needed[first, end]: the fewest workers with which a stage of these layers keeps to the limit."""
        fits = self._table.period <= limit
        fewest = np.where(fits.any(axis=1), self._table.workers[fits.argmax(axis=1)], _NONE)
        needed = np.full((self._layers + 1, self._layers + 1), _NONE, dtype=np.int64)
        needed[self._table.first, self._table.end] = fewest
        return needed

    def _fewest(self, limit: int) -> int:
        """Workers for all layers together."""
        needed = self.needed(limit)
        fewest = np.full(self._layers + 1, _NONE, dtype=np.int64)
        fewest[0] = 0
        for end in range(1, self._layers + 1):
            fewest[end] = min(_NONE, int((fewest[:end] + needed[:end, end]).min()))
        return int(fewest[-1])

    def _within(self, limit: int, workers: int) -> Iterator[Layout]:
        """For every number of stages that can keep to the limit, layouts with the fewest workers.

        Of equally good borders once the first and once the last is taken.
        """
        needed = self.needed(limit)
        rows = [np.full(self._layers + 1, _NONE, dtype=np.int64)]
        rows[0][0] = 0
        nowhere = np.zeros(self._layers + 1, dtype=np.int64)
        origins: tuple[list[Ints], list[Ints]] = ([nowhere], [nowhere])
        for stages in range(1, self._layers + 1):
            sums = rows[-1][:, None] + needed
            first, last = sums.argmin(axis=0), self._layers - sums[::-1].argmin(axis=0)
            rows.append(np.minimum(np.take_along_axis(sums, first[None], axis=0)[0], _NONE))
            for origin, best in zip(origins, (first, last), strict=True):
                origin.append(best)
            if rows[-1].min() > workers:
                break
            if rows[-1][-1] <= workers:
                for origin in origins:
                    yield self._traced(needed, origin, stages, workers)

    def _traced(self, needed: Ints, origin: list[Ints], stages: int, workers: int) -> Layout:
        end = self._layers
        layers: list[int] = []
        counts: list[int] = []
        for stage in range(stages, 0, -1):
            first = int(origin[stage][end])
            layers.append(end - first)
            counts.append(int(needed[first, end]))
            end = first
        return self._filled(layers[::-1], counts[::-1], workers)

    def _filled(self, layers: list[int], counts: list[int], workers: int) -> Layout:
        """Layout whose remaining workers go to the slowest stage, as long as that can use them."""
        ranges = self._ranges_of(layers)
        workers_of = np.array(counts, dtype=np.int64)
        periods = self._table.period[ranges, self._choice[workers_of]]
        for _ in range(workers - sum(counts)):
            able = workers_of < self.units
            if not able.any():
                break
            # Of equally slow stages, the first of those with the fewest workers.
            slow = np.flatnonzero(able & (periods == periods[able].max()))
            slowest = slow[workers_of[slow].argmin()]
            workers_of[slowest] += 1
            periods[slowest] = self._table.period[ranges[slowest], self._choice[workers_of[slowest]]]
        return Layout(tuple(layers), tuple(workers_of.tolist()))
