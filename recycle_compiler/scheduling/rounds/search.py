"""The search for a plan in rounds: list schedules under many rules, for rounds of several sizes.

Rounds have as many micro-batches as the chunk has workers, which makes them fewest. Where memory is too
small for that, since one round of a chunk may need several of the chunk before, all chunks have rounds of one
size: what the stage with fewest workers can take. Such a plan is that of one pipeline.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.job import SolverOptions
from recycle_compiler.ir.ops import UNSET, OpKind
from recycle_compiler.ir.schedule import Schedule, schedule_order
from recycle_compiler.ir.streams import Claims
from recycle_compiler.scheduling.bounds import Bound, lower_bound
from recycle_compiler.scheduling.budget import Budget
from recycle_compiler.scheduling.problem import problem_of
from recycle_compiler.scheduling.rounds.problem import RoundsProblem, rounds_problem
from recycle_compiler.scheduling.rounds.routes import in_rounds, sizes_of
from recycle_compiler.scheduling.rounds.timing import NO_LIMIT, RoundsClock, Rule, TimedRounds
from recycle_compiler.scheduling.schedules import finish_starts


def schedule_rounds(graph: Graph, options: SolverOptions, budget: Budget) -> Schedule:
    """The best schedule found, with its bound."""
    bound = lower_bound(problem_of(graph))
    enough = bound.period + bound.period * options.gap_ppm // 1_000_000
    best: tuple[Graph, RoundsClock, TimedRounds] | None = None
    for sizes in _sizes(graph):
        routed = in_rounds(graph, sizes)
        clock = RoundsClock(rounds_problem(routed))
        timed = _best_by_rule(clock, enough, None if best is None else best[2])
        if timed is not None:
            best = (routed, clock, timed)
        if best is not None and (best[2].period <= enough or budget.is_spent()):
            break
    assert best is not None, "rounds of one size are those of one pipeline, which can go on with any memory"
    return _schedule(*best, bound, cut_short=budget.was_cut and best[2].period > enough)


def _sizes(graph: Graph) -> Iterator[tuple[int, ...]]:
    """Micro-batches in a round of each chunk: as many as can be, and as many everywhere."""
    most = sizes_of(graph)
    yield most
    if len(set(most)) > 1:
        yield (min(most),) * len(most)


def _best_by_rule(clock: RoundsClock, enough: int, best: TimedRounds | None) -> TimedRounds | None:
    """The best of all list schedules; None if none is better than what is known."""
    found: TimedRounds | None = None
    seen: set[bytes] = set()
    for rule in _rules(clock.problem):
        order = clock.place(rule)
        if order is None or order.tobytes() in seen:
            continue
        seen.add(order.tobytes())
        known = found or best
        timed = clock.time(order, None if known is None else known.period)
        if timed is not None and (known is None or timed.rank < known.rank):
            found = timed
        if found is not None and found.period <= enough:
            break
    return found


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
