"""Oobleck's pipeline templates: how the model is cut for any number of workers.

One template for each number of workers in a pipeline, one worker a stage. Of all ways to cut the layers it is
the one with the least t1 + t2 + t3, where the slowest stage is the k-th of n and takes `slowest`:

    t1    forward and backward of all stages
    t2    (4 n - n + k) x slowest: the steady state of 4 n micro-batches
    t3    forward and backward of the stages from the slowest on

The published program divides and conquers over ranges of layers. Here the slowest stage is tried everywhere,
and what lies before and after it is cut so that its slowest stage is as fast as can be, which is memoised and
finds the least cost exactly.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.fleet.layers import Layers

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
    """Forward and backward of the slowest stage."""
    once: float
    """What an iteration takes besides one `slowest` for each micro-batch after the first."""

    @property
    def workers(self) -> int:
        return len(self.cuts) - 1

    def period(self, microbatches: int) -> float:
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
        best: tuple[float, int, int, int] | None = None
        whole = float(self._work[-1])
        for slow in range(stages):
            before, after = self._head[slow][:, None], self._tail[stages - 1 - slow][None, :]
            limit = self._stage * _ROUNDING
            steady = (_PER_STAGE * stages - stages + slow) * self._stage
            rest = whole - self._work[:, None]
            cost = np.where((before <= limit) & (after <= limit), whole + steady + rest, np.inf)
            begin, end = (int(index) for index in np.unravel_index(np.argmin(cost), cost.shape))
            found = (float(cost[begin, end]), slow, begin, end)
            best = found if best is None or found < best else best
        if best is None or best[0] == np.inf:
            return None
        cost, slow, begin, end = best
        cuts = (*self._cuts_before(slow, begin), *self._cuts_after(stages - 1 - slow, end))
        return self._made(cuts, cost) if self._layers.fits(cuts) else None

    def _made(self, cuts: tuple[int, ...], cost: float) -> Template:
        pairs = list(pairwise(cuts))
        finish = max(sum(self._layers.finish[begin:end]) for begin, end in pairs)
        travel = 2 * self._layers.transfer * (len(pairs) - 1)
        slowest = max(float(self._work[end] - self._work[begin]) for begin, end in pairs)
        return Template(cuts, cost, slowest, float(self._work[-1]) + travel + finish)

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
