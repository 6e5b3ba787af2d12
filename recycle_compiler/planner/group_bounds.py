"""Lower bounds of two groups of pipelines, whatever their sizes, cuts and shares of the micro-batches.

Alone, a group is an ordinary job with its share of the micro-batches, so the arguments of cut_bounds hold for
each of its stages. Only reductions differ: a layer is summed over the holders of both groups, so over at
least one more than its stage has workers. For a period T and every number u of micro-batches at once:

    needed[i, j, u]     the fewest workers with which a stage of layers i..j passes u of them within T
    fewest[j, u]        min over i < j of fewest[i, u] + needed[i, j, u]: workers for all layers
    both                min over u of fewest[layers, u] + fewest[layers, units - u]

No two groups of fewer than `both` workers keep to T. That falls as T grows, so the least period for a number
of workers is found by bisection.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.planner.cut_bounds import Ints, ShareTable

_NONE = 1 << 28
"""More workers than any job has."""
_NEAR = 10_000
"""A bound is found to one part in so many."""
_MOST_SHARES = 64
"""Shares of a worker that are distinguished where few holders sum faster than many."""


class Fewest(NamedTuple):
    """The fewest workers that pass each number of micro-batches through all layers, from none on."""

    large: Ints
    """Every layer on as many of them as the job asks for."""
    small: Ints
    """Every layer on one of them at least."""


class TwoGroups:
    """All that two groups of pipelines can be, up to a number of workers together."""

    def __init__(self, job: JobSpec, workers: int) -> None:
        self._table = ShareTable(job)
        self._redundancy = job.redundancy
        self._units = self._table.units
        self._workers = np.arange(1, max(2, workers))
        # The other group holds every layer too.
        self._finish = self._table.finish(np.maximum(self._workers + 1, job.redundancy))
        self._known: dict[int, int] = {}

    def least_period(self, workers: int, at_least: int, at_most: int) -> int:
        """Lower bound on the period of two groups of so many workers; `at_most` if the bound is no less."""
        if self.both(at_most - 1) > workers:
            return at_most
        low, high = at_least - 1, at_most - 1
        for limit, fewest in self._known.items():
            if fewest > workers:
                low = max(low, limit)
            else:
                high = min(high, limit)
        while high - low > max(1, high // _NEAR):
            middle = (low + high) // 2
            if self.both(middle) > workers:
                low = middle
            else:
                high = middle
        return low + 1

    def both(self, limit: int) -> int:
        """No two groups with fewer workers than so many together keep to this period."""
        if limit not in self._known:
            small = self.fewest(limit).small
            self._known[limit] = int((small[1:-1] + small[-2:0:-1]).min(initial=_NONE))
        return self._known[limit]

    def fewest(self, limit: int) -> Fewest:
        """For each number of micro-batches, the fewest workers of a group that keeps to this period."""
        needed = self._needed(limit)
        return Fewest(*(self._over_layers(np.maximum(needed, least)) for least in (self._redundancy, 1)))

    def _over_layers(self, needed: Ints) -> Ints:
        layers = self._table.layers
        fewest = np.full((layers + 1, self._units + 1), _NONE, dtype=np.int32)
        fewest[0] = 0
        order = np.lexsort((self._table.first, self._table.end))
        for row in order.tolist():
            first, end = self._table.first[row], self._table.end[row]
            np.minimum(fewest[end], fewest[first] + needed[row], out=fewest[end])
        return np.minimum(fewest[layers], _NONE)

    def _needed(self, limit: int) -> Ints:
        """[range, micro-batches]: the fewest workers with which a stage passes so many within the limit."""
        # What so many workers pass; one more never makes it less.
        passed = np.maximum.accumulate(self._shares(limit) * self._workers, axis=1)
        rows, columns = passed.shape[0], self._units + 2
        before: Ints = np.arange(rows, dtype=np.int64)[:, None] * columns
        index: Ints = before + np.minimum(passed, self._units) + 1
        too_few = np.bincount(index.reshape(-1), minlength=rows * columns).reshape(rows, columns)
        needed = 1 + np.cumsum(too_few[:, :-1], axis=1, dtype=np.int32)
        return np.where(needed > len(self._workers), np.int32(_NONE), needed)

    def _shares(self, limit: int) -> Ints:
        """[range, workers]: the most micro-batches that each of so many workers can have within the limit."""
        table = self._table
        slowest, fastest = self._finish[:, -1:], self._finish[:, :1]
        low, high = table.most(limit, slowest), table.most(limit, fastest)
        apart = int((high - low).max(initial=0))
        each = -(-apart // _MOST_SHARES) if apart else 1
        shares = np.broadcast_to(high, self._finish.shape).copy()
        # From the longest: the first of those that do not keep to the limit is one too many.
        for step in range(apart, 0, -each):
            share = np.minimum(low + step, high)
            busy, tail = table.spans(np.maximum(share, 1))
            keeps = table.within(busy, tail, limit, self._finish) | (share <= low)
            shares = np.where(keeps, shares, np.minimum(shares, share - 1))
        return shares


def least_periods(job: JobSpec, one_cut: Mapping[int, int]) -> dict[int, int]:
    """For each number of failures, what neither one cut nor two groups go below.

    `one_cut` has what no plan under one cut goes below.
    """
    groups = TwoGroups(job, job.workers)
    found: dict[int, int] = {}
    at_least = 1
    for failures, bound in sorted(one_cut.items()):
        # Fewer workers are never faster.
        at_least = found[failures] = groups.least_period(job.workers - failures, min(at_least, bound), bound)
    return found
