"""Bounds of whole graphs: chunks that share workers, chunks that reduce together, and paths.

Where a worker holds several chunks, every bound of one chunk still holds: forget the others, and any schedule
is one of a job in which each chunk has such workers for itself, with its window from its own first F on.
Their load together comes on top. Edges that were added to the graph only take schedules away, so all bounds
stay, and the longest path through them is one more.
"""

from graphlib import TopologicalSorter
from itertools import combinations

import numpy as np

from recycle_compiler.scheduling.bounds.bound import Bound, share_of, times_of
from recycle_compiler.scheduling.inner_loops import FAR
from recycle_compiler.scheduling.problem import Problem
from recycle_compiler.scheduling.ways import head


def shared_bounds(problem: Problem) -> list[Bound]:
    """The load of workers that hold several chunks: all their work, and what all their chunks take to end."""
    bounds: list[Bound] = []
    for pool, workers in enumerate(problem.pool_hosts):
        chunks = [chunk for chunk in range(problem.chunks) if problem.pool[chunk] == pool]
        if len(chunks) == 1:
            continue
        each = sum(sum(times_of(problem, c)) for c in chunks)
        busy = -(-problem.units * each // len(workers))
        if problem.staggered:
            period = busy + problem.pool_finish[pool]
        else:
            period = head(problem, 0, chunks[0]) + busy + problem.closing
        bounds.append(Bound(period, f"load of the workers with chunks {', '.join(map(str, chunks))}"))
    return bounds + tied_bounds(problem)


def tied_bounds(problem: Problem) -> list[Bound]:
    """Of chunks that reduce together: the first is open until the work of the others is done.

    Some worker of a later one has an even share of all micro-batches, and cannot begin before one of them has
    come all the way from the first.
    """
    window = [problem.window[pool] for pool in problem.pool]
    pairs = combinations(range(problem.chunks), 2) if problem.is_tied else ()
    bounds: list[Bound] = []
    for first, later in pairs:
        if window[first] == window[later]:
            share = share_of(problem, later)
            busy = head(problem, first, later) + share * sum(times_of(problem, later))
            bounds.append(Bound(busy + problem.finish[first], f"stage {first}, tied to stage {later}"))
    return bounds


def path_bound(problem: Problem) -> Bound:
    """The longest path through the edges of the graph between two ops of one window.

    A window is open from the start of the first of them at the latest, and closes no sooner than the end of
    the second and of its chunk's reduction and step.
    """
    before, after, lag = problem.tasks.edges
    size = len(problem.tasks.duration)
    # Tied pools open on their own, so a path between two of them says nothing about either.
    pools = np.arange(problem.pools) if problem.is_tied else np.array(problem.window)
    window = pools[list(problem.pool)][np.arange(size) % problem.chunks]
    # [op, window]: the longest path to the op's start from the start of an op of the window.
    length = np.full((size, int(window.max()) + 1), -FAR, dtype=np.int64)
    length[np.arange(size), window] = 0
    into: dict[int, list[tuple[int, int]]] = {}
    for first, then, ticks in zip(before.tolist(), after.tolist(), lag.tolist(), strict=True):
        into.setdefault(then, []).append((first, ticks))
    duration = problem.tasks.duration
    sorter = TopologicalSorter({then: [first for first, _ in edges] for then, edges in into.items()})
    for then in sorter.static_order():
        for first, ticks in into.get(then, ()):
            np.maximum(length[then], length[first] + duration[first] + ticks, out=length[then])
    ends = length[np.arange(size), window] + duration
    ends += np.array(problem.finish)[np.arange(size) % problem.chunks]
    if not problem.staggered:
        ends += problem.closing - np.array(problem.finish)[np.arange(size) % problem.chunks]
    longest = int(ends.max())
    return Bound(-(-longest // problem.grain) * problem.grain, "the longest path through the graph")
