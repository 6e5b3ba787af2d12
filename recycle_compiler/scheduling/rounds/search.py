"""The search for a plan in rounds: list schedules under many rules, for rounds of several sizes.

Rounds have as many micro-batches as the chunk has workers, which makes them fewest. But a full round of many
workers waits for several rounds of a chunk with fewer, so on chunks that have time to spare the first rounds
and the last may be smaller. Where memory is too small for that, all chunks have rounds of one size: what the
stage with fewest workers can take. Such a plan is that of one pipeline, which can go on with any memory.
"""

from collections.abc import Iterator
from itertools import islice, product
from typing import NamedTuple

import numpy as np

from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.job import SolverOptions
from recycle_compiler.ir.ops import UNSET, OpKind
from recycle_compiler.ir.schedule import Schedule, schedule_order
from recycle_compiler.ir.streams import Claims
from recycle_compiler.scheduling.bounds import Bound, lower_bound
from recycle_compiler.scheduling.budget import Budget, Visits
from recycle_compiler.scheduling.problem import problem_of
from recycle_compiler.scheduling.rounds.problem import RoundsProblem, rounds_problem
from recycle_compiler.scheduling.rounds.routes import Sizes, fewest_rounds, in_rounds, in_sizes
from recycle_compiler.scheduling.rounds.timing import NO_LIMIT, RoundsClock, Rule, TimedRounds
from recycle_compiler.scheduling.schedules import finish_starts
from recycle_compiler.scheduling.search import Effort

_FEW = 3
"""Every so many rules are tried for a plan that others are only compared with."""
_SEEDS = 4
_MOVES = 4
"""Times the moves that the search for an ordinary plan of as many ops makes."""
_MOST_TRIES = 20_000


def schedule_rounds(graph: Graph, options: SolverOptions, effort: Effort, budget: Budget) -> Schedule:
    """The best schedule found, with its bound."""
    bound = lower_bound(problem_of(graph))
    enough = bound.period + bound.period * options.gap_ppm // 1_000_000
    best: _Found | None = None
    for shape in _shapes(graph):
        routed = in_rounds(graph, shape)
        clock = RoundsClock(rounds_problem(routed))
        start = _best_by_rule(clock, enough, effort, budget)
        if start is None:
            continue
        timed = start if start.period <= enough else _improved(clock, start, enough, options, effort, budget)
        if best is None or timed.rank < best.timed.rank:
            best = _Found(routed, clock, timed)
        if best.timed.period <= enough or budget.is_spent():
            break
    assert best is not None, "rounds of one size are those of one pipeline, which can go on with any memory"
    cut_short = budget.was_cut and best.timed.period > enough
    return _schedule(best.graph, best.clock, best.timed, bound, cut_short=cut_short)


class _Found(NamedTuple):
    graph: Graph
    clock: RoundsClock
    timed: TimedRounds


def _shapes(graph: Graph) -> Iterator[tuple[Sizes, ...]]:
    """Sizes of rounds: as few rounds as can be; with small ones in the beginning and the end on stages that
    have more workers than others; and rounds of one size everywhere."""
    most = fewest_rounds(graph)
    yield most
    width = min(map(len, graph.target.live))
    longest = max(map(len, most))
    seen = {most}
    for more in (1, 2, 4, longest):
        shape = tuple(
            _tapered(sum(sizes), len(workers), width, more, longest)
            for sizes, workers in zip(most, graph.target.live, strict=True)
        )
        if shape not in seen:
            seen.add(shape)
            yield shape
    if (same := (in_sizes(sum(most[0]), width),) * len(most)) not in seen:
        yield same


def _tapered(units: int, workers: int, width: int, more: int, longest: int) -> Sizes:
    """Rounds of all workers between others of this width, up to so many on either side, as long as the chunk
    then has no more rounds than that with most."""
    if workers == width:
        return in_sizes(units, width)
    for ends in range(more, 0, -1):
        inner = units - 2 * ends * width
        if inner > 0 and 2 * ends + -(-inner // workers) <= longest:
            return (width,) * ends + in_sizes(inner, workers) + (width,) * ends
    return in_sizes(units, workers)


def _best_by_rule(clock: RoundsClock, enough: int, effort: Effort, budget: Budget) -> TimedRounds | None:
    """The best of all list schedules; None if memory leaves none of them a way on."""
    found: TimedRounds | None = None
    seen: set[bytes] = set()
    every = 1 if effort.rounds else _FEW
    for rule in islice(_rules(clock.problem), 0, None, every):
        order = clock.place(rule)
        budget.spend(Visits.RULE * clock.problem.ops)
        if order is None or order.tobytes() in seen:
            continue
        seen.add(order.tobytes())
        timed = clock.time(order, None if found is None else found.period)
        if timed is not None and (found is None or timed.rank < found.rank):
            found = timed
        if found is not None and (found.period <= enough or budget.is_spent()):
            break
    return found


def _improved(
    clock: RoundsClock,
    timed: TimedRounds,
    enough: int,
    options: SolverOptions,
    effort: Effort,
    budget: Budget,
) -> TimedRounds:
    """What moves of single rounds make of it, with several seeds."""
    ops = clock.problem.ops
    tries = min(
        _MOST_TRIES, (effort.compiled_op_moves if clock.is_compiled else effort.op_moves) * _MOVES // ops
    )
    for seed in range(_SEEDS if effort.rounds else 1):
        budget.spend(Visits.MOVE * ops * tries)
        timed = clock.improved(timed, enough, tries, options.seed * _SEEDS + seed)
        if timed.period <= enough or budget.is_spent():
            break
    return timed


def _rules(problem: RoundsProblem) -> Iterator[Rule]:
    """Rules: how far a machine runs ahead, how many weights it puts off, what it would rather do, and whether
    it waits for that."""
    machines = problem.machines
    back = problem.duration[problem.part == 1]
    same = (1,) * machines
    for more, defer, first, patience in product(
        (0, 1, 2, machines, NO_LIMIT), (NO_LIMIT, 0, 1, 2), (0, 1), (0, int(back.max()) // 2)
    ):
        ahead = tuple(min(NO_LIMIT, machines - stage + more) for stage in range(machines))
        yield Rule(ahead, (defer,) * machines, tuple(first * one for one in same), patience)


def _schedule(
    graph: Graph, clock: RoundsClock, timed: TimedRounds, bound: Bound, *, cut_short: bool
) -> Schedule:
    """Times put on the ops of the graph, with the reductions and steps that they lead to."""
    job, keep = graph.job, graph.ops.kind != OpKind.S
    ops, op = graph.ops.take(keep), clock.problem.op_of_row[keep]
    start = clock.starts(timed)[op]
    work = op != UNSET
    ends = start + ops.duration
    stage = ops.worker // job.pipelines
    last = np.zeros(job.stages, dtype=np.int64)
    np.maximum.at(last, stage[work], ends[work])
    if not job.techniques.stagger:
        last[:] = last.max()
    start[~work] = finish_starts(ops, last[stage])
    makespan = int(ends[work].max() - start[work].min())
    order = schedule_order(ops, start)
    claims = Claims(makespan, timed.period, bound.period, bound.reason, cut_short)
    return Schedule(job, graph.failed, ops.take(order), start[order], timed.release, claims)
