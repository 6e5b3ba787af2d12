"""Oobleck: pipelines from templates of several sizes; a failure shrinks its pipeline by a template.

After a failure a pipeline goes on with what it has left, if there is a template for that; else it borrows a
worker from one that can spare it; else it merges with another. When workers come back, all are formed
again. There are two pipelines wherever two fit, so that no failure alone takes layers with it.
The batch is split so that pipelines finish together. Every change costs a reconfiguration, in which the
layers that a worker lacks are copied, and half an iteration. If no worker has some layers, the job goes
on from a checkpoint; checkpoints cost nothing.

Pipelines of different sizes get different shares of the batch, so that they finish together. Of all multisets
of templates for the live workers, the one with the shortest iteration wins; the published program looks at
those that use all of them, and could be faster with a worker fewer. They are not listed
one by one: whether some multiset can do the batch in a given time is a knapsack, and the time is found by
bisection.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from recycle_compiler.fleet.policies.bookkeeping import WorkClock
from recycle_compiler.fleet.policies.templates import Template, pipeline_shapes
from recycle_compiler.fleet.policy import CannotRunError, Change, Reaction, Worker
from recycle_compiler.fleet.setting import FleetSetting
from recycle_compiler.ir.units import plural

_SMALL, _LARGE = 2.0, 10.0
"""Seconds of a reconfiguration, published for small models and for 6.7B; linear in parameters between."""
_PRECISION = 1e-9
"""Of the iteration's time; a share."""


class Oobleck:
    """One run with templates."""

    def __init__(self, setting: FleetSetting, least: int | None = None) -> None:
        self.name = "oobleck"
        job = setting.job
        self._setting = setting
        self._workers = [(p, s) for p in range(job.pipelines) for s in range(job.stages)]
        layers, self.templates = pipeline_shapes(setting, least)
        """By number of workers."""
        self._microbatches = job.pipelines * job.microbatches
        self._best = lru_cache(None)(self._best_sizes)
        self._period = lru_cache(None)(self._period_of)
        self._shares = lru_cache(None)(self._shares_of)
        self._pipelines: list[set[Worker]] = []
        self._layers = len(layers)
        self._holds: dict[Worker, range] = {}
        """Layers in the memory of each worker, once the last copies are done."""
        self._held: dict[Worker, range] = {}
        """Layers in the memory of each worker until the last copies are done."""
        self._clock = WorkClock(setting.free_checkpoints_every)
        self._reconfiguration = reconfiguration_seconds(setting)
        least = min(self.templates, default=0)
        self.note = (
            f"templates as published; pipelines of {plural(least, 'worker')} or more; a change costs "
            f"{self._reconfiguration:.1f} s ({setting.costs.origin('reconfiguration')}), a failure half an "
            "iteration besides"
        )

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        if not self.templates:
            raise CannotRunError("no pipeline template fits the memory of the workers")
        self._put_together(down)
        self._load()
        return self._rate()

    def react(self, change: Change) -> Reaction:
        before = self._rate()
        self._clock.pass_to(change.at, before)
        if not change.failed and not change.returned:
            return Reaction(before)
        if self._forgets(change.failed):
            return self._from_checkpoint(change.down)
        if change.returned:
            self._put_together(change.down)
        else:
            self._shrink(change.failed)
        self._copy()
        redone = min(0.5 / before, self._clock.since_pause) if before and change.failed else 0.0
        self._clock.pause(self._reconfiguration)
        return Reaction(self._rate(), self._reconfiguration, redone, self._words)

    def _from_checkpoint(self, down: frozenset[Worker]) -> Reaction:
        """No worker has some of the layers."""
        redone = self._clock.back_to_checkpoint()
        self._put_together(down)
        self._load()
        if not self._pipelines:
            return Reaction(0.0, 0.0, redone, f"no worker has some layers, {self._words}")
        pause = self._setting.from_checkpoint
        self._clock.pause(pause)
        why = f"no worker has some layers: from a checkpoint, {self._words}"
        return Reaction(self._rate(), pause, redone, why)

    def _forgets(self, failed: frozenset[Worker]) -> bool:
        """True if some layers are gone with these; copies that are under way are in vain."""
        held = self._held if self._clock.is_paused else self._holds
        self._holds = dict(held)
        for worker in failed:
            self._holds.pop(worker, None)
        # Many hold the same layers.
        return len(set[int]().union(*set(self._holds.values()))) < self._layers

    def _copy(self) -> None:
        """From now on every worker gets what its pipeline wants of it."""
        self._held = self._holds
        if self._pipelines:
            self._holds = self._wanted()

    def _load(self) -> None:
        """Every worker reads it."""
        self._held = self._holds = self._wanted()

    def _wanted(self) -> dict[Worker, range]:
        wanted: dict[Worker, range] = {}
        for members in self._pipelines:
            wanted.update(zip(sorted(members), self._shares(len(members)), strict=True))
        return wanted

    def _shares_of(self, size: int) -> list[range]:
        """The layers of each worker in a pipeline of so many."""
        return [range(begin, end) for begin, end in pairwise(self.templates[size].cuts)]

    @property
    def _words(self) -> str:
        return (
            f"pipelines of {_listed(self.sizes())}" if self._pipelines else "too few workers for a pipeline"
        )

    def _put_together(self, down: frozenset[Worker]) -> None:
        """The fastest pipelines for those who live."""
        live = [worker for worker in self._workers if worker not in down]
        self._pipelines = []
        for size in self._best(len(live)):
            self._pipelines.append(set(live[:size]))
            del live[:size]

    def _shrink(self, failed: frozenset[Worker]) -> None:
        """Drop the failed workers; borrow or merge where too few are left."""
        self._pipelines = [left for pipeline in self._pipelines if (left := pipeline - failed)]
        while short := next((one for one in self._pipelines if len(one) not in self.templates), None):
            giver = max((one for one in self._pipelines if one is not short), key=len, default=None)
            if giver is None:
                self._pipelines = []
                return
            if len(short) + 1 in self.templates and len(giver) - 1 in self.templates:
                short.add(giver.pop())
                continue
            # Merging makes the pipeline longer than any template where it has more workers than layers.
            other = min((one for one in self._pipelines if one is not short), key=len)
            self._pipelines = [one for one in self._pipelines if one is not short and one is not other]
            most = max(self.templates)
            self._pipelines.append(set(sorted(short | other)[:most]))

    def sizes(self) -> tuple[int, ...]:
        """Workers of each pipeline, fewest first."""
        return tuple(sorted(map(len, self._pipelines)))

    def _rate(self) -> float:
        sizes = self.sizes()
        return self._setting.rate(self._period(sizes)) if sizes else 0.0

    def _best_sizes(self, live: int) -> tuple[int, ...]:
        return best_pipelines(replicated(self.templates, live), live, self._microbatches)

    def _period_of(self, sizes: tuple[int, ...]) -> float:
        return iteration([self.templates[size] for size in sizes], self._microbatches)


