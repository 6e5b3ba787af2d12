"""ElasWave, after its abstract: micro-batches are resized for each rank, and layers move online.

- A stage with fewer workers than pipelines gives each a larger part of every micro-batch, so its time grows
  by pipelines / workers. Nothing is rounded to whole micro-batches, and larger ones are as efficient.
- Then layers move so that stages of unlike numbers of workers take equally long. They travel while training
  goes on; workers stay on their stages. A worker that comes back joins the slowest stage once it has its
  layers.
- Every change edits the communicators, for a second (published: under one). Half an iteration is redone
  after a failure, as with ours. A move of layers is made if it pays before the next change is expected.
- Pipelines run 1F1B; the optimizer's shards and slow workers play no part here. Where memory keeps 1F1B from
  running ahead, micro-batches are cut into two, four or eight; that makes room, and is never faster than 1F1B
  of whole ones would be with all the memory it wants.
- It begins with the best cut into as many stages as the job has. If no worker has some stage, the job goes on
  from a checkpoint with workers spread evenly; checkpoints cost nothing.

No more than the abstract was available. What it leaves open is decided in its favour.
"""

import heapq
from functools import lru_cache
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.fleet.policies.bookkeeping import Holders, WorkClock, grid
from recycle_compiler.fleet.policies.layers import Layers, layer_costs_of
from recycle_compiler.fleet.policy import CannotRunError, Change, Reaction, Worker
from recycle_compiler.fleet.setting import FleetSetting
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.units import plural
from recycle_runtime.plan.moves import ChangeRate

_PIECES = (1, 2, 4, 8)
"""Into how many a micro-batch may be cut."""
_ROUNDING = 1 + 1e-9
"""Sums of the same layers may differ by this."""

Counts = tuple[int, ...]
"""Workers on each stage."""
Cut = tuple[int, ...]
"""Boundaries: stage s has the layers cut[s] to cut[s + 1] - 1."""


