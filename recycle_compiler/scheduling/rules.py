"""The greedy rule that list scheduling follows, and its settings.

The rule is `backward first, then forward if memory allows, then W`. What varies:

- how far a worker runs ahead: 1F1B's depth, a little more, or all that memory holds;
- how many W it may put off before it takes another F;
- up to which depth F goes before backward. Where memory is full then, W goes before both, because only W
  makes room for F: a first stage that keeps running backwards would starve everyone below it;
- how long it waits for a better op that is on its way: long where there is time to spare, hardly on the
  stages that have none;
- whether the busiest stages run their last F in a burst, so that little but backwards is left at the end.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from recycle_compiler.scheduling.problem import Ints, Problem

NO_LIMIT = 1 << 40
_BUSY = 97
"""Stages with this percentage of the highest load have no time to spare."""


class GreedyRule(NamedTuple):
    """Settings of the greedy rule, one value per chunk."""

    limit: Ints
    """The most micro-batches between F and the end of backward."""
    defer: Ints
    """The most W put off when F is taken."""
    depth: Ints
    """F goes first while fewer micro-batches than this are between F and the end of backward."""
    patience: Ints
    """Longest wait for a better op, in percent of the op that could start now."""
    patience_at_end: Ints
    """The same, once all F of the worker have run."""
    burst: Ints
    """Number of a worker's last F that go before everything else."""


class RuleSetting(NamedTuple):
    """A rule in a few numbers."""

    ahead: int = NO_LIMIT
    """Micro-batches that a worker may run beyond 1F1B's depth, if memory allows."""
    defer: int = NO_LIMIT
    depth: tuple[int, int] = (-NO_LIMIT, -NO_LIMIT)
    """Micro-batches beyond 1F1B's depth until which F goes first: on the busiest stages, on the others."""
    patience: tuple[int, int] = (0, 0)
    """On the busiest stages, and on the others."""
    patience_at_end: int = 0
    """At least this."""
    burst: int = 0
    """In percent of what memory holds; on the busiest stages only."""
    last_first: bool = False
    """Among equals the last pipeline goes first, not the first."""


def rule_of(problem: Problem, setting: RuleSetting) -> GreedyRule:
    """The rule with these settings for every chunk."""
    depth = problem.chunks - np.arange(problem.chunks)
    most = holdable(problem)
    busy = _busy_chunks(problem)
    patience = np.where(busy, *setting.patience)
    return GreedyRule(
        limit=np.minimum(most, depth + setting.ahead),
        defer=np.full(problem.chunks, setting.defer),
        depth=depth + np.where(busy, *setting.depth),
        patience=patience,
        patience_at_end=np.maximum(patience, setting.patience_at_end),
        burst=np.where(busy, most * setting.burst // 100, 0),
    )


def small_rules(problem: Problem) -> Iterator[GreedyRule]:
    """A grid of rules for plans so small that trying one costs nothing, the most promising first."""
    depths = (NO_LIMIT, 0, 1, 2, 3, problem.chunks)
    for patience, defer, ahead in product((0, 100, 50), (NO_LIMIT, 0, 1, 2), depths):
        yield rule_of(problem, RuleSetting(ahead, defer, patience=(patience, patience)))


def free_rule(problem: Problem, patience: int) -> GreedyRule:
    """Nothing but memory holds a worker back."""
    return rule_of(problem, RuleSetting(patience=(patience, patience)))


def greedy_priority(problem: Problem, last_first: bool = False) -> Ints:
    """Backward before forward before W; in each, micro-batches in turn over the pipelines."""
    pipeline, turn = np.divmod(np.arange(problem.units), problem.microbatches)
    if last_first:
        turn = turn * problem.pipelines + problem.pipelines - 1 - pipeline
    priority = np.empty((3, problem.units, problem.chunks), dtype=np.int64)
    for kind, rank in ((1, 0), (0, 1), (2, 2)):
        priority[kind] = (rank * problem.units + turn)[:, None]
    return priority


def holdable(problem: Problem) -> Ints:
    """Number of activations of each chunk that its worker can hold."""
    return np.array([problem.holdable(chunk) for chunk in range(problem.chunks)], dtype=np.int64)


def _busy_chunks(problem: Problem) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Chunks whose workers have no time to spare."""
    if problem.slow:
        load = problem.load
        most = np.array([max(load[worker] for worker in hosts) for hosts in problem.pool_hosts])
    else:
        work = np.zeros(problem.pools, dtype=np.int64)
        times = (problem.forward, problem.backward, problem.weight)
        np.add.at(work, np.array(problem.pool), np.sum(times, axis=0))
        most = np.array(
            [
                -(-problem.units // len(hosts)) * each
                for hosts, each in zip(problem.pool_hosts, work.tolist(), strict=True)
            ]
        )
    return (100 * most >= _BUSY * most.max())[list(problem.pool)]
