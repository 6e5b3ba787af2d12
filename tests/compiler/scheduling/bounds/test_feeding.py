"""Wide stages behind narrow ones: never more than the truth, and all of it where nothing else tells."""

from pathlib import Path

from hypothesis import given, settings

from bench.reference.optima import load_optima
from recycle_compiler.frontend import parse_job_text
from recycle_compiler.ir.failure import normal_form
from recycle_compiler.ir.streams import Streams
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.bounds import Bound, lower_bound, stage_bounds
from recycle_compiler.scheduling.bounds.feeding import feeding_bound
from tests.support.jobs import SLOT, quick_plans, routed_problem

OPTIMA = Path(__file__).resolve().parents[3] / "data" / "optima.jsonl"
TIGHT_OPTIMA = OPTIMA.with_name("optima-tight.jsonl")


def test_the_third_worker_of_a_stage_behind_two() -> None:
    """Nine micro-batches, two workers of stage 0, three of stage 1 with three each: 57 slots and a step of 2.

    The third F reaches stage 1 at 8, four slots after the first. If the period is 59, stage 1 opens with it,
    and not at 4. From its first F there stage 0 needs 53 slots to its end, so a period P needs
    4 + (63 - P) + 53 slots of stage 0, no more than P: 60.
    """
    blocks = """
        parallel { pipeline = 2  data = 3 }  batch { microbatches = 3 }
        profile {
          forward = [4, 7]  backward_input = [3, 6]  backward_weight = [3, 6]  optimizer = [2, 2]
        }
        """
    job = parse_job_text(f"job wide {{ {blocks} }}", "wide.job")
    failed = normal_form((1, 0), 3)
    problem = routed_problem(job, failed)
    others = max(bound.period for stage in range(2) for bound in stage_bounds(problem, stage))
    assert others == 59 * SLOT
    assert lower_bound(problem) == Bound(60 * SLOT, "feeding of stage 1")
    assert plan_failed(job, failed).claims.period == 60 * SLOT
    # One barrier for all opens all windows at once.
    both = parse_job_text(f"job wide {{ {blocks} techniques {{ adaptive decouple }} }}", "wide.job")
    assert feeding_bound(routed_problem(both, failed), 0) is None


def test_no_more_than_proven_optima() -> None:
    compared = 0
    for entry in (*load_optima(OPTIMA), *load_optima(TIGHT_OPTIMA)):
        failed = normal_form(entry.failed_per_stage, entry.job.pipelines)
        if entry.failed_per_stage[0] <= min(entry.failed_per_stage):
            continue
        bound = feeding_bound(routed_problem(entry.job, failed), 0)
        if bound is not None:
            compared += 1
            assert bound.period <= entry.best, f"seed {entry.seed}: {bound.reason} certifies a lie"
    assert compared > 100


@settings(max_examples=60)
@given(quick_plans())
def test_no_more_than_any_plan(plan: Streams) -> None:
    bound = feeding_bound(routed_problem(plan.job, plan.failed), 0)
    assert bound is None or bound.period <= plan.claims.period
