"""One iteration after another: how long ops take, when workers begin with the next, and the steady period.

One iteration leads from the moments at which workers begin to those at which they begin the next one. In the
long run an iteration takes the maximum cycle mean: the largest mean time over all cycles that go from a
worker's start along whatever it holds up, iteration after iteration, back to its own. Any cycle that is found
is a lower bound. If workers can begin at moments such that no worker is held up for longer, it is an upper
bound as well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import Column
from recycle_compiler.simulator.costs import Floats, Jitter, SimulatedCosts, in_ticks
from recycle_compiler.simulator.kernel import FREE, GATHER
from recycle_compiler.simulator.machine import Iteration, SimulatedMachine
from recycle_compiler.simulator.streams import WORK
from recycle_compiler.simulator.wiring import Wiring


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedPace:
    """A machine with the times of its steps."""

    machine: SimulatedMachine
    staggered: bool
    """True if workers begin the next iteration as soon as they are done; else they all begin together."""
    duration: Floats
    lag: Column
    jitter: Jitter | None
    microbatch: Column
    """Of every step, a number for its micro-batch; -1 for those that work on none."""

    def run(self, begins: Column, number: int) -> Iteration:
        """An iteration in which workers begin at these moments."""
        duration = self.duration
        if self.jitter is not None:
            factors = self.jitter.factors(number, len(duration))
            duration = duration * factors[_drawn_once(self.machine.wiring)]
            if self.jitter.by_microbatch:
                duration = duration * self.jitter.of_microbatches(number, self.microbatch)
        return self.machine.run(begins, in_ticks(duration), self.lag, number)

    def next_begins(self, done: Iteration) -> Column:
        return done.clock if self.staggered else np.full_like(done.clock, done.clock.max())

    def advance(self, begins: Column, scale: int) -> tuple[Column, Column]:
        """The next begins and the workers they come from, without jitter, all times so many times longer."""
        done = self.machine.run(begins, in_ticks(self.duration) * scale, self.lag * scale)
        if self.staggered:
            return done.clock, done.origin
        return self.next_begins(done), np.full_like(done.origin, done.origin[done.clock.argmax()])


def pace_of(
    machine: SimulatedMachine, job: JobSpec, costs: SimulatedCosts, duration: Floats, jitter: Jitter | None
) -> SimulatedPace:
    """Messages take what the border between two stages takes; `duration` is of every row of the streams."""
    wiring = machine.wiring
    transfer = in_ticks(np.array([*costs.transfer, 0.0]))
    lag = np.where(wiring.border == FREE, 0, transfer[wiring.border])
    streams = machine.streams
    number = streams.pipeline * (int(streams.microbatch.max(initial=0)) + 1) + streams.microbatch
    microbatch = np.where(streams.is_any(WORK), number, -1)[wiring.row]
    return SimulatedPace(machine, job.techniques.stagger, duration[wiring.row], lag, jitter, microbatch)


def _drawn_once(wiring: Wiring) -> Column:
    """Step whose random number each step uses: itself, or the first of those that sum together."""
    number = np.arange(len(wiring))
    together = np.flatnonzero(wiring.kind == GATHER)
    _, first, which = np.unique(wiring.gathering[together], return_index=True, return_inverse=True)
    number[together] = together[first[which]]
    return number


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
    """The mean of a cycle that takes longer than this; None if there is none."""
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
    """By how much the cycles that end in the last round are longer, per iteration; 0 if there is none."""
    last = rounds[-1].begins
    all_workers = np.arange(len(last))
    place, arcs = all_workers.copy(), np.zeros(len(last), dtype=np.int64)
    best = Fraction(0)
    for number in range(len(rounds) - 1, 0, -1):
        came_from = rounds[number].came_from[place]
        moved = came_from != _NOBODY
        place, arcs = np.where(moved, came_from, place), arcs + moved
        closed = np.flatnonzero((place == all_workers) & (arcs > 0))
        if len(closed):
            gained = last[closed] - rounds[number - 1].begins[closed]
            each = gained / arcs[closed]
            most = closed[int(each.argmax())]
            best = max(best, Fraction(int(gained[each.argmax()]), int(arcs[most])))
    return best
