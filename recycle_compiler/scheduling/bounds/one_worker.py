"""Bound of a worker whose memory is too small to hide the round trip.

A worker that has k micro-batches and holds c activations takes them in rounds: the F that comes c after
another needs the room of that one, so it starts no sooner than its backward has come back. Between such F
lies a round trip, and in the rest of the iteration the worker has its usual work to do.

Number the ops of one kind on the worker in order of their start, whatever micro-batch they belong to. Of the
first i backwards one belongs to the i-th F or a later one, so the i-th backward starts no sooner than a round
trip after the end of the i-th F; likewise the i-th W starts after the end of the i-th backward. When the i-th
F starts, i activations have been taken; x ended backwards have given back all but what W keeps and y <= x
ended W the rest. With r the room beyond c whole activations, what W keeps q and an activation a,

    i a - x (a - q) - y q <= c a + r,   so   x >= i - c,   and with x = i - c + d:   y >= i - c - u(d)

where u(d) = floor((r + d (a - q)) / q). From this follow two facts about the start of the i-th F:

- it comes after (i - 1) F, and for i > c after x backwards and y W and the idle time before the first
  backward (`before`);
- the (i + c)-th F starts at least a `round` later: round trip, F and backward; and a W, or another backward,
  whichever is shorter, where the room that a backward gives back is too small for an F.
"""

from typing import NamedTuple

import numpy as np

from recycle_compiler.scheduling.problem import Ints


class OneWorker(NamedTuple):
    """A worker of a stage, with all that these bounds need to know of it."""

    share: int
    """Micro-batches that it has."""
    forward: int
    backward: int
    weight: int
    trip: int
    """From the end of an F to the start of its backward."""
    ramp: int
    """Idle time before the first backward."""
    capacity: int
    activation: int
    kept: int


def starts_after_backward(worker: OneWorker, number: Ints) -> Ints:
    """From the first backward of a worker to the start of the F with these numbers, from the work that lies
    between; at most what memory holds has set out before that, and they come after it."""
    held = worker.capacity // worker.activation
    return _before(worker._replace(ramp=-held * worker.forward), number, held)


def forward_starts(worker: OneWorker) -> Ints:
    """The earliest start of every F of the worker: after the work before it, and round after round."""
    held = min(worker.capacity // worker.activation, worker.share)
    starts = _before(worker, np.arange(1, worker.share + 1, dtype=np.int64), held)
    return round_after_round(starts, held, _round(worker, held))


def round_after_round(earliest: Ints, held: int, one_round: int) -> Ints:
    """Each no sooner than said, and a round later than the one that comes `held` before it."""
    size = len(earliest)
    if held >= size:
        return earliest
    rounds = -(-size // held)
    table = np.full(rounds * held, earliest[-1], dtype=np.int64)
    table[:size] = earliest
    rows = table.reshape(rounds, held)
    later = one_round * np.arange(rounds, dtype=np.int64)[:, None]
    return (np.maximum.accumulate(rows - later, axis=0) + later).reshape(-1)[:size]


def _before(worker: OneWorker, number: Ints, held: int) -> Ints:
    """The earliest start of the F with these numbers, from the work that lies before it."""
    back = number - held
    least = back * worker.backward
    if worker.kept > 0:
        more = np.arange(held, dtype=np.int64)
        freed = worker.capacity - held * worker.activation + more * (worker.activation - worker.kept)
        deferred = int((freed // worker.kept * worker.weight - more * worker.backward).max())
        least = np.maximum(least, back * (worker.backward + worker.weight) - deferred)
    return (number - 1) * worker.forward + np.where(back > 0, worker.ramp + least, 0)


def _round(worker: OneWorker, held: int) -> int:
    """From the start of an F to that of the first one that needs its room."""
    trip = worker.forward + worker.trip + worker.backward
    if worker.kept == 0 or (worker.capacity - held * worker.activation) // worker.kept > 0:
        return trip
    if worker.kept == worker.activation or held == 1:
        return trip + worker.weight
    return trip + min(worker.weight, worker.backward)
