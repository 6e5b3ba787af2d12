"""Which stages should carry the failures: bounds propose, quick plans decide."""

from recycle_compiler.ir.failure import normal_form
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.program import Claims
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.assign_slots import AssignSlots, Effort
from recycle_compiler.passes.assign_slots.problem import problem_of
from recycle_compiler.passes.pipeline import run_passes
from recycle_compiler.passes.place_failures import Counts, place_failures, stage_costs
from recycle_compiler.passes.registry import GRAPH_PASSES


def choose_placement(job: JobSpec, failures: int, effort: Effort) -> tuple[Counts, Effort]:
    """Failures per stage for this total, and the effort that the plan for them deserves.

    Candidates come in the order of their bounds, so the search ends when a plan meets the bound of the next
    one.
    """
    healthy = run_passes(GRAPH_PASSES, Target(job, ()))
    costs = stage_costs(problem_of(job, (), healthy.ops))
    candidates = place_failures(costs, failures, effort.placements)
    if len(candidates) == 1:
        return candidates[0][1], effort
    best: tuple[Claims, Counts] | None = None
    for bound, counts in candidates:
        if best is not None and best[0].period <= bound:
            break
        claims = _quick_plan(job, counts, effort.quick()).claims
        best = (claims, counts) if best is None or claims.period < best[0].period else best
    assert best is not None, "failures that can be survived can be placed"
    claims, counts = best
    return counts, effort.quick() if claims.status == "optimal" else effort


def _quick_plan(job: JobSpec, counts: Counts, effort: Effort) -> Schedule:
    target = Target(job, normal_form(counts, job.pipelines))
    return run_passes((*GRAPH_PASSES, AssignSlots(effort=effort)), target)
