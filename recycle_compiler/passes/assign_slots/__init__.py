"""Decide when every op runs, and prove how good that is.

    Graph  -->  Schedule with its lower bound

Greedy schedules come first; when none meets the bound, a search goes on around the best of them, and on small
jobs a MILP looks for a schedule one step shorter. Effort is counted in moves and solver work, so the same
job gives the same plan on any machine; the time limit is a guard on top and is reported when it strikes.
"""

import time
from dataclasses import dataclass, field, replace

import numpy as np

from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.ops import Column, OpKind
from recycle_compiler.ir.program import Claims
from recycle_compiler.ir.schedule import Schedule, schedule_order
from recycle_compiler.passes.assign_slots.bounds import Bound, lower_bound
from recycle_compiler.passes.assign_slots.construct import construct
from recycle_compiler.passes.assign_slots.improve import improve
from recycle_compiler.passes.assign_slots.loops import LARGE
from recycle_compiler.passes.assign_slots.noise import Noise
from recycle_compiler.passes.assign_slots.problem import Problem, problem_of
from recycle_compiler.passes.assign_slots.timing import Clock, Timed

_ROW_OF_KIND = np.array([0, 1, 1, 2])
"""Of the kinds F, B, I, W: their row in the start times of a timing problem."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much work may go into one plan, in units that do not depend on the machine."""

    rules: int = 72
    op_moves: int = 90_000
    """Moves of the search times ops per move, for plans whose loops are not compiled."""
    compiled_op_moves: int = 600_000
    most_moves: int = 600
    placements: int = 2
    """How many ways to place failures on stages are tried with a quick plan each."""

    def quick(self) -> "Effort":
        """Enough to compare placements."""
        return replace(
            self,
            rules=self.rules // 2,
            op_moves=self.op_moves // 10,
            compiled_op_moves=self.compiled_op_moves // 10,
            most_moves=self.most_moves // 10,
        )

    def glance(self) -> "Effort":
        """Enough to rank the stages."""
        return replace(self, rules=3, op_moves=self.op_moves // 10, compiled_op_moves=0, most_moves=30)

    def moves(self, problem: Problem) -> int:
        budget = self.compiled_op_moves if problem.ops >= LARGE else self.op_moves
        return min(self.most_moves, budget // problem.ops)


@dataclass(frozen=True, slots=True)
class AssignSlots:
    """Give every op a start."""

    name: str = "assign-slots"
    effort: Effort = field(default_factory=Effort)

    def run(self, graph: Graph) -> Schedule:
        problem = problem_of(graph.job, graph.failed, graph.ops)
        bound = lower_bound(problem)
        timed, cut_short = plan(problem, bound, graph, self.effort)
        return schedule_from(graph, timed, bound, cut_short)


def plan(problem: Problem, bound: Bound, graph: Graph, effort: Effort) -> tuple[Timed, bool]:
    """The best times found, and whether the time limit cut the search short."""
    options = graph.job.solver
    deadline = time.monotonic_ns() + options.time_limit_ns
    good_enough = bound.period + bound.period * options.gap_ppm // 1_000_000
    clock = Clock(problem)
    starts = construct(clock, good_enough, effort.rules)
    return improve(
        clock,
        starts,
        good_enough,
        effort.moves(problem),
        Noise(options.seed),
        lambda: time.monotonic_ns() > deadline,
    )


def schedule_from(graph: Graph, timed: Timed, bound: Bound, cut_short: bool) -> Schedule:
    """Times put back on the ops of the graph, with the reductions and optimizer steps they lead to."""
    ops = graph.ops.take(graph.ops.kind != OpKind.S)
    start = np.zeros(len(ops), dtype=np.int64)
    work = ops.kind <= OpKind.W
    unit = ops.pipeline[work] * graph.job.microbatches + ops.microbatch[work]
    start[work] = timed.start[_ROW_OF_KIND[ops.kind[work]], unit, ops.stage[work]]
    ends = start + ops.duration
    start[~work] = _finish_starts(graph, ops.stage[work], ends[work])[ops.stage[~work]]
    steps = ops.kind == OpKind.O
    start[steps] += np.array(graph.job.reduce)[ops.stage[steps]]
    makespan = int(ends[work].max() - start[work].min())
    order = schedule_order(graph.job, ops, start)
    claims = Claims(makespan, timed.period, bound.period, bound.reason, cut_short)
    return Schedule(graph.job, graph.failed, ops.take(order), start[order], timed.release, claims)


def _finish_starts(graph: Graph, stage: Column, end: Column) -> Column:
    """When each stage may begin its reduction: after its own last op, or after everybody's."""
    if not graph.job.techniques.stagger:
        return np.full(graph.job.stages, end.max())
    last = np.zeros(graph.job.stages, dtype=np.int64)
    np.maximum.at(last, stage, end)
    return last
