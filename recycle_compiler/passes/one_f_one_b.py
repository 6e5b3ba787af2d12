"""Give every op a start in the order of 1F1B: the schedule that plans are compared with.

    Graph  -->  Schedule

Stage s of S runs S - s forwards ahead (fewer where memory holds fewer), then one backward and one forward in
turn. Nothing is searched for.
"""

from dataclasses import dataclass

from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.passes.pipeline import Pass
from recycle_compiler.scheduling.bounds import Bound
from recycle_compiler.scheduling.problem import problem_of
from recycle_compiler.scheduling.rules import RuleSetting, greedy_priority, rule_of
from recycle_compiler.scheduling.schedules import SearchedPlan, schedule_from
from recycle_compiler.scheduling.timing import Clock


@dataclass(frozen=True, slots=True)
class OneFOneB(Pass[Graph, Schedule]):
    """Backward as soon as it can be."""

    name = "one-f-one-b"

    def run(self, graph: Graph) -> Schedule:
        problem = problem_of(graph)
        clock = Clock(problem)
        order = clock.loops.place(greedy_priority(problem), rule_of(problem, RuleSetting(ahead=0)))
        timed = None if order is None else clock.time(order)
        assert timed is not None, "edges that were added leave 1F1B no way on"
        return schedule_from(
            graph, problem, SearchedPlan(timed, Bound(clock.floor, "load of the busiest worker"))
        )
