"""One iteration after another: how long its ops take, and when workers begin with the next."""

from dataclasses import dataclass

import numpy as np

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import Column
from recycle_compiler.simulator.costs import Costs, Floats, in_ticks
from recycle_compiler.simulator.jitter import Jitter
from recycle_compiler.simulator.kernel import FREE, GATHER
from recycle_compiler.simulator.machine import Iteration, Machine
from recycle_compiler.simulator.wiring import Wiring


@dataclass(frozen=True, slots=True, eq=False)
class Pace:
    """A machine with the times of its steps."""

    machine: Machine
    staggered: bool
    """Whether workers begin the next iteration as soon as they are done; else they all begin together."""
    duration: Floats
    lag: Column
    jitter: Jitter | None

    def run(self, begins: Column, number: int) -> Iteration:
        """An iteration in which workers begin at these moments."""
        duration = self.duration
        if self.jitter is not None:
            factors = self.jitter.factors(number, len(duration))
            duration = duration * factors[_drawn_once(self.machine.wiring)]
        return self.machine.run(begins, in_ticks(duration), self.lag, number)

    def next_begins(self, done: Iteration) -> Column:
        return done.clock if self.staggered else np.full_like(done.clock, done.clock.max())

    def advance(self, begins: Column, scale: int) -> tuple[Column, Column]:
        """The next begins and the workers they come from, without jitter, all times so many times longer."""
        done = self.machine.run(begins, in_ticks(self.duration) * scale, self.lag * scale)
        if self.staggered:
            return done.clock, done.origin
        return self.next_begins(done), np.full_like(done.origin, done.origin[done.clock.argmax()])


def pace_of(machine: Machine, job: JobSpec, costs: Costs, duration: Floats, jitter: Jitter | None) -> Pace:
    """Messages take what the border between two stages takes; `duration` is of every row of the streams."""
    wiring = machine.wiring
    transfer = in_ticks(np.array([*costs.transfer, 0.0]))
    lag = np.where(wiring.border == FREE, 0, transfer[wiring.border])
    return Pace(machine, job.techniques.stagger, duration[wiring.row], lag, jitter)


def _drawn_once(wiring: Wiring) -> Column:
    """Which step's random number each step uses: its own, or that of the first of those who sum together."""
    number = np.arange(len(wiring))
    together = np.flatnonzero(wiring.kind == GATHER)
    _, first, which = np.unique(wiring.gathering[together], return_index=True, return_inverse=True)
    number[together] = together[first[which]]
    return number
