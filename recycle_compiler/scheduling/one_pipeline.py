"""One pipeline in place of all: a problem that is smaller by their number, and so can be searched at length.

Pipelines that have all their workers are alike: what is good for one is good for each. Where a stage has lost
workers, the others have more to do. Here its ops take longer in that measure, and its memory is smaller:

    stage of 4, one failed    F |--|    here  |---|    memory 8    here  6

The period of such a schedule is neither a bound nor a promise, since whole micro-batches have to be dealt
out. But its times, as priorities for the micro-batches of all pipelines, are a good beginning.
"""

from dataclasses import replace

import numpy as np

from recycle_compiler.ir.graph import Edges
from recycle_compiler.scheduling.problem import UNLIMITED, Ints, Problem, Tasks
from recycle_compiler.scheduling.routes import is_dealt_in_turn


def one_pipeline(problem: Problem) -> Problem | None:
    """The problem of one of its pipelines; None where they differ, or a stage has too little memory."""
    if problem.pipelines == 1 or problem.has_more_edges or problem.opens or not is_dealt_in_turn(problem):
        return None
    chunks, turns, pipelines = problem.chunks, problem.microbatches, problem.pipelines
    live = np.array([len(workers) for workers in problem.hosts], dtype=np.int64)
    capacity = tuple(
        room if room == UNLIMITED else room * len(workers) // pipelines
        for room, workers in zip(problem.capacity, problem.hosts, strict=True)
    )
    needs = zip(capacity, problem.activation, strict=True)
    if any(room != UNLIMITED and room < activation for room, activation in needs):
        return None
    tasks = problem.tasks
    # The micro-batches of the first pipeline.
    kinds = [column.reshape(3, problem.units, chunks)[:, :turns] for column in tasks[1:4]]
    duration = -(-kinds[0] * pipelines // live)
    worker = np.broadcast_to(np.arange(chunks, dtype=np.int64), duration.shape)
    edges = _of_first(problem, tasks.edges)
    of_worker, lasts, takes, frees = (column.ravel().copy() for column in (worker, duration, *kinds[1:]))
    forward, backward, weight = (tuple(map(int, row)) for row in duration[:, 0])
    times = (*np.unique(duration).tolist(), *np.unique(edges.lag).tolist(), *problem.finish)
    return replace(
        problem,
        pipelines=1,
        forward=forward,
        backward=backward,
        weight=weight,
        hosts=tuple((chunk,) for chunk in range(chunks)),
        pool=tuple(range(chunks)),
        capacity=capacity,
        worker_capacity=capacity,
        tasks=Tasks(of_worker, lasts, takes, frees, edges),
        late=np.zeros(chunks, dtype=np.int64),
        grain=max(1, int(np.gcd.reduce(np.array(times, dtype=np.int64)))),
    )


def _of_first(problem: Problem, edges: Edges) -> Edges:
    """Those between micro-batches of the first pipeline, which have the first numbers, as it numbers ops."""
    chunks, units, turns = problem.chunks, problem.units, problem.microbatches

    def renumbered(ops: Ints) -> tuple[Ints, Ints]:
        kind, rest = np.divmod(ops, units * chunks)
        unit, chunk = np.divmod(rest, chunks)
        return unit, (kind * turns + unit) * chunks + chunk

    unit_before, before = renumbered(edges.before)
    unit_after, after = renumbered(edges.after)
    kept = (unit_before < turns) & (unit_after < turns)
    return Edges(before[kept], after[kept], edges.lag[kept])


def lifted(problem: Problem, start: Ints) -> Ints:
    """priority[kind, unit, chunk]: the times of one pipeline, for each of them."""
    return start[:, np.arange(problem.units) % problem.microbatches]
