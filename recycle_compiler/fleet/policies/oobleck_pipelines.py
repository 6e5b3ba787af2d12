"""Which of Oobleck's templates run side by side: the coins that make up the live workers.

Pipelines of different sizes get different shares of the batch, so that they finish together. Of all multisets
of templates that use exactly the live workers, the one with the shortest iteration wins. They are not listed
one by one: whether some multiset can do the batch in a given time is a knapsack, and the time is halved down.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from recycle_compiler.fleet.policies.oobleck_templates import Template

_PRECISION = 1e-9
"""Of the iteration's time; a share."""


def iteration(pipelines: Sequence[Template], microbatches: int) -> float:
    """Ticks until the last of these pipelines is done with its share of the batch.

    That is when the last of so many micro-batches is done, if each goes where it is done first.
    """
    alike = Counter(pipelines)
    done = np.concatenate([one.once + np.arange(microbatches) * one.slowest for one in alike])
    order = done.argsort()
    so_far = np.repeat(list(alike.values()), microbatches)[order].cumsum()
    return float(done[order[so_far.searchsorted(microbatches)]])


def best_pipelines(templates: Mapping[int, Template], workers: int, microbatches: int) -> tuple[int, ...]:
    """Sizes of the pipelines of the fastest multiset, smallest first; empty where no template fits.

    It uses all workers where sizes add up to them, else as many as can be.
    """
    if not templates or workers < min(templates):
        return ()
    used = _most_used(templates, workers)
    slow = max(one.period(microbatches) for one in templates.values())
    fast = 0.0
    best = _within(templates, used, slow)[1]
    while slow - fast > _PRECISION * slow:
        middle = (slow + fast) / 2
        done, sizes = _within(templates, used, middle)
        if done >= microbatches:
            slow, best = middle, sizes
        else:
            fast = middle
    return best


def _most_used(templates: Mapping[int, Template], workers: int) -> int:
    reachable = [True] + [False] * workers
    for total in range(1, workers + 1):
        reachable[total] = any(reachable[total - size] for size in templates if size <= total)
    return max(total for total, is_reachable in enumerate(reachable) if is_reachable)


def _within(templates: Mapping[int, Template], workers: int, ticks: float) -> tuple[float, tuple[int, ...]]:
    """The most micro-batches that pipelines with exactly so many workers do in this time, and their sizes."""
    sizes = np.array(sorted(templates))
    ordered = [templates[int(size)] for size in sizes]
    values = np.array([max(0.0, (ticks - one.once) // one.slowest + 1) for one in ordered])
    most = np.full(workers + 1, -np.inf)
    most[0] = 0
    chosen = np.zeros(workers + 1, dtype=np.int64)
    for total in range(int(sizes[0]), workers + 1):
        usable = sizes <= total
        done = most[total - sizes[usable]] + values[usable]
        which = int(done.argmax())
        most[total], chosen[total] = done[which], sizes[which]
    picked: list[int] = []
    left = workers
    while left and chosen[left]:
        picked.append(int(chosen[left]))
        left -= picked[-1]
    return float(most[workers]), tuple(sorted(picked))
