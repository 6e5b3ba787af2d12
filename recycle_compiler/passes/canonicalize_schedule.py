"""Choose one representative among equally good schedules.

Micro-batches with the same route are interchangeable, so on every chunk their ops can be handed out in
order of their numbers without changing when a worker works:

    before    F0.2 F0.0 F0.1 ... I0.1 I0.2       after    F0.0 F0.1 F0.2 ... I0.0 I0.1

The k-th F of a route still follows the k-th F of the stage before it, and so on for I and W, so nothing
breaks. Then every op starts as early as the order on its worker and the window of its stage allow:
replaying the streams gives exactly these times.

Where a pass has added edges or changed single ops, micro-batches keep their places.
"""

from dataclasses import dataclass

import numpy as np

from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.passes.pipeline import Pass
from recycle_compiler.scheduling.bounds import Bound
from recycle_compiler.scheduling.problem import Ints, Problem, problem_of
from recycle_compiler.scheduling.schedules import SearchedPlan, graph_of, schedule_from, starts_of
from recycle_compiler.scheduling.timing import Clock


@dataclass(frozen=True, slots=True)
class CanonicalizeSchedule(Pass[Schedule, Schedule]):
    """Micro-batches of a route in order of their numbers, every op as early as it can be."""

    name = "canonicalize-schedule"

    def run(self, schedule: Schedule) -> Schedule:
        if schedule.job.groups or schedule.job.slots:
            # It was put together from schedules of this form, or its rounds are in order already.
            return schedule
        graph = graph_of(schedule)
        problem = problem_of(graph)
        clock = Clock(problem)
        start = starts_of(schedule, problem)
        if problem.is_uniform:
            start = in_route_order(problem, start)
        timed = clock.within(clock.order_of(start), schedule.claims.period)
        assert timed is not None, "putting routes in order made the schedule longer"
        claims = schedule.claims
        bound = Bound(claims.lower_bound, claims.reason)
        return schedule_from(graph, problem, SearchedPlan(timed, bound, claims.cut_short))


def in_route_order(problem: Problem, start: Ints) -> Ints:
    """The same starts, handed out in order of micro-batch numbers within each route."""
    _, route = np.unique(problem.host, axis=0, return_inverse=True)
    by_number = np.argsort(route.ravel(), kind="stable")
    ordered = start.copy()
    for kind in range(3):
        for chunk in range(problem.chunks):
            by_time = np.lexsort((start[kind, :, chunk], route.ravel()))
            ordered[kind, by_number, chunk] = start[kind, by_time, chunk]
    return ordered
