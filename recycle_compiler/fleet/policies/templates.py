"""Oobleck's pipeline templates: how the model is cut for any number of workers.

One template for each number of workers in a pipeline, one worker a stage. Of all ways to cut the layers it is
the one with the least t1 + t2 + t3, where the slowest stage is the k-th of n and takes `slowest`:

    t1    forward and backward of all stages
    t2    (4 n - n + k) x slowest: the steady state of 4 n micro-batches
    t3    forward and backward of the stages from the slowest on

The published program divides and conquers over ranges of layers. Here the slowest stage is tried everywhere,
and what lies before and after it is cut so that its slowest stage is as fast as can be, which is memoised and
finds the least cost exactly. Where memory keeps 1F1B on that cut from running as far ahead as it should, a
pipeline is slower than this cost says. Then the cuts with the fastest slowest stage are tried as well, of
those that have all the memory they want, and of those that fit at all; the fastest is taken.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.fleet.policies.layers import Layers, layer_costs_of
from recycle_compiler.fleet.setting import FleetSetting

_PER_STAGE = 4
"""Micro-batches for each stage that the cost reckons with."""
_ROUNDING = 1 + 1e-12
"""Sums of the same layers may differ by this."""
Floats = NDArray[np.float64]


class Template(NamedTuple):
    """A pipeline of some number of stages; times in ticks."""

    cuts: tuple[int, ...]
    """Boundaries: stage s has the layers cuts[s] to cuts[s + 1] - 1."""
    cost: float
    """t1 + t2 + t3."""
    slowest: float
    """Forward and backward of the slowest stage, or longer where memory holds up 1F1B."""
    once: float
    """Ticks of an iteration besides one `slowest` for each micro-batch after the first."""

    @property
    def workers(self) -> int:
        return len(self.cuts) - 1

    def period(self, microbatches: float) -> float:
        """Of 1F1B: fill and drain once, then one micro-batch after the other through the slowest stage."""
        return self.once + max(0, microbatches - 1) * self.slowest


class Cutter:
    """Cuts one model; shares what templates of different sizes have in common."""

    def __init__(self, layers: Layers, most: int) -> None:
        self._layers = layers
        self._work = np.array(layers.work)
        count = len(layers)
        # stage[i, j] is what layers i to j - 1 take; a stage without layers is not allowed.
        stage = self._work[None, :] - self._work[:, None]
        self._stage = np.where(np.tri(count + 1, dtype=bool), np.inf, stage)
        self._head, self._head_cut = self._halves(most)
        self._tail, self._tail_cut = self._halves(most, from_end=True)

    def template(self, stages: int) -> Template | None:
        """The template with this many stages; None if it does not fit the memory."""
        slow = np.arange(stages)[:, None]
        begin = np.arange(len(self._work))[None, :]
        end = self._first_ends(stages)
        whole, last = float(self._work[-1]), len(self._work) - 1
        slowest = self._work[np.minimum(end, last)] - self._work[begin]
        steady = (_PER_STAGE * stages - stages + slow) * slowest
        cost = np.where(end <= last, whole + steady + (whole - self._work[begin]), np.inf)
        at, first = (int(index) for index in np.unravel_index(np.argmin(cost), cost.shape))
        if cost[at, first] == np.inf:
            return None
        cuts = (*self._cuts_before(at, first), *self._cuts_after(stages - 1 - at, int(end[at, first])))
        if self._layers.is_free(cuts):
            return self._made(cuts)
        others = (self._fitting(stages, is_free=True), self._fitting(stages, is_free=False))
        fitting = [self._made(each) for each in (cuts, *others) if each and self._layers.fits(each)]
        microbatches = self._layers.held(stages, 0)
        return min(fitting, key=lambda made: made.period(microbatches), default=None)

    def _fitting(self, stages: int, *, is_free: bool) -> tuple[int, ...] | None:
        """Of all cuts with room for the activations of 1F1B, or else for one: the fastest."""
        layers, room = self._layers, self._layers.capacity
        state, activation = (np.cumsum((0.0, *row)) for row in (layers.state, layers.activation))
        if room is None or state[-1] > stages * room:
            return None
        least = np.full(len(self._work), np.inf)
        least[0] = -np.inf
        froms: list[NDArray[np.int64]] = []
        for stage in range(stages):
            needs = state + (layers.held(stages, stage) if is_free else 1) * activation
            fits = needs[None, :] - needs[:, None] <= room * _ROUNDING
            slowest = np.maximum(least[:, None], np.where(fits, self._stage, np.inf))
            froms.append(slowest.argmin(axis=0))
            least = slowest.min(axis=0)
        if least[-1] == np.inf:
            return None
        found = [len(self._work) - 1]
        for before in reversed(froms):
            found.append(int(before[found[-1]]))
        return tuple(reversed(found))

    def _cost(self, cuts: tuple[int, ...]) -> float:
        stages = [float(self._work[end] - self._work[begin]) for begin, end in pairwise(cuts)]
        slow = stages.index(max(stages))
        steady = (_PER_STAGE * len(stages) - len(stages) + slow) * stages[slow]
        return sum(stages) + steady + sum(stages[slow:])

    def _first_ends(self, stages: int) -> NDArray[np.int64]:
        """Earliest end of the slowest stage, by its number and its first layer; the end + 1 if there is none.

        It is slow enough from some end on, since it grows with it and what is left for the stages behind it
        shrinks. So it is searched for by halving.
        """
        last = len(self._work) - 1
        behind = stages - 1 - np.arange(stages)[:, None]
        begin = np.arange(last + 1)[None, :]
        before, after = np.array(self._head[:stages]), np.array(self._tail[:stages])[::-1]
        # Every stage behind it has a layer at least; without any it ends with the last layer.
        most = np.broadcast_to(last - behind, before.shape)
        low = np.maximum(begin + 1, np.where(behind == 0, last, 0))
        high = np.maximum(low, most + 1)
        while (is_open := low < high).any():
            middle = np.minimum((low + high) // 2, last)
            limit = (self._work[middle] - self._work[begin]) * _ROUNDING
            is_slow = (before <= limit) & (np.take_along_axis(after, middle, axis=1) <= limit)
            high = np.where(is_open & is_slow, middle, high)
            low = np.where(is_open & ~is_slow, middle + 1, low)
        return np.where(low <= most, low, last + 1)

    def _made(self, cuts: tuple[int, ...]) -> Template:
        pairs = list(pairwise(cuts))
        finish = max(sum(self._layers.finish[begin:end]) for begin, end in pairs)
        travel = 2 * self._layers.transfer * (len(pairs) - 1)
        once = float(self._work[-1]) + travel + finish
        pace = self._layers.pace(cuts)
        return Template(cuts, self._cost(cuts), pace.each, once - pace.early)

    def _halves(self, most: int, from_end: bool = False) -> tuple[list[Floats], list[NDArray[np.int64]]]:
        """For 0 to `most` - 1 stages and each boundary: the least slowest stage up to it, and the cut before.

        From the end, the same for what lies behind a boundary.
        """
        stage = self._stage.T if from_end else self._stage
        none = np.full(len(self._work), np.inf)
        none[-1 if from_end else 0] = -np.inf
        values, cuts = [none], [np.zeros(len(none), dtype=np.int64)]
        for _ in range(1, most):
            slowest = np.maximum(values[-1][:, None], stage)
            cuts.append(slowest.argmin(axis=0))
            values.append(slowest.min(axis=0))
        return values, cuts

    def _cuts_before(self, stages: int, boundary: int) -> tuple[int, ...]:
        """Boundaries from 0 to this one, with so many stages between."""
        found = [boundary]
        for count in range(stages, 0, -1):
            found.append(int(self._head_cut[count][found[-1]]))
        return tuple(reversed(found))

    def _cuts_after(self, stages: int, boundary: int) -> tuple[int, ...]:
        found = [boundary]
        for count in range(stages, 0, -1):
            found.append(int(self._tail_cut[count][found[-1]]))
        return tuple(found)


def templates_of(layers: Layers, least: int, most: int) -> dict[int, Template]:
    """By number of workers, from `least` on: those that fit, up to `most` or one layer a stage."""
    most = min(most, len(layers))
    cutter = Cutter(layers, max(most, 1))
    made = ((workers, cutter.template(workers)) for workers in range(least, most + 1))
    return {workers: template for workers, template in made if template is not None}


def pipeline_shapes(setting: FleetSetting, least: int | None = None) -> tuple[Layers, dict[int, Template]]:
    """The layers, and for each number of workers that is enough how a pipeline of them is cut.

    Where the job does not say what a worker holds and has room for, a pipeline is never shorter than the
    job's own; with `least`, never shorter than that.
    """
    layers = layer_costs_of(setting)
    knows = layers.capacity is not None and any(layers.state)
    if least is None:
        least = 1 if knows else min(setting.job.stages, len(layers))
    return layers, templates_of(layers, least, setting.job.workers)
