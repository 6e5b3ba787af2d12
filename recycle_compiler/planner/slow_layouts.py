"""Layouts for workers of which some are slow: the stage of a slow worker may have fewer layers.

    4 workers, one 3 times slower, 16 layers:    8x2,8x2    -->    10x2,6x2, the slow one on the second stage

What slow workers cannot do falls to their peers, so that a stage with one of them has the strength of fewer
workers. Layouts are compared as others are (`planner/recut.py`), with the share that the busiest worker of a
stage has then:

    begun       from layouts for all workers, and for those who are not slow with the slow ones added
    climbed     a layer over a border, a worker to another stage, a slow worker in the place of another, as
                long as the bound of the layout gets better
    ranked      quick plans with the times of the slow workers, of the best few
    planned     as `planner/slow_workers.py` does for one layout, the best of these

No stage has more slow workers than others: a running job tells who is slow by comparing peers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from math import ceil, lcm
from typing import NamedTuple

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout, absent_cells, halved, job_of_layout, own_layout
from recycle_compiler.planner.compile import plan_slow
from recycle_compiler.planner.cut_bounds import FAR, layout_period
from recycle_compiler.planner.layouts import Layouts
from recycle_compiler.planner.recut import is_large, neighbours
from recycle_compiler.planner.slow_workers import SlowPlan, quick_slow_step
from recycle_compiler.scheduling.budget import Guard
from recycle_compiler.scheduling.slow_workers import SlowWorker, SlowWorkers, shares

_BEGUN = 6
"""Layouts of either kind from which to climb."""
_MOST_BOUNDS = 600
"""Bounds of layouts that are computed, about, in all climbs."""
_MANY_STAGES = 8
"""From here on only workers of stages with slow ones change stages."""
_RANKED = 12
"""Layouts that get a quick plan; of a large job fewer."""
_RANKED_LARGE = 3
_STEPS = 3
"""Of a climb by quick plans, in a small job."""
_NEIGHBOURS = 6
"""Layouts that are tried before each step, those with the best bounds."""
_PLANNED = 2
"""Layouts that get a whole plan; of a large job one."""

Factors = tuple[Fraction, ...]
"""Slowdown factor of each slow worker, from the slowest."""


class SlowLayout(NamedTuple):
    """A layout, and the stage of each slow worker, in the order of their factors."""

    layout: Layout
    stages: tuple[int, ...]

    @property
    def is_balanced(self) -> bool:
        """True if no stage has more slow workers than others."""
        return all(2 * self.stages.count(stage) <= self.layout.workers[stage] for stage in set(self.stages))

    def cells(self, factors: Factors) -> SlowWorkers:
        """Cells of the slow workers: the last of their stages."""
        seen: dict[int, int] = {}
        found: list[SlowWorker] = []
        for stage, factor in zip(self.stages, factors, strict=True):
            seen[stage] = seen.get(stage, 0) + 1
            found.append(SlowWorker(Worker(self.layout.workers[stage] - seen[stage], stage), factor))
        return tuple(sorted(found))


class SlowRecut(NamedTuple):
    """A layout for workers of which some are slow, and its plan."""

    layout: Layout
    slow: SlowWorkers
    """As cells of its grid."""
    plan: SlowPlan


def slow_recut(
    job: JobSpec, workers: int, factors: Sequence[Fraction], guard: Guard, *, split: bool = False
) -> SlowRecut | None:
    """The fastest layout found for so many workers of which some are slow.

    None if they cannot hold all layers. With `split`, every micro-batch is in two.
    """
    search = _Search(halved(job) if split else job, workers, tuple(sorted(factors, reverse=True)), guard)
    return min(search.planned(), key=lambda one: one.plan.step, default=None)


class _Search:
    def __init__(self, job: JobSpec, workers: int, factors: Factors, guard: Guard) -> None:
        self._job, self._workers, self._factors = job, workers, factors
        self._guard = guard
        self._units = job.pipelines * job.microbatches
        self._bounds: dict[SlowLayout, int] = {}
        self._steps: dict[SlowLayout, int] = {}

    def planned(self) -> Iterator[SlowRecut]:
        """The layouts with the best quick plans, with whole ones."""
        ranked = self._ranked()
        few = ranked[: 1 if ranked and is_large(self._job, ranked[0].layout) else _PLANNED]
        for one in few:
            derived, slow = job_of_layout(self._job, one.layout), one.cells(self._factors)
            plan = plan_slow(derived, absent_cells(derived, one.layout), slow, guard=self._guard)
            yield SlowRecut(one.layout, slow, plan)

    def _ranked(self) -> list[SlowLayout]:
        """Those that got a quick plan, fastest first."""
        begun = self._begun()
        most = len(self._bounds) + _MOST_BOUNDS
        for begin in begun:
            if len(self._bounds) < most:
                self._climb(begin, self._bound, lambda found: found, most - len(self._bounds))
        whole = (one for one in self._bounds if self._is_whole(one) and self._bounds[one] < FAR)
        best = sorted(whole, key=self._by_bound)
        if not best:
            return []
        large = is_large(self._job, best[0].layout)
        for one in best[: _RANKED_LARGE if large else _RANKED]:
            if not self._steps or not self._guard.strikes():
                self._step(one)
        if not large:
            begin = min(self._steps, key=self._by_step)
            self._climb(begin, self._step, self._promising, _STEPS)
        return sorted(self._steps, key=self._by_step)

    def _climb(
        self,
        begin: SlowLayout,
        measure: Callable[[SlowLayout], int],
        chosen: Callable[[Iterable[SlowLayout]], Iterable[SlowLayout]],
        most: int,
    ) -> None:
        best = begin
        for _ in range(most):
            nearby = chosen(self._neighbours(best))
            better = next((one for one in nearby if measure(one) < measure(best)), None)
            if better is None or self._guard.strikes():
                return
            best = better

    def _promising(self, layouts: Iterable[SlowLayout]) -> Iterable[SlowLayout]:
        fresh = (one for one in layouts if one not in self._steps and self._bound(one) < FAR)
        return islice(sorted(fresh, key=self._by_bound), _NEIGHBOURS)

    def _begun(self) -> list[SlowLayout]:
        layouts = Layouts(self._job, self._workers)
        whole = [choice.layout for choice in layouts.near(self._workers)[:_BEGUN]]
        own = own_layout(self._job)
        if sum(own.workers) == self._workers:
            whole.append(own)
        fast = [choice.layout for choice in layouts.near(self._workers - len(self._factors))[:_BEGUN]]
        found = [
            *(self._placed(one, added=0) for one in whole),
            *(self._placed(one, added=1) for one in fast),
        ]
        return sorted({one for one in found if one is not None}, key=self._by_bound)

    def _placed(self, layout: Layout, added: int) -> SlowLayout | None:
        """With each slow worker in turn where that does least, in the place of another or added."""
        best = SlowLayout(layout, ())
        for _ in self._factors:
            choices = [
                SlowLayout(_more(best.layout, stage, added), (*best.stages, stage))
                for stage in range(layout.stages)
            ]
            fitting = [one for one in choices if self._is_valid(one)]
            if not fitting:
                return None
            best = min(fitting, key=self._by_bound)
        return best

    def _neighbours(self, one: SlowLayout) -> Iterator[SlowLayout]:
        changed = set(one.stages) if one.layout.stages > _MANY_STAGES else None
        found = [SlowLayout(layout, one.stages) for layout in neighbours(one.layout, self._job, changed)]
        for index, here in enumerate(one.stages):
            for there in range(one.layout.stages):
                if here != there:
                    stages = (*one.stages[:index], there, *one.stages[index + 1 :])
                    found.append(SlowLayout(one.layout, stages))
        return (each for each in found if self._is_valid(each))

    def _is_whole(self, one: SlowLayout) -> bool:
        return len(one.stages) == len(self._factors) and sum(one.layout.workers) == self._workers

    def _is_valid(self, one: SlowLayout) -> bool:
        workers = one.layout.workers
        return one.is_balanced and min(workers) >= self._job.redundancy and max(workers) <= self._units

    def _bound(self, one: SlowLayout) -> int:
        """Lower bound on the period of the layout, with the shares that its slow workers leave to others."""
        if one not in self._bounds:
            self._bounds[one] = layout_period(self._job, one.layout, self._shares(one))
        return self._bounds[one]

    def _shares(self, one: SlowLayout) -> tuple[int, ...]:
        found: list[int] = []
        for stage, workers in enumerate(one.layout.workers):
            here = zip(one.stages, self._factors, strict=False)
            slow = tuple(factor for at, factor in here if at == stage)
            found.append(busiest_share(self._units, workers - len(slow), slow))
        return tuple(found)

    def _step(self, one: SlowLayout) -> int:
        """Of a quick plan."""
        if one not in self._steps:
            derived = job_of_layout(self._job, one.layout)
            absent = absent_cells(derived, one.layout)
            slow = one.cells(self._factors)
            self._steps[one] = quick_slow_step(derived, absent, slow, self._guard)
        return self._steps[one]

    def _by_bound(self, one: SlowLayout) -> tuple[int, int, str, tuple[int, ...]]:
        return self._bound(one), one.layout.stages, str(one.layout), one.stages

    def _by_step(self, one: SlowLayout) -> tuple[int, tuple[int, int, str, tuple[int, ...]]]:
        return self._step(one), self._by_bound(one)


def _more(layout: Layout, stage: int, added: int) -> Layout:
    workers = list(layout.workers)
    workers[stage] += added
    return Layout(layout.layers, tuple(workers))


@lru_cache(maxsize=1024)
def busiest_share(units: int, fast: int, slow: Factors) -> int:
    """The time of a stage whose micro-batches are shared at their best, in micro-batches of a fast worker."""
    if not slow:
        return -(-units // fast)
    factors = (*(Fraction(1) for _ in range(fast)), *slow)
    scale = lcm(*(factor.denominator for factor in factors))
    each = shares(units, [int(factor * scale) for factor in factors])
    return ceil(max(share * factor for share, factor in zip(each, factors, strict=True)))
