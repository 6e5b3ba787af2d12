"""Search around the order of a large schedule: ops that are late change places with the op before them.

A shorter period gives every op a latest start. Where an op misses its own because its worker does something
less urgent just before (a W, as a rule, while a backward that others wait for arrives), the two are swapped.
All such swaps are made at once, then the new order is timed. When that is no better, the next try asks for
another period, for other gains, or looks only at some pools or at the later part of the iteration.
"""

from recycle_compiler.scheduling.deadline import Deadline
from recycle_compiler.scheduling.loops import Where
from recycle_compiler.scheduling.noise import Noise
from recycle_compiler.scheduling.placed import Goal, Placed, placed_in_order
from recycle_compiler.scheduling.problem import Ints
from recycle_compiler.scheduling.timing import Clock

_STEPS = 64
"""Choices out of a range of times."""
_BELOW = 200
"""The shortest period asked for is this part below the one that is aimed at."""


def exchange(clock: Clock, begin: Placed, goal: Goal, tries: int, noise: Noise, deadline: Deadline) -> Placed:
    """The best schedule found in so many tries; stops when one is good enough."""
    current, failed, wanted = begin, 0, goal.aim
    times = _latest(clock, current, wanted)
    for _ in range(tries):
        if current.period <= goal.enough or deadline.passed():
            break
        if failed:
            if noise.below(3):
                reach = current.period - goal.aim + current.period // _BELOW
                wanted = current.period - reach * noise.below(_STEPS) // _STEPS
                times = _latest(clock, current, wanted)
            where = _somewhere(clock, current.period, noise)
        else:
            where = Where(0, clock.problem.pools - 1, gain=_mean_op(clock) // 8)
        order = clock.loops.swapped(current.order, times, where)
        after = None if order is None else placed_in_order(clock, order, goal)
        failed += 1
        if after is None or after.rank > current.rank:
            continue
        if after.rank < current.rank:
            failed, wanted = 0, goal.aim
        current = after
        times = _latest(clock, current, wanted)
    return current


def _somewhere(clock: Clock, period: int, noise: Noise) -> Where:
    first, last = 0, clock.problem.pools - 1
    if noise.below(2):
        first = noise.below(clock.problem.pools)
        last = min(last, first + noise.below(clock.problem.pools // 2 + 1))
    return Where(
        first,
        last,
        since=noise.below(2) * period * noise.below(_STEPS) // _STEPS,
        gain=noise.below(4) * _mean_op(clock) // 16,
        odds=(100, 60)[noise.below(2)],
        seed=noise.below(1 << 30),
    )


def _latest(clock: Clock, placed: Placed, period: int) -> tuple[Ints, Ints, Ints]:
    late, due = clock.loops.latest(placed.order, clock.deadlines(placed.first, period))
    return placed.end, due, late


def _mean_op(clock: Clock) -> int:
    return int(clock.loops.duration.mean())