class Resized:
    """Duration of an iteration with so many workers on each stage, and the cut that does best."""

    def __init__(self, job: JobSpec, layers: Layers) -> None:
        self._job, self._layers = job, layers
        self._sums = [np.cumsum((0.0, *row)) for row in (layers.state, layers.activation)]
        self.period = lru_cache(None)(self._period)
        self.best = lru_cache(None)(self._best)

    def _period(self, cut: Cut, workers: Counts) -> float:
        """Ticks; infinite where it does not fit the memory."""
        whole, free = (self._in_pieces(cut, workers, 1, room) for room in (self._layers.capacity, None))
        if whole == free:
            return whole
        pieces = (self._in_pieces(cut, workers, count, self._layers.capacity) for count in _PIECES[1:])
        # Smaller micro-batches make room; that they have fewer bubbles too is no merit of this system.
        return max(free, min(whole, *pieces))

    def _in_pieces(self, cut: Cut, workers: Counts, pieces: int, room: float | None) -> float:
        """Ticks of 1F1B in so much memory, with every micro-batch cut into pieces."""
        layers, stages = self._layers, len(workers)
        microbatches = self._job.microbatches * pieces
        ranges = list(pairwise(cut))
        sizes = [self._job.pipelines / (count * pieces) for count in workers]
        times = [
            size * (layers.work[end] - layers.work[begin])
            for size, (begin, end) in zip(sizes, ranges, strict=True)
        ]
        pace, early = max(times), 0.0
        for stage, (begin, end) in enumerate(ranges):
            held = min(microbatches, stages - stage)
            ahead = held if room is None else self._ahead(begin, end, sizes[stage], held, room)
            if not ahead:
                return inf
            back = (sum(times[stage:]) + 2 * layers.transfer * (stages - 1 - stage)) / ahead
            if ahead < held and back > pace:
                pace, early = back, (ahead - 1) * (back - max(times))
        finish = max(sum(layers.finish[begin:end]) for begin, end in ranges)
        once = sum(times) + 2 * layers.transfer * (stages - 1) + finish
        return once + (microbatches - 1) * pace - early

    def _ahead(self, begin: int, end: int, size: float, most: int, room: float) -> float:
        """Activations of micro-batches of this size that fit beside the state of these layers."""
        state, activation = (float(row[end] - row[begin]) for row in self._sums)
        left = room * _ROUNDING - state
        if left < 0:
            return 0
        return min(most, left // (activation * size)) if activation else most

    def _best(self, workers: Counts) -> Cut | None:
        """The cut with the shortest iteration among a few: the most even ones with more or less memory."""
        whole = len(self._layers.work) - 1
        found = [self._even(workers, 1, is_free=True), self._even(workers, max(_PIECES), is_free=False)]
        cuts = [cut for cut in found if cut is not None and self.period(cut, workers) < inf]
        if not cuts or len(workers) > whole:
            return None
        return min(cuts, key=lambda cut: self.period(cut, workers))

    def _even(self, workers: Counts, pieces: int, *, is_free: bool) -> Cut | None:
        """The cut with the fastest slowest stage, of those with room for all activations, or for one."""
        layers, room = self._layers, self._layers.capacity
        work = np.array(layers.work)
        state, activation = self._sums
        least = np.full(len(work), np.inf)
        least[0] = -np.inf
        froms: list[NDArray[np.int64]] = []
        for stage, count in enumerate(workers):
            size = self._job.pipelines / count
            held = min(self._job.microbatches, len(workers) - stage) if is_free else 1 / pieces
            takes = size * (work[None, :] - work[:, None])
            takes[np.tri(len(work), dtype=bool)] = np.inf
            if room is not None:
                needs = state + held * size * activation
                takes[needs[None, :] - needs[:, None] > room * _ROUNDING] = np.inf
            slowest = np.maximum(least[:, None], takes)
            froms.append(slowest.argmin(axis=0))
            least = slowest.min(axis=0)
        if least[-1] == np.inf:
            return None
        found = [len(work) - 1]
        for before in reversed(froms):
            found.append(int(before[found[-1]]))
        return tuple(reversed(found))


class _Moving(NamedTuple):
    """Layers are on their way to another cut."""

    arrive: float
    cut: Cut


class Elaswave:
    """One run with resized micro-batches and moving layers."""

    def __init__(self, setting: FleetSetting) -> None:
        self.name = "elaswave"
        self.note = (
            "after its abstract: micro-batches resized for each rank, layers moved online; "
            f"a change edits communicators for {setting.costs.communicator:g} s "
            f"({setting.costs.origin('communicator')})"
        )
        self._setting, self._job, self._costs = setting, setting.job, setting.costs
        self._grid = grid(setting.job)
        self._layers = layer_costs_of(setting)
        self._resized = Resized(setting.job, self._layers)
        state = sum(self._layers.state)
        self._copied_share = sum(setting.job.parameters) / state if state else 0.0
        """Of a worker's state, what a copy of it takes."""
        self._holders = Holders(setting.job.stages)
        self._clock = WorkClock(setting.free_checkpoints_every)
        self._changes = ChangeRate(setting.costs.expected_change)
        self._changes.begin(0.0)
        self._cut: Cut | None = None
        """None while the job stands still."""
        self._moving: _Moving | None = None
        self._joining: list[tuple[float, Worker]] = []
        """Time at which each joining worker will have its layers."""

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        if self._resized.best((self._job.pipelines,) * self._job.stages) is None:
            raise CannotRunError("no cut into as many stages fits the memory of the workers")
        self._start(down)
        return self._rate

    def react(self, change: Change) -> Reaction:
        self._clock.pass_to(change.at, self._rate)
        if not change.failed and not change.returned:
            return Reaction(self._rate)
        self._joining = [entry for entry in self._joining if entry[1] not in change.failed]
        heapq.heapify(self._joining)
        before = self._rate
        self._holders.fail(change.failed, is_copying=False)
        if self._cut is None or self._holders.forgotten():
            return self._from_checkpoint(change.down)
        for worker in sorted(change.returned):
            heapq.heappush(self._joining, (change.at + self._copy_seconds(), worker))
        if not change.failed:
            return Reaction(before)
        self._changes.change()
        redone = min(self._costs.undone / before, self._clock.since_pause) if before else 0.0
        return self._resize(self._costs.detection, redone, "micro-batches resized")

    def due(self) -> float | None:
        moments = [self._joining[0][0]] if self._joining else []
        if self._moving is not None:
            moments.append(self._moving.arrive)
        return max(min(moments), self._clock.busy_until) if moments else None

    def act(self, at: float) -> Reaction:
        self._clock.pass_to(at, self._rate)
        if self._moving is not None and self._moving.arrive <= at:
            self._cut, self._moving = self._moving.cut, None
            return self._answer(self._costs.communicator, 0.0, "layers have moved")
        joined: list[Worker] = []
        while self._joining and self._joining[0][0] <= at:
            joined.append(heapq.heappop(self._joining)[1])
            self._holders.join(joined[-1], self._slowest_stage())
        self._changes.change()
        return self._resize(0.0, 0.0, f"{plural(len(joined), 'worker')} at work")

    def _resize(self, noticed: float, redone: float, why: str) -> Reaction:
        """Go on with the workers that there are, at once where the cut allows it, and move layers."""
        assert self._cut is not None
        self._moving = None
        best = self._resized.best(self._workers)
        if best is None:
            self._cut = None
            self._holders.clear()
            return Reaction(0.0, 0.0, redone, "no cut fits the memory: stands still")
        pause = noticed + self._costs.communicator
        if self._resized.period(self._cut, self._workers) == inf:
            pause += self._seconds_to(best)
            self._cut = best
            return self._answer(pause, redone, f"{why}, layers moved while all wait")
        reaction = self._answer(pause, redone, why)
        now, after = (self._resized.period(cut, self._workers) for cut in (self._cut, best))
        moving = self._seconds_to(best)
        left = self._changes.seconds(self._clock.now) - pause - moving
        if (1 - after / now) * left > self._costs.communicator:
            self._moving = _Moving(self._clock.now + pause + moving, best)
        return reaction

    def _from_checkpoint(self, down: frozenset[Worker]) -> Reaction:
        redone = self._clock.back_to_checkpoint() if self._cut is not None else 0.0
        self._start(down)
        if self._cut is None:
            return Reaction(0.0, 0.0, redone, "too few workers for every stage: stands still")
        pause = self._setting.from_checkpoint
        return self._answer(pause, redone, "from a checkpoint")

    def _start(self, down: frozenset[Worker]) -> None:
        """Without a state to keep: on their own stages if each has somebody, else evenly."""
        live, stages = self._grid - down, self._job.stages
        self._moving, self._joining, self._cut = None, [], None
        self._holders.clear()
        if len(live) < stages:
            return
        there = [sum(stage == each for _, each in live) for stage in range(stages)]
        each, more = divmod(len(live), stages)
        wanted = there if all(there) else [each + (stage < more) for stage in range(stages)]
        self._holders.start(live, wanted)
        self._cut = self._resized.best(self._workers)
        if self._cut is None:
            self._holders.clear()

    @property
    def _workers(self) -> Counts:
        there = self._holders.counts()
        return tuple(there[stage] for stage in range(self._job.stages))

    @property
    def _rate(self) -> float:
        if self._cut is None:
            return 0.0
        return self._setting.rate(self._resized.period(self._cut, self._workers))

    def _answer(self, pause: float, redone: float, why: str) -> Reaction:
        self._clock.pause(pause)
        return Reaction(self._rate, pause, redone, why)

    def _slowest_stage(self) -> int:
        assert self._cut is not None
        work = self._layers.work
        times = [
            (work[end] - work[begin]) / count
            for (begin, end), count in zip(pairwise(self._cut), self._workers, strict=True)
        ]
        return max(range(len(times)), key=lambda stage: (times[stage], -stage))

    def _copy_seconds(self) -> float:
        """Until a worker has the layers of the slowest stage."""
        assert self._cut is not None
        begin, end = list(pairwise(self._cut))[self._slowest_stage()]
        return self._seconds(sum(self._layers.state[begin:end]))

    def _seconds_to(self, cut: Cut) -> float:
        """Until every stage has the layers that it lacks; workers of all stages copy at the same time."""
        assert self._cut is not None
        lacking = (
            sum(self._layers.state[layer] for layer in range(*new) if not old[0] <= layer < old[1])
            for old, new in zip(pairwise(self._cut), pairwise(cut), strict=True)
        )
        return self._seconds(max(lacking))

    def _seconds(self, state: float) -> float:
        return state * self._copied_share / self._costs.copy_rate
