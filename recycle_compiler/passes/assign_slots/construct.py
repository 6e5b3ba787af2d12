"""First schedules: one greedy rule with a few settings, tried in turn.

The rule is `backward first, then forward if memory allows, then W`. What varies is how far a worker runs
ahead (1F1B's depth, a little more, or all that memory holds), how many W it puts off, and whether it waits
a moment for a better op.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from recycle_compiler.passes.assign_slots.deadline import Deadline
from recycle_compiler.passes.assign_slots.kernel import Ints
from recycle_compiler.passes.assign_slots.problem import UNLIMITED, Problem
from recycle_compiler.passes.assign_slots.timing import Clock, Timed

NO_LIMIT = 1 << 40


class Rule(NamedTuple):
    """Settings of the greedy rule."""

    limit: Ints
    defer: Ints
    patience: int


def rules(problem: Problem) -> Iterator[Rule]:
    """All settings, the most promising first."""
    stages = np.arange(problem.stages)
    depths = (NO_LIMIT, 0, 1, 2, 3, problem.stages)
    for patience, defer, extra in product((0, 100, 50), (NO_LIMIT, 0, 1, 2), depths):
        limit = np.minimum(holdable(problem), problem.stages - stages + extra)
        yield Rule(limit, np.full(problem.stages, defer, dtype=np.int64), patience)


def free_rule(problem: Problem, patience: int) -> Rule:
    """Nothing but memory holds a worker back."""
    return Rule(holdable(problem), np.full(problem.stages, NO_LIMIT, dtype=np.int64), patience)


def greedy_priority(problem: Problem) -> Ints:
    """Backward before forward before W; in each, micro-batches in turn over the pipelines."""
    turn = np.arange(problem.units) % problem.microbatches
    priority = np.empty((3, problem.units, problem.stages), dtype=np.int64)
    for kind, rank in ((1, 0), (0, 1), (2, 2)):
        priority[kind] = (rank * problem.microbatches + turn)[:, None]
    return priority


def construct(clock: Clock, bound: int, tries: int, deadline: Deadline) -> list[Timed]:
    """Schedules from the first `tries` rules, best first; stops when one meets the bound."""
    problem = clock.problem
    priority = greedy_priority(problem)
    found: list[Timed] = []
    seen: set[bytes] = set()
    for _, rule in zip(range(tries), rules(problem), strict=False):
        if found and deadline.passed():
            break
        order = clock.loops.place(priority, *rule)
        if order.tobytes() in seen:
            continue
        seen.add(order.tobytes())
        timed = clock.time(order)
        assert timed is not None
        found.append(timed)
        if timed.period <= bound:
            break
    return sorted(found, key=lambda timed: timed.rank)


def holdable(problem: Problem) -> Ints:
    """How many activations a worker of each stage can hold."""
    amounts = zip(problem.capacity, problem.activation, strict=True)
    most = [problem.units if c == UNLIMITED or a == 0 else c // a for c, a in amounts]
    return np.array(most, dtype=np.int64)
