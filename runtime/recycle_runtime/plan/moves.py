"""Moves of healthy workers to other stages, and their costs. Standard library only.

    failed now     (0, 2, 0, 0)        a worker of stage 2 moves to stage 1
    failed wanted  (0, 1, 1, 0)

After failures all workers continue at once, with a plan for the failures as they are. The bundle may have a
faster plan for as many failures on other stages. To use it, workers of those stages take the places of failed
ones: they stop between two steps, drop what they hold and copy the state of their new stage from a peer. That
pays if enough steps follow before the next change.

`recyclec show`, the simulator and the coordinator all decide by what is here.
"""

from collections.abc import Collection
from heapq import heapify, heapreplace
from statistics import median
from typing import NamedTuple

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.worker_ids import worker_text

Counts = tuple[int, ...]
"""Failed workers on each stage."""

Moves = dict[Worker, Worker]
"""From a worker to the failed one whose place it takes."""

STEPS_BEFORE_MOVES = 4
"""Steps of a generation before moves are weighed, where none before it says how long a step takes; the first
of them is warm-up."""
STEPS_BEFORE_FURTHER_MOVES = 1
"""Steps of a generation before moves are weighed, where an earlier one says how long a step takes."""
_BYTES_A_SECOND = 1e9
_REGROUP_SECONDS = 2.0
"""Both as long as nothing was measured."""


def least_moves(
    live: Collection[Worker], wanted: Counts, pipelines: int, last: Collection[Worker] = ()
) -> Moves:
    """The fewest moves, over the shortest distance, after which each stage has as many failures as wanted.

    Workers in `last` move only where no other worker of their stage can.
    """
    failed = failed_counts(live, len(wanted), pipelines)
    if sum(failed) != sum(wanted):
        raise ValueError("moves keep the number of failures")
    if pipelines in failed:
        raise ValueError("a stage without a live worker has no peer to copy from")
    gives = [stage for stage, more in _excess(wanted, failed) for _ in range(more)]
    takes = [stage for stage, more in _excess(failed, wanted) for _ in range(more)]
    moves: Moves = {}
    # Who has to give and to take is settled by the counts, and with it the number of copies and their bytes;
    # what is left to choose is the distance. On a line, the least sum of distances is reached by pairing both
    # sides in order: two pairs that cross are never shorter than the same four ends uncrossed.
    for source, target in zip(gives, takes, strict=True):
        here = [worker for worker in live if worker[1] == source and worker not in moves]
        mover = min(here, key=lambda worker: (worker in last, worker))
        places = ((pipeline, target) for pipeline in range(pipelines))
        moves[mover] = next(place for place in places if place not in live and place not in moves.values())
    return moves


def failed_counts(live: Collection[Worker], stages: int, pipelines: int) -> Counts:
    """Number of workers of each stage that are not among the live ones."""
    there = [0] * stages
    for _, stage in live:
        there[stage] += 1
    return tuple(pipelines - count for count in there)


class StageLoads(NamedTuple):
    """Costs that decide how long each stage takes with the workers that it has; times in ticks."""

    pipelines: int
    microbatches: tuple[int, ...]
    """That pass each stage: those of all pipelines together, or of its group of pipelines."""
    each: tuple[int, ...]
    """Of one micro-batch on each stage, forward and backward."""
    once: tuple[int, ...]
    """Of what a worker of each stage does once in an iteration."""

    def ticks(self, stage: int, failed: int) -> int:
        """The work of the busiest worker of a stage of which so many have failed."""
        most = -(-self.microbatches[stage] // (self.pipelines - failed))
        return most * self.each[stage] + self.once[stage]


def quickest_counts(failed: Counts, loads: StageLoads) -> Counts:
    """As many failures, where the slowest stage is as fast as can be; they stay where they are if that is so.

    This is where failures should lie as long as no plan says better. Every worker more makes a stage faster,
    or leaves it as it is, so giving one after the other to the slowest stage finds the least time exactly.
    """
    most = loads.pipelines - 1
    least = _least_ticks(sum(failed), loads)
    # The most failures with which each stage is fast enough.
    allowed = [
        max(gone for gone in range(most + 1) if loads.ticks(stage, gone) <= least)
        for stage in range(len(failed))
    ]
    placed = [min(gone, allowed[stage]) for stage, gone in enumerate(failed)]
    for _ in range(sum(failed) - sum(placed)):
        stages = (stage for stage, gone in enumerate(placed) if gone < allowed[stage])
        placed[min(stages, key=lambda stage: (loads.ticks(stage, placed[stage] + 1), stage))] += 1
    return tuple(placed)


def _least_ticks(failures: int, loads: StageLoads) -> int:
    """Of the slowest stage, with so many failures wherever they do least."""
    stages = len(loads.each)
    gone = [loads.pipelines - 1] * stages
    slowest = [(-loads.ticks(stage, gone[stage]), stage) for stage in range(stages)]
    heapify(slowest)
    for _ in range(sum(gone) - failures):
        stage = slowest[0][1]
        if not gone[stage]:
            break
        gone[stage] -= 1
        heapreplace(slowest, (-loads.ticks(stage, gone[stage]), stage))
    return -slowest[0][0]


class ChangeRate:
    """Time until the next change of the job's workers; what was expected counts like one change seen."""

    def __init__(self, expected: float) -> None:
        self._expected = expected
        self._began: float | None = None
        self._changes = 0

    def begin(self, now: float) -> None:
        """Training goes on from here; said more than once, the first counts."""
        self._began = now if self._began is None else self._began

    def change(self) -> None:
        """Workers have failed or joined."""
        self._changes += 1

    def seconds(self, now: float) -> float:
        """On average, from any moment on."""
        watched = 0.0 if self._began is None else now - self._began
        return (self._expected + watched) / (1 + self._changes)


class CostOfMoves:
    """Costs of changes so far, and those expected next."""

    def __init__(self) -> None:
        self._regroups: list[float] = []
        self._rates: list[float] = []
        self.state_bytes: dict[int, int] = {}
        """Bytes of state of a worker of each stage, as its workers report them."""

    def regrouped(self, seconds: float, copying: float) -> None:
        """A change was made; of its time, so much went into copies."""
        self._regroups.append(max(0.0, seconds - copying))

    def copied(self, size: int, seconds: float) -> None:
        if size > 0 and seconds > 0:
            self._rates.append(size / seconds)

    @property
    def regroup(self) -> float:
        """Seconds of a change at a boundary, without copies."""
        return median(self._regroups[-9:]) if self._regroups else _REGROUP_SECONDS

    @property
    def rate(self) -> float:
        """Bytes a second of a copy."""
        return median(self._rates[-9:]) if self._rates else _BYTES_A_SECOND

    def of(self, moves: Moves) -> float:
        """Seconds without training. Stages copy at the same time, copies of one stage follow each other."""
        rate = self.rate
        copies: dict[int, float] = {}
        for _, stage in moves.values():
            copies[stage] = copies.get(stage, 0.0) + self.state_bytes.get(stage, 0) / rate
        return self.regroup + max(copies.values(), default=0.0)


def moves_text(moves: Moves) -> str:
    """`move 0:0 to 1:2`."""
    named = (f"{worker_text(worker)} to {worker_text(place)}" for worker, place in moves.items())
    return f"move {', '.join(named)}"


def _excess(more: Counts, less: Counts) -> list[tuple[int, int]]:
    return [(stage, max(0, a - b)) for stage, (a, b) in enumerate(zip(more, less, strict=True))]
