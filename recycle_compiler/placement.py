"""Which stages should carry the failures: bounds propose, quick plans decide."""

from recycle_compiler.ir.failure import normal_form
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.assign_slots import AssignSlots, Effort
from recycle_compiler.passes.assign_slots.problem import problem_of
from recycle_compiler.passes.pipeline import run_passes
from recycle_compiler.passes.place_failures import Counts, place_failures, stage_costs
from recycle_compiler.passes.registry import GRAPH_PASSES


def choose_placement(job: JobSpec, failures: int, effort: Effort) -> Counts | None:
    """Failures per stage for this total; None if every placement leaves a stage without a worker.

    Candidates come in the order of their bounds, so the search ends when a plan meets the bound of the next
    one.
    """
    healthy = run_passes(GRAPH_PASSES, Target(job, ()))
    costs = stage_costs(problem_of(job, (), healthy.ops))
    candidates = place_failures(costs, failures, effort.placements)
    best: tuple[int, Counts] | None = None
    for bound, counts in candidates:
        if best is not None and best[0] <= bound:
            break
        if best is None and len(candidates) == 1:
            return counts
        found = (_quick_plan(job, counts, effort.quick()).claims.period, counts)
        best = found if best is None or found[0] < best[0] else best
    return None if best is None else best[1]


def _quick_plan(job: JobSpec, counts: Counts, effort: Effort) -> Schedule:
    target = Target(job, normal_form(counts, job.pipelines))
    return run_passes((*GRAPH_PASSES, AssignSlots(effort=effort)), target)
