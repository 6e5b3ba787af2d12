"""Choose one representative among equally good schedules.

Micro-batches with the same route are interchangeable, so on every stage their ops can be handed out in
order of their numbers without changing when a worker works:

    before    F0.2 F0.0 F0.1 ... I0.1 I0.2       after    F0.0 F0.1 F0.2 ... I0.0 I0.1

The k-th F of a route still follows the k-th F of the stage before it, and so on for I and W, so nothing
breaks. Then every op starts as early as the order on its worker and the window of its stage allow:
replaying the streams gives exactly these times.
"""

from dataclasses import dataclass

import numpy as np

from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.ops import Column, OpKind
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.passes.assign_slots import Plan, schedule_from
from recycle_compiler.passes.pipeline import Pass
from recycle_compiler.scheduling.bounds import Bound
from recycle_compiler.scheduling.kernel import Ints
from recycle_compiler.scheduling.problem import Problem, problem_of
from recycle_compiler.scheduling.timing import Clock


@dataclass(frozen=True, slots=True)
class CanonicalizeSchedule(Pass[Schedule, Schedule]):
    """Micro-batches of a route in order of their numbers, every op as early as it can be."""

    name = "canonicalize-schedule"

    def run(self, schedule: Schedule) -> Schedule:
        problem = problem_of(schedule.job, schedule.failed, schedule.ops)
        clock = Clock(problem)
        start = in_route_order(problem, starts_of(schedule, problem))
        timed = clock.time(clock.order_of(start), schedule.claims.period)
        assert timed is not None, "putting routes in order made the schedule longer"
        nothing = np.zeros(0, dtype=np.int64)
        graph = Graph(schedule.job, schedule.failed, schedule.ops, nothing, nothing, nothing)
        claims = schedule.claims
        bound = Bound(claims.lower_bound, claims.reason)
        return schedule_from(graph, Plan(timed, bound, claims.cut_short))


def in_route_order(problem: Problem, start: Ints) -> Ints:
    """The same starts, handed out in order of micro-batch numbers within each route."""
    _, route = np.unique(problem.host, axis=0, return_inverse=True)
    by_number = np.argsort(route.ravel(), kind="stable")
    ordered = start.copy()
    for kind in range(3):
        for stage in range(problem.stages):
            by_time = np.lexsort((start[kind, :, stage], route.ravel()))
            ordered[kind, by_number, stage] = start[kind, by_time, stage]
    return ordered


def starts_of(schedule: Schedule, problem: Problem) -> Column:
    """start[kind, unit, stage] of a schedule; -1 where there is no such op."""
    ops = schedule.ops
    start = np.full((3, problem.units, problem.stages), -1, dtype=np.int64)
    for kind, row in ((OpKind.F, 0), (OpKind.B, 1), (OpKind.I, 1), (OpKind.W, 2)):
        chosen = ops.kind == kind
        unit = ops.pipeline[chosen] * problem.microbatches + ops.microbatch[chosen]
        start[row, unit, ops.chunk[chosen]] = schedule.start[chosen]
    return start
