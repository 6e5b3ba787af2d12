"""Chameleon (also Odyssey), after its abstract: at each change one performance model picks the best way on.

- *Re-route*: ReCycle's plan for so many failures on the job's own cut. Workers that move copy their stage's
  state, and all wait for that.
- *Re-cut*: the fastest pipelines that Oobleck's templates make of the live workers, of any depth. It costs a
  reconfiguration, in which the layers that a worker lacks are copied.
- *Redundant*: full pipelines of the job's own cut in which every worker runs its successor's forward as well,
  as Bamboo's do. To form them costs a rendezvous; a failure then undoes no work.

What each gets done until the next change counts: its rate, less its pause now and what the failure after that
will cost it. Changes are expected as our own policy expects them. Each way is as fast as its own system's
model here; to pick costs nothing and never errs. After a failure half an iteration is redone unless workers
were redundant. Where no worker has some layers the job goes on from a checkpoint; checkpoints cost nothing.

No more than the abstract was available. What it leaves open is decided in its favour.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from recycle_compiler.fleet.policies.bamboo import out_of_memory, redundant
from recycle_compiler.fleet.policies.bookkeeping import WorkClock
from recycle_compiler.fleet.policies.layers import MOST_BLOCKS
from recycle_compiler.fleet.policies.oobleck import (
    best_pipelines,
    iteration,
    reconfiguration_seconds,
    replicated,
)
from recycle_compiler.fleet.policies.recycle import RecyclePlans, workers_wanted
from recycle_compiler.fleet.policies.templates import pipeline_shapes
from recycle_compiler.fleet.policy import Change, Reaction, Worker
from recycle_compiler.fleet.setting import FleetSetting, on_pipelines
from recycle_compiler.planner.baselines import one_f_one_b_period
from recycle_runtime.plan.moves import ChangeRate

REROUTE, RECUT, REDUNDANT = "re-route", "re-cut", "redundant"
_Layers = tuple[int, int]
"""From the first up to the one before the second."""


class _Way(NamedTuple):
    """One way to go on."""

    name: str
    period: float
    """Ticks."""
    pause: float
    """Seconds, besides noticing a failure."""
    holds: dict[Worker, _Layers]
    """Layers that each worker has in memory once the job goes on."""


class Chameleon:
    """One run; `way` is how it goes on now."""

    def __init__(self, setting: FleetSetting) -> None:
        self.name = "chameleon"
        self._setting, self._job, self._costs = setting, setting.job, setting.costs
        job = setting.job
        self._workers = [(p, s) for p in range(job.pipelines) for s in range(job.stages)]
        self._plan = RecyclePlans(job).plan
        layers, self._templates = pipeline_shapes(setting)
        self._count = len(layers)
        self._own = _own_ranges(setting, len(layers))
        self._sizes = lru_cache(None)(self._best_sizes)
        self._reconfiguration = reconfiguration_seconds(setting)
        self._can_double = job.stages > 1 and not out_of_memory(job)
        self._redundant = lru_cache(None)(self._redundant_period)
        self.note = (
            "after its abstract: at each change the best of re-routing as ReCycle's model, re-cutting as "
            f"Oobleck's ({self._reconfiguration:.1f} s, {setting.costs.origin('reconfiguration')}), and "
            "redundant forwards"
            f"{self._why_not_double()}"
        )
        self._clock = WorkClock(setting.free_checkpoints_every)
        self._changes = ChangeRate(setting.costs.expected_change)
        self._changes.begin(0.0)
        self._way: _Way | None = None
        """None while the job stands still."""
        self._before: dict[Worker, _Layers] = {}
        """Layers that workers had when the last copies began."""

    def _why_not_double(self) -> str:
        if self._can_double:
            return ""
        alone = self._job.stages == 1
        return ", for which one stage has no successor" if alone else ", which do not fit the memory"

    @property
    def way(self) -> str:
        return "" if self._way is None else self._way.name

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        self._start(down)
        return self._rate

    def react(self, change: Change) -> Reaction:
        self._clock.pass_to(change.at, self._rate)
        if not change.failed and not change.returned:
            return Reaction(self._rate)
        self._changes.change()
        before, was = self._rate, self.way
        if self._way is None:
            return self._from_checkpoint(change.down)
        held = dict(self._before if self._clock.is_paused else self._way.holds)
        for worker in change.failed:
            held.pop(worker, None)
        if len(set[int]().union(*(range(*each) for each in set(held.values())))) < self._count:
            return self._from_checkpoint(change.down)
        noticed, redone = 0.0, 0.0
        if change.failed:
            noticed = self._costs.detection
            if was != REDUNDANT:
                redone = min(self._costs.undone / before, self._clock.since_pause)
        ways = list(self._ways(change.down, held))
        if not change.failed:
            # Whoever comes back may as well wait for the next change.
            ways.append(self._way._replace(pause=0.0))
        if not ways:
            return self._from_checkpoint(change.down)
        left = self._changes.seconds(change.at)
        self._way = max(ways, key=lambda way: self._done(way, left - noticed))
        self._before = held
        pause = noticed + self._way.pause if self._way.pause or change.failed else 0.0
        self._clock.pause(pause)
        return Reaction(self._rate, pause, redone, self._way.name)

    def _done(self, way: _Way, seconds: float) -> float:
        """Iterations until the next change, less what a failure costs then."""
        rate = self._setting.rate(way.period)
        if way.name == REDUNDANT:
            return rate * (seconds - way.pause - self._costs.detection - self._costs.regroup)
        after = self._reconfiguration if way.name == RECUT else self._costs.regroup
        return rate * (seconds - way.pause - self._costs.detection - after) - self._costs.undone

    def _from_checkpoint(self, down: frozenset[Worker]) -> Reaction:
        redone = 0.0 if self._way is None else self._clock.back_to_checkpoint()
        self._start(down)
        if self._way is None:
            return Reaction(0.0, 0.0, redone, "too few workers: stands still")
        pause = self._setting.from_checkpoint
        self._clock.pause(pause)
        return Reaction(self._rate, pause, redone, f"from a checkpoint, {self._way.name}")

    def _start(self, down: frozenset[Worker]) -> None:
        """Without a state to keep, so that no way costs anything."""
        own = {worker: self._own[worker[1]] for worker in self._workers if worker not in down}
        ways = [way._replace(pause=0.0) for way in self._ways(down, own)]
        left = self._changes.seconds(self._clock.now)
        self._way = max(ways, key=lambda way: self._done(way, left), default=None)
        self._before = {} if self._way is None else self._way.holds

    @property
    def _rate(self) -> float:
        return 0.0 if self._way is None else self._setting.rate(self._way.period)

    # Ways.

    def _ways(self, down: frozenset[Worker], held: dict[Worker, _Layers]) -> Iterator[_Way]:
        live = [worker for worker in self._workers if worker not in down]
        if plan := self._plan(len(down)):
            yield self._rerouted(live, held, *plan)
        if sizes := self._sizes(len(live)):
            period = iteration(
                [self._templates[size] for size in sizes], self._job.pipelines * self._job.microbatches
            )
            ranges = [each for size in sizes for each in pairwise(self._templates[size].cuts)]
            yield _Way(RECUT, period, self._reconfiguration, _assigned(live, held, ranges))
        pipelines = min(self._job.pipelines, len(live) // self._job.stages)
        if self._can_double and pipelines:
            ranges = [each for each in self._own for _ in range(pipelines)]
            holds = _assigned(live, held, ranges)
            # Whoever is left over stands by, and every worker has its successor's layers too.
            yield _Way(REDUNDANT, self._redundant(pipelines), self._costs.rendezvous, holds)

    def _rerouted(
        self, live: Sequence[Worker], held: dict[Worker, _Layers], period: float, failed: tuple[int, ...]
    ) -> _Way:
        stages = {layers: stage for stage, layers in enumerate(self._own)}
        there = Counter(stages[layers] for layers in held.values() if layers in stages)
        wanted = workers_wanted(failed, len(live), there, self._job.pipelines)
        ranges = [layers for layers, count in zip(self._own, wanted, strict=True) for _ in range(count)]
        holds = _assigned(live, held, ranges)
        if self.way != REROUTE:
            return _Way(REROUTE, period, self._reconfiguration, holds)
        copied = [stages[layers] for worker, layers in holds.items() if held.get(worker) != layers]
        copying = max((self._job.parameters[stage] for stage in copied), default=0) / self._costs.copy_rate
        return _Way(REROUTE, period, self._costs.regroup + copying, holds)

    def _best_sizes(self, live: int) -> tuple[int, ...]:
        templates = replicated(self._templates, live)
        return best_pipelines(templates, live, self._job.pipelines * self._job.microbatches)

    def _redundant_period(self, pipelines: int) -> float:
        return one_f_one_b_period(redundant(on_pipelines(self._job, pipelines)))


def _own_ranges(setting: FleetSetting, count: int) -> list[_Layers]:
    """The layers of the job's own stages, in layers or blocks."""
    job = setting.job
    cut = job.cut if job.layer_costs is not None and sum(job.cut) == count else setting.layers
    most = max(cut) if sum(cut) == count else max(1, MOST_BLOCKS // len(cut))
    return list(pairwise(accumulate((min(each, most) for each in cut), initial=0)))


def _assigned(
    live: Sequence[Worker], held: dict[Worker, _Layers], wanted: Sequence[_Layers]
) -> dict[Worker, _Layers]:
    """Layers of each worker: those who have some of the wanted layers keep them, the others fill up.

    Workers are given in order of their pipelines, and one of them after another gets other layers: machines
    that fail together should not hold all copies of some.
    """
    left = Counter(wanted)
    holds: dict[Worker, _Layers] = {}
    for worker in live:
        layers = held.get(worker)
        if layers is not None and left[layers]:
            left[layers] -= 1
            holds[worker] = layers
    rest = iter([worker for worker in live if worker not in holds])
    most = max(left.values(), default=0)
    in_turn = (layers for turn in range(most) for layers, count in left.items() if turn < count)
    holds.update(zip(rest, in_turn, strict=False))
    return holds
