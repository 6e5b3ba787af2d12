"""How long an iteration takes in the long run, exactly: the slowest loop through the starts of workers.

One iteration leads from the moments at which workers begin to those at which they begin the next one. In the
long run it takes the largest mean time over all loops that go from a worker's start along whatever it holds
up, iteration after iteration, back to its own. Any loop that is found is a lower bound. If, on the other
hand, workers can begin at moments such that nobody is held up for longer, it is an upper bound as well.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from recycle_compiler.ir.ops import Column

Advance = Callable[[Column, int], tuple[Column, Column]]
"""From begins to the next begins and where each of them comes from, all times multiplied by a number."""

_NOBODY = -1


class _Round(NamedTuple):
    begins: Column
    came_from: Column
    """The worker at whose begin the last one was decided; _NOBODY where a begin stays as it was."""


def steady_period(begins: Column, advance: Advance) -> Fraction:
    """Ticks of an iteration in the long run, if nothing changes from one to the next."""
    period = Fraction(0)
    while (longer := _longer(begins, advance, period)) is not None:
        period = longer
    return period


def _longer(begins: Column, advance: Advance, period: Fraction) -> Fraction | None:
    """The mean of a loop that takes longer than this; None if there is none."""
    scale, step = period.denominator, period.numerator
    rounds = [_Round(begins * scale, np.full(len(begins), _NOBODY))]
    while True:
        now = rounds[-1].begins
        ends, origin = advance(now, scale)
        later = ends - step > now
        if not later.any():
            return None
        rounds.append(_Round(np.where(later, ends - step, now), np.where(later, origin, _NOBODY)))
        excess = _excess(rounds)
        if excess > 0:
            return period + excess / scale


def _excess(rounds: list[_Round]) -> Fraction:
    """By how much the loops that end in the last round are longer, per iteration; 0 if there is none."""
    last = rounds[-1].begins
    everybody = np.arange(len(last))
    place, arcs = everybody.copy(), np.zeros(len(last), dtype=np.int64)
    best = Fraction(0)
    for number in range(len(rounds) - 1, 0, -1):
        came_from = rounds[number].came_from[place]
        moved = came_from != _NOBODY
        place, arcs = np.where(moved, came_from, place), arcs + moved
        closed = np.flatnonzero((place == everybody) & (arcs > 0))
        if len(closed):
            gained = last[closed] - rounds[number - 1].begins[closed]
            each = gained / arcs[closed]
            most = closed[int(each.argmax())]
            best = max(best, Fraction(int(gained[each.argmax()]), int(arcs[most])))
    return best