def replicated(templates: Mapping[int, Template], workers: int) -> Mapping[int, Template]:
    """Templates that leave enough of so many workers for another pipeline, if two fit at all.

    Oobleck keeps a pipeline more than it should survive failures: one alone loses layers with any worker.
    """
    least = min(templates, default=0)
    if workers < 2 * least:
        return templates
    return {size: one for size, one in templates.items() if size <= workers - least}


def reconfiguration_seconds(setting: FleetSetting) -> float:
    """Seconds that a reconfiguration takes, as given or by the size of the model."""
    given = setting.costs.reconfiguration
    return setting.by_size(_SMALL, _LARGE) if given is None else given


def _listed(sizes: Sequence[int]) -> str:
    """Sizes as people write them: 5 x 4, 1 x 3."""
    counts = {size: sizes.count(size) for size in sizes}
    return ", ".join(f"{count} x {size}" for size, count in sorted(counts.items(), reverse=True))


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

    It may leave workers idle: with all of them the published rule could be slower than with a few less.
    """
    if not templates or workers < min(templates):
        return ()
    slow = max(one.period(microbatches) for one in templates.values())
    fast = 0.0
    best = _within(templates, workers, slow)[1]
    while slow - fast > _PRECISION * slow:
        middle = (slow + fast) / 2
        done, sizes = _within(templates, workers, middle)
        if done >= microbatches:
            slow, best = middle, sizes
        else:
            fast = middle
    return best


def _within(templates: Mapping[int, Template], workers: int, ticks: float) -> tuple[float, tuple[int, ...]]:
    """The most micro-batches that pipelines of so many workers at most do in this time, and their sizes."""
    sizes = np.array(sorted(templates))
    ordered = [templates[int(size)] for size in sizes]
    values = np.array([max(0.0, (ticks - one.once) // one.slowest + 1) for one in ordered])
    most = np.zeros(workers + 1)
    chosen = np.zeros(workers + 1, dtype=np.int64)
    """The size of a pipeline; 0 where the last worker stays idle."""
    for total in range(int(sizes[0]), workers + 1):
        usable = sizes <= total
        done = most[total - sizes[usable]] + values[usable]
        which = int(done.argmax())
        most[total] = most[total - 1]
        # Among equals all workers have work.
        if done[which] >= most[total]:
            most[total], chosen[total] = done[which], sizes[which]
    picked: list[int] = []
    left = workers
    while left > 0:
        if chosen[left]:
            picked.append(int(chosen[left]))
        left -= int(chosen[left]) or 1
    return float(most[workers]), tuple(sorted(picked))
