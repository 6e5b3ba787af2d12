"""The inner loops, set up for one problem: flat arrays, scratch space, and plain or compiled functions."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from recycle_compiler.compiled import compile_function
from recycle_compiler.passes.assign_slots import kernel
from recycle_compiler.passes.assign_slots.kernel import Ints
from recycle_compiler.passes.assign_slots.neighbours import swap_neighbours
from recycle_compiler.passes.assign_slots.problem import Problem
from recycle_compiler.passes.assign_slots.rules import Rule

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
        units, stages = problem.units, problem.stages
        self.span = units * stages
        self.workers = stages * problem.pipelines
        times = np.array([problem.forward, problem.backward, problem.weight], dtype=np.int64)
        self.duration = np.repeat(times[:, None, :], units, axis=1).ravel()
        self._feeds, self._needs, self._lag, self._wakes = _links(problem)
        hosted = np.bincount(
            (problem.host + np.arange(stages) * problem.pipelines).ravel(), minlength=self.workers
        )
        self._hosted = self._native(hosted)
        self._stage_of = self._native(np.repeat(np.arange(stages), problem.pipelines))
        self.width = 3 * int(hosted.max())
        self._static = tuple(
            map(self._native, (self.duration, self._feeds, self._needs, self._lag, self._wakes))
        )
        self._split = self._native(np.array(problem.split, dtype=np.int64))
        self._memory = tuple(
            self._native(np.array(column, dtype=np.int64))
            for column in (problem.activation, problem.kept, problem.capacity)
        )

    def place(self, priority: Ints, rule: Rule) -> Ints:
        """The order that list scheduling finds: one row per worker, -1 after its last op."""
        problem = self.problem
        duration, feeds, _, lag, wakes = self._static
        order = self._scratch(self.workers * self.width, -1)
        placed = self._functions[0](
            problem.stages,
            problem.pipelines,
            problem.units,
            self.width,
            self._stage_of,
            duration,
            feeds,
            lag,
            wakes,
            self._split,
            *self._memory,
            self._native(priority.ravel()),
            self._native(priority.min(axis=(1, 2))),
            *map(self._native, rule),
            self._hosted,
            *self._first_forwards(priority),
            self._scratch(3 * self.workers * self.width),
            self._scratch(3 * self.workers),
            self._scratch(3 * self.span),
            order,
            *(self._scratch(self.workers) for _ in range(5)),
            np.zeros(2 * problem.ops + self.workers, dtype=np.int64) if self._compiled else [],
        )
        assert placed == problem.ops, f"list scheduling placed {placed} of {problem.ops} ops"
        return np.array(order, dtype=np.int64)

    def _first_forwards(self, priority: Ints) -> tuple[Any, Any]:
        """The F of the first stage in the order that its workers take them, and where each worker's begin."""
        host = self.problem.host[:, 0]
        units = np.lexsort((priority[0, :, 0], host))
        limits = np.searchsorted(host[units], np.arange(self.problem.pipelines + 1))
        return self._native(units * self.problem.stages), self._native(limits)

    def earliest(self, order: Ints, release: Ints) -> Ints:
        """The earliest end of every op, -1 where there is none; stages open at their release."""
        timed = self.in_sequence(order, release)
        assert timed is not None, "the orders of some workers wait for each other"
        return timed[0]

    def in_sequence(self, order: Ints, release: Ints) -> tuple[Ints, Ints] | None:
        """The earliest end of every op, and the ops, each after what it waits for; None if in a circle."""
        duration, feeds, needs, lag, wakes = self._static
        end = self._scratch(3 * self.span, -1)
        sequence = self._scratch(self.problem.ops)
        timed = self._functions[1](
            self.workers,
            self.width,
            duration,
            needs,
            feeds,
            lag,
            wakes,
            self._native(order),
            self._native(np.repeat(release, self.problem.pipelines)),
            end,
            sequence,
            self._native(np.arange(self.workers, dtype=np.int64) * self.width),
            self._native(np.arange(self.workers - 1, -1, -1, dtype=np.int64)),
            self._scratch(self.workers, 1),
        )
        if timed < self.problem.ops:
            return None
        return np.array(end, dtype=np.int64), np.array(sequence, dtype=np.int64)

    def latest(self, order: Ints, sequence: Ints, deadline: Ints) -> tuple[Ints, Ints]:
        """The latest start of every op under the stages' deadlines, and its latest end.

        The sequence has each op after what it waits for. The latest end ignores what its worker does next.
        """
        duration, feeds, _, lag, _ = self._static
        due = self._scratch(3 * self.span, kernel.FAR)
        late = self._scratch(3 * self.span, kernel.FAR)
        self._functions[2](
            self.workers,
            self.width,
            self.span,
            duration,
            feeds,
            lag,
            self._split,
            self._native(order),
            self._native(sequence),
            self._native(deadline),
            self._scratch(3 * self.span, -1),
            due,
            late,
        )
        return np.array(late, dtype=np.int64), np.array(due, dtype=np.int64)

    def swapped(self, order: Ints, times: tuple[Ints, Ints, Ints], where: Where) -> Ints | None:
        """The order with some neighbours swapped; `times` are ends, latest ends and latest starts."""
        problem = self.problem
        duration, feeds, needs, lag, _ = self._static
        changed = self._native(order.copy())
        swaps = self._functions[3](
            problem.stages,
            problem.pipelines,
            problem.units,
            self.width,
            duration,
            needs,
            feeds,
            lag,
            *self._memory,
            *map(self._native, times),
            *where,
            changed,
        )
        return np.array(changed, dtype=np.int64) if swaps > 0 else None

    def _native(self, values: Ints) -> Any:
        return values if self._compiled else values.tolist()

    def _scratch(self, size: int, fill: int = 0) -> Any:
        return np.full(size, fill, dtype=np.int64) if self._compiled else [fill] * size


def _links(problem: Problem) -> tuple[Ints, Ints, Ints, Ints]:
    """For every op: the op it feeds, the op it needs, the lag to the one it feeds, and that one's worker."""
    units, stages = problem.units, problem.stages
    shape = (3, units, stages)
    number = np.arange(3 * units * stages).reshape(shape)
    feeds, needs, wakes = (np.full(shape, -1) for _ in range(3))
    lag = np.zeros(shape, dtype=np.int64)
    worker = problem.host + np.arange(stages) * problem.pipelines
    transfer = np.array(problem.transfer, dtype=np.int64)
    feeds[0, :, :-1], lag[0, :, :-1], wakes[0, :, :-1] = number[0, :, 1:], transfer, worker[:, 1:]
    feeds[0, :, -1], wakes[0, :, -1] = number[1, :, -1], worker[:, -1]
    feeds[1, :, 1:], lag[1, :, 1:], wakes[1, :, 1:] = number[1, :, :-1], transfer, worker[:, :-1]
    needs[0, :, 1:], needs[1, :, -1], needs[1, :, :-1] = number[0, :, :-1], number[0, :, -1], number[1, :, 1:]
    needs[2] = number[1]
    return feeds.ravel(), needs.ravel(), lag.ravel(), wakes.ravel()


@cache
def _compiled() -> tuple[Any, ...]:
    heap = {
        "heappush": compile_function(kernel.array_push),
        "heappop": compile_function(kernel.array_pop),
    }
    return tuple(compile_function(loop, **heap) for loop in _LOOPS)


_LOOPS: tuple[Any, ...] = (
    kernel.list_schedule,
    kernel.earliest_times,
    kernel.latest_times,
    swap_neighbours,
)
