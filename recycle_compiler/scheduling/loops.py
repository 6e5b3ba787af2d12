"""The inner loops, set up for one problem: flat arrays, scratch space, and plain or compiled functions."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from recycle_compiler.compiled import compile_function
from recycle_compiler.scheduling import kernel
from recycle_compiler.scheduling.kernel import Ints
from recycle_compiler.scheduling.neighbours import swap_neighbours
from recycle_compiler.scheduling.problem import Problem
from recycle_compiler.scheduling.rules import Rule
from recycle_compiler.scheduling.sweeps import earliest_times, latest_times

LARGE = 1_000
"""Ops from which on the loops are compiled: below, loading the compiler takes longer than it saves."""


class Where(NamedTuple):
    """Which neighbours may be swapped."""

    first_stage: int
    last_stage: int
    since: int = 0
    """Only ops that start from then on."""
    gain: int = 0
    """What a swap has to bring, in ticks."""
    odds: int = 100
    """In percent: how many of those that could be swapped are."""
    seed: int = 1
    """Which of them."""


class Loops:
    """What the loops need to know about a problem, in the form they run fastest on."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._compiled = problem.ops >= LARGE
        self._functions = _compiled() if self._compiled else _LOOPS
        units, stages, pipelines = problem.units, problem.stages, problem.pipelines
        self.span = units * stages
        self.workers = stages * pipelines
        times = problem.times.reshape(3, self.workers)
        runs_on = problem.host.ravel()
        self.duration = times[:, runs_on].ravel()
        late = problem.finishes - np.array(problem.finish, dtype=np.int64)[:, None]
        self.late = late.ravel() if problem.staggered else np.zeros(self.workers, dtype=np.int64)
        """By how much longer than its stage each worker takes to reduce and step."""
        hosted = np.bincount(runs_on, minlength=self.workers)
        split = np.array(problem.split, dtype=np.int64)
        self._length = hosted * np.repeat(2 + split, pipelines)
        most = int(hosted.max())
        self.width = 3 * most
        self._stage_of, self._times, self._transfer, self._runs_on, self._split, self._hosted = map(
            self._native,
            (
                np.repeat(np.arange(stages), pipelines),
                times.ravel(),
                np.array(problem.transfer, dtype=np.int64),
                runs_on,
                split,
                hosted,
            ),
        )
        self._memory = tuple(
            self._native(np.array(column, dtype=np.int64))
            for column in (problem.activation, problem.kept, problem.capacity)
        )
        self._most = most
        self._queues = tuple(self._scratch(3 * self.workers * most) for _ in range(3))

    @property
    def unopened(self) -> Ints:
        """Releases of stages that hold nobody back."""
        return np.full(self.problem.stages, -max(0, int(self.late.max())), dtype=np.int64)

    def place(self, priority: Ints, rule: Rule) -> Ints:
        """The order that list scheduling finds: one row per worker, -1 after its last op."""
        return self.schedule(priority, rule)[0]

    def schedule(self, priority: Ints, rule: Rule) -> tuple[Ints, Ints, Ints]:
        """The order that list scheduling finds, the end of every op there, and of every worker.

        An op may end later than the order needs: its worker may have waited for one that then came later.
        """
        problem = self.problem
        order = self._scratch(self.workers * self.width, -1)
        end = self._scratch(3 * self.span, -1)
        placed, busy_until, held, in_flight, entered = (self._scratch(self.workers) for _ in range(5))
        total = self._functions[0](
            problem.stages,
            problem.pipelines,
            problem.units,
            self.width,
            self._most,
            self._stage_of,
            self._times,
            self._transfer,
            self._runs_on,
            self._split,
            *self._memory,
            self._native(priority.ravel()),
            self._native(priority.min(axis=(1, 2))),
            *map(self._native, rule),
            self._hosted,
            *self._first_forwards(priority),
            *self._queues,
            self._scratch(3 * self.workers),
            order,
            end,
            placed,
            busy_until,
            held,
            in_flight,
            entered,
            self._no_events(),
        )
        assert total == problem.ops, f"list scheduling placed {total} of {problem.ops} ops"
        return _array(order), _array(end), _array(busy_until)

    def _no_events(self) -> Any:
        """A heap, or a tree with a leaf for every worker, in which nothing happens."""
        if not self._compiled:
            return [kernel.NEVER]
        leaves = 1 << self.workers.bit_length()
        tree = np.arange(2 * leaves, dtype=np.int64) % leaves + kernel.NEVER
        tree[0] = leaves
        return tree

    def _first_forwards(self, priority: Ints) -> tuple[Any, Any]:
        """The F of the first stage in the order that its workers take them, and where each worker's begin."""
        host = self.problem.host[:, 0]
        units = np.lexsort((priority[0, :, 0], host))
        limits = np.searchsorted(host[units], np.arange(self.problem.pipelines + 1))
        entering = np.full(len(units) + self.problem.pipelines, -1, dtype=np.int64)
        entering[np.arange(len(units)) + host[units]] = units * self.problem.stages
        return self._native(entering), self._native(limits[:-1] + np.arange(self.problem.pipelines))

    def earliest(self, order: Ints, release: Ints) -> Ints:
        """The earliest end of every op, -1 where there is none; stages open at their release.

        A worker that takes longer to step than its peers comes later by that much.
        """
        timed = self.timed(order, release)
        assert timed is not None, "the orders of some workers wait for each other"
        return timed[0]

    def timed(self, order: Ints, release: Ints) -> tuple[Ints, Ints] | None:
        """The earliest end of every op and of every worker; None if the orders wait for each other."""
        problem = self.problem
        end = self._scratch(3 * self.span, -1)
        free = self._native(np.maximum(np.repeat(release, problem.pipelines) + self.late, 0))
        timed = self._functions[1](
            problem.stages,
            self.workers,
            self.width,
            self.span,
            self._stage_of,
            self._times,
            self._transfer,
            self._runs_on,
            self._native(order),
            free,
            end,
            self._native(np.arange(self.workers, dtype=np.int64) * self.width),
            self._native(np.arange(self.workers - 1, -1, -1, dtype=np.int64)),
            self._scratch(self.workers, 1),
        )
        if timed < problem.ops:
            return None
        return _array(end), _array(free)

    def latest(self, order: Ints, deadline: Ints) -> tuple[Ints, Ints]:
        """The latest start of every op under the stages' deadlines, and its latest end.

        The latest end ignores what its worker does next.
        """
        due = self._scratch(3 * self.span, kernel.FAR)
        late = self._scratch(3 * self.span, kernel.FAR)
        timed = self._functions[2](
            self.problem.stages,
            self.workers,
            self.width,
            self.span,
            self._stage_of,
            self._times,
            self._transfer,
            self._runs_on,
            self._split,
            self._native(order),
            self._native(deadline),
            due,
            late,
            self._native(np.arange(self.workers, dtype=np.int64) * self.width + self._length - 1),
            self._native(np.arange(self.workers, dtype=np.int64)),
            self._scratch(self.workers, 1),
        )
        assert timed == self.problem.ops, "the orders of some workers wait for each other"
        return _array(late), _array(due)

    def swapped(self, order: Ints, times: tuple[Ints, Ints, Ints], where: Where) -> Ints | None:
        """The order with some neighbours swapped; `times` are ends, latest ends and latest starts."""
        problem = self.problem
        changed = self._native(order.copy())
        swaps = self._functions[3](
            problem.stages,
            problem.pipelines,
            problem.units,
            self.width,
            self._times,
            self._transfer,
            *self._memory,
            *map(self._native, times),
            *where,
            changed,
        )
        return _array(changed) if swaps > 0 else None

    def _native(self, values: Ints) -> Any:
        return values if self._compiled else values.tolist()

    def _scratch(self, size: int, fill: int = 0) -> Any:
        return np.full(size, fill, dtype=np.int64) if self._compiled else [fill] * size


def _array(values: Any) -> Ints:
    return np.asarray(values, dtype=np.int64)


@cache
def _compiled() -> tuple[Any, ...]:
    heap = {
        "heappush": compile_function(kernel.tree_push),
        "heappop": compile_function(kernel.tree_pop),
    }
    return tuple(compile_function(loop, **heap) for loop in _LOOPS)


_LOOPS: tuple[Any, ...] = (
    kernel.list_schedule,
    earliest_times,
    latest_times,
    swap_neighbours,
)
