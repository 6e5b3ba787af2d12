"""Decide when every op runs, and prove how good that is.

    Graph  -->  Schedule with its lower bound

All that counts is in the graph: ops, edges, workers, durations and memory. How schedules are searched for
stands in `scheduling/search.py`. Where workers are slow, an order is sought that is short with their times.
What the schedule says of it are the times of the job: a plan claims nothing about slowness.
"""

from dataclasses import dataclass, field, replace

from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.job import SolverOptions
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.passes.grouped_schedule import schedule_groups
from recycle_compiler.passes.pipeline import Pass
from recycle_compiler.scheduling.budget import Budget, Guard
from recycle_compiler.scheduling.problem import Problem, problem_of, slowed
from recycle_compiler.scheduling.rounds.search import schedule_rounds
from recycle_compiler.scheduling.schedules import SearchedPlan, schedule_from
from recycle_compiler.scheduling.search import Effort, plan, plan_slowed
from recycle_compiler.scheduling.slow_workers import SlowWorkers, bearable


@dataclass(frozen=True, slots=True)
class AssignSlots(Pass[Graph, Schedule]):
    """Give every op a start."""

    name = "assign-slots"
    effort: Effort = field(default_factory=Effort)
    guard: Guard | None = field(default=None, compare=False)
    """None gives this plan all of the job's time limit. No option that changes a plan: it is not printed."""
    slow: SlowWorkers = ()
    """Workers whose ops take longer than the job says."""
    seed: int | None = None
    """Of the search, in place of the job's."""

    def run(self, graph: Graph) -> Schedule:
        if graph.job.groups:
            return schedule_groups(graph, self._planned_alone)
        if graph.job.slots:
            return schedule_rounds(graph, graph.job.solver, self.effort, self._budget(graph.job.solver))
        problem = problem_of(graph)
        # Where micro-batches stay in their pipelines, these have as many on every stage.
        apart = self.effort.extras_apart and graph.job.techniques.adaptive
        slots = replace(self, effort=replace(self.effort, extras_apart=apart))
        return schedule_from(graph, problem, slots.plan(problem, graph.job.solver))

    def _planned_alone(self, problem: Problem, options: SolverOptions) -> SearchedPlan:
        """One group of several."""
        # The MILP knows nothing of pools that have to wait. Who runs what in a group is settled in its graph.
        effort = replace(self.effort, exact=False, other_routes=False)
        return replace(self, effort=effort).plan(problem, options)

    def _budget(self, options: SolverOptions) -> Budget:
        guard = self.guard or Guard(options.time_limit_ns)
        return Budget(guard, self.effort.work, without=self.effort.without)

    def plan(self, problem: Problem, options: SolverOptions) -> SearchedPlan:
        """Times and their bound, not yet put on the ops: all that plans are compared by."""
        budget = self._budget(options)
        options = options if self.seed is None else replace(options, seed=self.seed)
        if not self.slow:
            return plan(problem, options, self.effort, budget)
        late = slowed(problem, bearable(self.slow))
        return plan_slowed(problem, late, options, self.effort, budget)
