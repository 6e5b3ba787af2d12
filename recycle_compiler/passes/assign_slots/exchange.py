"""Search around the order of a large schedule: ops that are late change places with the op before them.

A shorter period gives every op a latest start. Where an op misses its own because its worker does something
less urgent just before (a W, as a rule, while a backward that others wait for arrives), the two are swapped.
All such swaps are made at once, then the new order is timed. When that is no better, the next try asks for
another period, for other gains, or looks only at some stages or at the later part of the iteration.
"""

from dataclasses import dataclass

import numpy as np

from recycle_compiler.passes.assign_slots.deadline import Deadline
from recycle_compiler.passes.assign_slots.kernel import Ints
from recycle_compiler.passes.assign_slots.loops import Where
from recycle_compiler.passes.assign_slots.noise import Noise
from recycle_compiler.passes.assign_slots.timing import Clock, Timed

_STEPS = 64
"""Choices out of a range of times."""
_BELOW = 200
"""The shortest period asked for is this part below the one that would do."""


@dataclass(frozen=True, slots=True, eq=False)
class _Placed:
    """An order with its earliest times, all stages open from the start."""

    period: int
    lateness: int
    """By how much all workers together miss the period that would do."""
    order: Ints
    end: Ints
    sequence: Ints
    first: Ints

    @property
    def rank(self) -> tuple[int, int]:
        return self.period, self.lateness


def exchange(clock: Clock, begin: Timed, bound: int, tries: int, noise: Noise, deadline: Deadline) -> Timed:
    """The best schedule found in so many tries; stops when one meets the bound."""
    current = _placed(clock, begin.order, bound)
    assert current is not None
    failed, wanted = 0, bound
    times = _latest(clock, current, wanted)
    for _ in range(tries):
        if current.period <= bound or deadline.passed():
            break
        if failed:
            if noise.below(3):
                reach = current.period - bound + current.period // _BELOW
                wanted = current.period - reach * noise.below(_STEPS) // _STEPS
                times = _latest(clock, current, wanted)
            where = _somewhere(clock, current.period, noise)
        else:
            where = Where(0, clock.problem.stages - 1, gain=_mean_op(clock) // 8)
        order = clock.loops.swapped(current.order, times, where)
        after = None if order is None else _placed(clock, order, bound)
        failed += 1
        if after is None or after.rank > current.rank:
            continue
        if after.rank < current.rank:
            failed, wanted = 0, bound
        current = after
        times = _latest(clock, current, wanted)
    return clock.time_at_once(current.order)


def _somewhere(clock: Clock, period: int, noise: Noise) -> Where:
    first, last = 0, clock.problem.stages - 1
    if noise.below(2):
        first = noise.below(clock.problem.stages)
        last = min(last, first + noise.below(clock.problem.stages // 2 + 1))
    return Where(
        first,
        last,
        since=noise.below(2) * period * noise.below(_STEPS) // _STEPS,
        gain=noise.below(4) * _mean_op(clock) // 16,
        odds=(100, 60)[noise.below(2)],
        seed=noise.below(1 << 30),
    )


def _placed(clock: Clock, order: Ints, bound: int) -> _Placed | None:
    """None if the workers wait for each other."""
    problem = clock.problem
    timed = clock.loops.in_sequence(order, np.zeros(problem.stages, dtype=np.int64))
    if timed is None:
        return None
    end, sequence = timed
    by_stage = end.reshape(3, problem.units, problem.stages)
    first = by_stage[0].min(axis=0) - np.array(problem.forward, dtype=np.int64)
    due = np.repeat(clock.deadlines(first, bound), problem.pipelines)
    ends = np.where(order >= 0, end[order], 0).reshape(-1, clock.loops.width).max(axis=1)
    lateness = int(np.maximum(ends - due, 0).sum())
    return _Placed(clock.period(first, by_stage.max(axis=(0, 1))), lateness, order, end, sequence, first)


def _latest(clock: Clock, placed: _Placed, period: int) -> tuple[Ints, Ints, Ints]:
    late, due = clock.loops.latest(placed.order, placed.sequence, clock.deadlines(placed.first, period))
    return placed.end, due, late


def _mean_op(clock: Clock) -> int:
    return int(clock.loops.duration.mean())
