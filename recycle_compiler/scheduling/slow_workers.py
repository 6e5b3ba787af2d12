"""Workers that are slower than their peers, and how many micro-batches each worker of a stage should have."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from heapq import heapify, heapreplace
from math import lcm
from typing import NamedTuple

from recycle_compiler.ir.failure import Worker

_FINEST = 1_000_000
"""The largest denominator of a factor."""
_ABSURD = 1_000
"""Largest factor that is planned with; slower workers count as this slow, so that times stay in range."""


class SlowWorker(NamedTuple):
    """A worker, and how many times longer it takes for all that it computes."""

    worker: Worker
    factor: Fraction
    share: int | None = None
    """Number of the worker's micro-batches; None is as many as it has time for."""

    def stretched(self, ticks: int) -> int:
        return round(ticks * self.factor)


SlowWorkers = tuple[SlowWorker, ...]
"""Sorted by worker, without duplicates; made by `slow_workers`."""


def slow_workers(factors: Iterable[tuple[tuple[int, int], float]]) -> SlowWorkers:
    """The canonical form of what a user says."""
    found = {Worker(*worker): factor for worker, factor in factors}
    return tuple(SlowWorker(worker, _exact(factor)) for worker, factor in sorted(found.items()))


def _exact(factor: float) -> Fraction:
    return max(Fraction(factor).limit_denominator(_FINEST), Fraction(1, _FINEST))


def bearable(slow: SlowWorkers) -> SlowWorkers:
    """The same with factors that a search can reckon with."""
    return tuple(one._replace(factor=min(one.factor, Fraction(_ABSURD))) for one in slow)


def stage_shares(total: int, alive: Sequence[int], stage: int, slow: SlowWorkers) -> list[int]:
    """Number of a stage's micro-batches for each of its live workers, in the order of `alive`.

    What no slow worker is given is shared so that the last of the others is done as soon as can be.
    """
    known = {one.worker.pipeline: one for one in slow if one.worker.stage == stage}
    given = {p: known[p].share for p in alive if p in known}
    open_to_all = [p for p in alive if given.get(p) is None]
    left = total - sum(share or 0 for share in given.values())
    assert open_to_all or left == 0, "micro-batches without a worker"
    factors = [known[p].factor if p in known else Fraction(1) for p in open_to_all]
    scale = lcm(*(factor.denominator for factor in factors))
    rest = dict(zip(open_to_all, shares(left, [int(factor * scale) for factor in factors]), strict=True))
    return [rest[p] if p in rest else given[p] or 0 for p in alive]


def shares(total: int, factors: Sequence[int]) -> list[int]:
    """Shares with this total whose largest product with a worker's factor is as small as can be.

    Each micro-batch in turn goes to whoever would be done with it first, the first of equals.
    """
    found = [0] * len(factors)
    done = [(factor, index) for index, factor in enumerate(factors)]
    heapify(done)
    for _ in range(total):
        time, index = done[0]
        found[index] += 1
        heapreplace(done, (time + factors[index], index))
    return found
