"""A problem backwards in time: how its iteration ends, planned as carefully as it begins.

List scheduling looks ahead by an op at most. It fills the beginning of an iteration well and comes to its end
by chance: too few W are left there, and backwards arrive one by one where they should come in a wave. What is
a good end is easy to see backwards in time, where an end is a beginning:

    forwards     F down the chunks, backwards up, W after its backward; F takes memory, W gives it back
    backwards    W takes memory, backwards go down the chunks once W is there, F comes up and gives it back

So the ops of a schedule are placed backwards in time, those that end last first. That moves each of them as
near to the end as others allow, and what comes of it are the priorities with which ops are placed forwards
again. Projects with scarce resources are planned like that, where it is called justification.
"""

from dataclasses import replace

import numpy as np

from recycle_compiler.ir.graph import Edges
from recycle_compiler.scheduling.loops import Loops
from recycle_compiler.scheduling.problem import Ints, Problem, Tasks
from recycle_compiler.scheduling.rules import free_rule


class Mirror:
    """A problem backwards in time."""

    def __init__(self, problem: Problem, deadlines: Ints) -> None:
        """Pools open, backwards in time, at their deadlines."""
        self._problem = _mirrored(problem, deadlines)
        self._loops = Loops(self._problem)

    def pushed_back(self, end: Ints, patience: int) -> Ints | None:
        """start[kind, unit, chunk] of the ops that end then, placed backwards in time with this patience;
        None if there is no way on."""
        shape = (3, self._problem.units, self._problem.chunks)
        priority = (int(end.max()) - end).reshape(shape)[::-1].copy()
        found = self._loops.schedule(priority, free_rule(self._problem, patience))
        if found is None:
            return None
        starts = found[1].reshape(shape)[::-1]
        return int(starts.max()) - starts


def can_be_mirrored(problem: Problem) -> bool:
    """True where every micro-batch has a W on every chunk, and no pool has to wait."""
    return all(problem.split) and not problem.opens


def _mirrored(problem: Problem, deadlines: Ints) -> Problem:
    """Kinds and edges the other way round. All memory is taken at once, by the W."""
    worker, duration, takes, _, edges = problem.tasks
    size = len(duration) // 3
    whole, nothing = takes.reshape(3, size).sum(axis=0), np.zeros(2 * size, dtype=np.int64)

    def other(op: Ints) -> Ints:
        return (2 - op // size) * size + op % size

    tasks = Tasks(
        worker,
        duration.reshape(3, size)[::-1].ravel(),
        np.concatenate([whole, nothing]),
        np.concatenate([nothing, whole]),
        Edges(other(edges.after), other(edges.before), edges.lag),
    )
    opens = tuple((deadlines.max() - deadlines).tolist())
    return replace(problem, forward=problem.weight, weight=problem.forward, tasks=tasks, opens=opens)
