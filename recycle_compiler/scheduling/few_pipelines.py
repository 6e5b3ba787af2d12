"""A few pipelines in place of all: a problem that is smaller, and so can be searched at length.

Peers are alike. Without failures, what is good for one pipeline is good for each; where 53 of 212 workers of
some stages have failed, 4 pipelines stand for all, of which one has failed on those stages:

    four pipelines, two failed    micro-batches of a turn on workers  0 1 0 1
    two pipelines, one failed                                         0 0

So a schedule of the smaller problem is one of the larger, in which every worker has as many others that do
the same at the same time. That takes live workers that are a multiple of the same number on every stage:
where they are nearly so, micro-batches meet others than those they were planned with, and what comes of it is
worse than rules. Pipelines that have failed need not divide: where 26 of 212 workers of each stage have
failed, one pipeline with 47 micro-batches stands for the 186 that are left, most of which have 47 and the
others 46, which is to leave one out.
"""

from dataclasses import replace
from math import gcd

import numpy as np

from recycle_compiler.ir.graph import Edges
from recycle_compiler.scheduling.budget import Sizes
from recycle_compiler.scheduling.problem import Ints, Problem, Tasks
from recycle_compiler.scheduling.routes import is_dealt_in_turn, numbers_in_turn

_TIMES_FEWER = 3
"""The smaller problem has so many times fewer ops at least."""


def few_pipelines(problem: Problem) -> Problem | None:
    """The problem with as few pipelines as stand for all of them, and some more if it would be tiny; None
    where peers differ, or it would not be much smaller."""
    if problem.has_more_edges or problem.opens or not is_dealt_in_turn(problem):
        return None
    copies = gcd(*map(len, problem.hosts))
    enough = [few for few in range(1, copies + 1) if copies % few == 0 and few * _TIMES_FEWER <= copies]
    if not enough:
        return None
    large = (few for few in enough if problem.ops * few >= Sizes.COMPILED * copies)
    return _reduced(problem, copies // next(large, enough[-1]))


def _reduced(problem: Problem, times: int) -> Problem:
    """The problem with so many times fewer workers."""
    chunks, pipelines, microbatches = problem.chunks, problem.pipelines // times, problem.microbatches
    if problem.pipelines % times:
        pipelines, microbatches = -(-problem.units // times), 1
    units = pipelines * microbatches
    live = np.array([len(workers) // times for workers in problem.hosts], dtype=np.int64)
    turn = numbers_in_turn(pipelines, microbatches)
    host = np.arange(chunks) * pipelines + turn[:, None] % live
    lasts, takes, frees = (
        column.reshape(3, problem.units, chunks)[:, :units].ravel() for column in problem.tasks[1:4]
    )
    return replace(
        problem,
        pipelines=pipelines,
        microbatches=microbatches,
        hosts=tuple(
            tuple(range(chunk * pipelines, chunk * pipelines + count))
            for chunk, count in enumerate(live.tolist())
        ),
        pool=tuple(range(chunks)),
        worker_capacity=tuple(room for room in problem.capacity for _ in range(pipelines)),
        tasks=Tasks(
            np.tile(host.ravel(), 3), lasts, takes, frees, _of_first(problem, problem.tasks.edges, units)
        ),
        late=np.zeros(chunks * pipelines, dtype=np.int64),
    )


def _of_first(problem: Problem, edges: Edges, some: int) -> Edges:
    """Those between the first micro-batches, numbered as if there were no others."""
    chunks, units = problem.chunks, problem.units

    def renumbered(ops: Ints) -> tuple[Ints, Ints]:
        kind, rest = np.divmod(ops, units * chunks)
        unit, chunk = np.divmod(rest, chunks)
        return unit, (kind * some + unit) * chunks + chunk

    unit_before, before = renumbered(edges.before)
    unit_after, after = renumbered(edges.after)
    kept = (unit_before < some) & (unit_after < some)
    return Edges(before[kept], after[kept], edges.lag[kept])


def lifted(problem: Problem, few: Problem, start: Ints) -> Ints:
    """start[kind, unit, chunk]: the times of a few pipelines, for all of them in the order in which they are
    dealt out."""
    times = len(problem.hosts[0]) // len(few.hosts[0])
    number = numbers_in_turn(problem.pipelines, problem.microbatches)
    turn, pipeline = np.divmod(number // times, few.pipelines)
    return start[:, pipeline * few.microbatches + turn]
