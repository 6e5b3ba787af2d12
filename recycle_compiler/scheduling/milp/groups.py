"""Preparation of the MILP: groups of micro-batches, and where their ops can lie.

Time is counted in grains of the problem. A target period leaves every op a span of grains to start in; where
one is empty, no schedule meets the target.
"""

from dataclasses import dataclass
from typing import NamedTuple

from recycle_compiler.scheduling.problem import Problem

FORWARD, BACKWARD, WEIGHT = range(3)


class GrainSpan(NamedTuple):
    """Grains, both ends included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Groups:
    """Micro-batches that are counted together."""

    units: tuple[tuple[int, ...], ...]
    """Of each group, its micro-batches in the order that they keep."""
    route: tuple[tuple[int, ...], ...]
    """Of each group, the worker that it visits on each stage."""
    pooled: tuple[int, ...]
    """For each stage, how many live workers one worker of the model stands for."""

    def workers(self, stage: int) -> tuple[int, ...]:
        return tuple(sorted({route[stage] for route in self.route}))

    def visitors(self, stage: int, worker: int) -> tuple[int, ...]:
        """The groups that a worker runs."""
        return tuple(group for group, route in enumerate(self.route) if route[stage] == worker)

    def share(self, stage: int) -> int:
        """Micro-batches that some live worker of the stage must run at least."""
        loads: dict[int, int] = {}
        for units, route in zip(self.units, self.route, strict=True):
            loads[route[stage]] = loads.get(route[stage], 0) + len(units)
        return -(-max(loads.values()) // self.pooled[stage])


def groups_by_route(problem: Problem) -> Groups:
    """One group for each route that the problem prescribes."""
    units: dict[tuple[int, ...], list[int]] = {}
    for unit, route in enumerate(problem.host.tolist()):
        units.setdefault(tuple(route), []).append(unit)
    routes = tuple(sorted(units))
    return Groups(tuple(tuple(units[route]) for route in routes), routes, (1,) * problem.chunks)


def pooled_group(problem: Problem) -> Groups:
    """All micro-batches in one group, whatever their routes."""
    live = tuple(len(hosts) for hosts in problem.hosts)
    return Groups((tuple(range(problem.units)),), ((0,) * problem.chunks,), live)


@dataclass(frozen=True, slots=True)
class GrainTimes:
    """Times in grains for one target period."""

    duration: tuple[tuple[int, int, int], ...]
    """duration[stage][kind]"""
    transfer: tuple[int, ...]
    kinds: tuple[tuple[int, ...], ...]
    """kinds[stage]: without WEIGHT where the stage is not split."""
    length: tuple[int, ...]
    """Of each stage's window: what reduction and optimizer leave of the target."""
    opening: tuple[GrainSpan, ...]
    """Grains in which the window of each stage can open; always at 0 unless staggered."""
    spans: tuple[tuple[GrainSpan, ...], ...]
    """spans[stage][kind]: when ops can start."""

    @property
    def is_empty(self) -> bool:
        """True if something has no grain left."""
        spans = (*self.opening, *(span for stage in self.spans for span in stage))
        return any(span.last < span.first for span in spans)

    @property
    def counts(self) -> int:
        """Number of counts that the model has for each group: its size."""
        return sum(max(0, span.last - span.first) for stage in self.spans for span in stage)


def lay_out_groups(problem: Problem, groups: Groups, target: int) -> GrainTimes:
    """Spans for a target period in grains."""
    grain = problem.grain
    times = zip(problem.forward, problem.backward, problem.weight, strict=True)
    duration = tuple((f // grain, b // grain, w // grain) for f, b, w in times)
    transfer = tuple(ticks // grain for ticks in problem.transfer)
    finish = problem.finish if problem.staggered else (max(problem.finish),) * problem.chunks
    length = tuple(target - ticks // grain for ticks in finish)
    opening: list[GrainSpan] = []
    spans: list[tuple[GrainSpan, ...]] = []
    for stage in range(problem.chunks):
        arrival = sum(duration[above][FORWARD] + transfer[above] for above in range(stage))
        turn = duration[stage][FORWARD] + _round_trip(duration, transfer, stage)
        last_end = _last_backward_end(problem, duration, transfer, length, stage)
        opens = GrainSpan(0, 0)
        if problem.staggered and stage > 0:
            # Between the opening and the last backward some worker runs its whole share of F and backwards.
            work = groups.share(stage) * (duration[stage][FORWARD] + duration[stage][BACKWARD])
            turn_and_back = turn + duration[stage][BACKWARD]
            opens = GrainSpan(arrival, last_end - max(work, turn_and_back))
        closes = opens.last + length[stage]
        last = min(last_end, closes - duration[stage][WEIGHT]) - duration[stage][BACKWARD]
        forward = GrainSpan(arrival, last - turn)
        backward = GrainSpan(arrival + turn, last)
        weight = GrainSpan(backward.first + duration[stage][BACKWARD], closes - duration[stage][WEIGHT])
        opening.append(opens)
        spans.append((forward, backward, weight) if problem.split[stage] else (forward, backward))
    kinds = tuple((FORWARD, BACKWARD, WEIGHT) if split else (FORWARD, BACKWARD) for split in problem.split)
    return GrainTimes(duration, transfer, kinds, length, tuple(opening), tuple(spans))


def _round_trip(duration: tuple[tuple[int, int, int], ...], transfer: tuple[int, ...], stage: int) -> int:
    """From the end of F on this stage to the earliest start of its backward."""
    return sum(f + b for f, b, _ in duration[stage + 1 :]) + 2 * sum(transfer[stage:])


def _last_backward_end(
    problem: Problem,
    duration: tuple[tuple[int, int, int], ...],
    transfer: tuple[int, ...],
    length: tuple[int, ...],
    stage: int,
) -> int:
    """Later, and an earlier stage could not close in time; staggered, only the first has a known place."""
    ends: list[int] = []
    for first in range(1 if problem.staggered else stage + 1):
        way_up = sum(duration[above][BACKWARD] + transfer[above] for above in range(first, stage))
        ends.append(length[first] - duration[first][WEIGHT] - way_up)
    return min(ends)
