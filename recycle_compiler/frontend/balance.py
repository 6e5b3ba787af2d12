"""Cuts layers into stages whose largest is as small as it can be, within a worker's memory."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from recycle_compiler.frontend.costs import Cut
from recycle_compiler.ir.layers import LayerCosts


def balanced_cut(costs: LayerCosts, stages: int) -> Cut | None:
    """The cut whose largest stage takes least time and whose stages are about alike; None where none fits.

    A stage fits if a worker can hold its state and one micro-batch.
    """
    layers = _Layers.of(costs)
    if not 1 <= stages <= layers.count:
        return None
    least, most = 0, layers.time[-1]
    if not layers.fit(stages, most):
        return None
    while least < most:
        middle = (least + most) // 2
        if layers.fit(stages, middle):
            most = middle
        else:
            least = middle + 1
    return _alike(layers, stages, most)


def fewest_stages(costs: LayerCosts) -> int | None:
    """Number of stages that a worker's memory makes necessary; None where a layer alone does not fit."""
    layers = _Layers.of(costs)
    return layers.stages_needed(layers.time[-1])


@dataclass(frozen=True, slots=True)
class _Layers:
    """Sums over the layers before each border between two of them."""

    time: Sequence[int]
    memory: Sequence[int]
    capacity: int | None

    @classmethod
    def of(cls, costs: LayerCosts) -> "_Layers":
        exchanges = (costs.exchange, costs.exchange)
        times = zip(costs.forward, costs.backward_input, costs.backward_weight, *exchanges, strict=True)
        held = zip(costs.resident, costs.activation, strict=True)
        return cls(
            tuple(accumulate(map(sum, times), initial=0)),
            tuple(accumulate(map(sum, held), initial=0)),
            costs.capacity,
        )

    @property
    def count(self) -> int:
        return len(self.time) - 1

    def latest_end(self, first: int, most: int) -> int:
        """Last border of a stage from this border on that takes at most so long and fits into memory."""
        end = bisect_right(self.time, self.time[first] + most) - 1
        if self.capacity is None:
            return end
        return min(end, bisect_right(self.memory, self.memory[first] + self.capacity) - 1)

    def earliest_start(self, end: int, most: int) -> int:
        """First border of a stage up to this border that takes at most so long and fits into memory."""
        start = bisect_left(self.time, self.time[end] - most)
        if self.capacity is None:
            return start
        return max(start, bisect_left(self.memory, self.memory[end] - self.capacity))

    def stages_needed(self, most: int) -> int | None:
        """Stages filled one after another; None where a layer alone is too much."""
        border = needed = 0
        while border < self.count:
            end = self.latest_end(border, most)
            if end == border:
                return None
            border, needed = end, needed + 1
        return needed

    def fit(self, stages: int, most: int) -> bool:
        needed = self.stages_needed(most)
        return needed is not None and needed <= stages


def _alike(layers: _Layers, stages: int, most: int) -> Cut:
    """Stages of at most this time, each as close to an even share of what is left as it can be."""
    # What follows a border must still fit into the stages that are left.
    earliest = [layers.count]
    for _ in range(stages):
        earliest.append(layers.earliest_start(earliest[-1], most))
    borders = [0]
    for left in range(stages - 1, 0, -1):
        begin = borders[-1]
        first = max(begin + 1, earliest[left])
        last = min(layers.latest_end(begin, most), layers.count - left)
        share = layers.time[begin] + (layers.time[-1] - layers.time[begin]) // (left + 1)
        after = bisect_left(layers.time, share, first, last)
        before = max(first, after - 1)
        nearer = share - layers.time[before] <= layers.time[after] - share
        borders.append(before if nearer else after)
    return tuple(end - begin for begin, end in zip(borders, [*borders[1:], layers.count], strict=True))
