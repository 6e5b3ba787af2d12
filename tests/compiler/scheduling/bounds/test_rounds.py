"""Rounds through memory from end to end: never more than the truth, and all of it where nothing else
tells."""

from pathlib import Path

from bench.reference.optima import load_optima
from recycle_compiler.frontend import parse_job_text
from recycle_compiler.ir.failure import normal_form
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.bounds import Bound, lower_bound, stage_bounds
from recycle_compiler.scheduling.bounds.rounds import Rounds
from recycle_compiler.scheduling.problem import Problem
from tests.support.jobs import SLOT, routed_problem

TIGHT_OPTIMA = Path(__file__).resolve().parents[3] / "data" / "optima-tight.jsonl"


def all_bounds(problem: Problem) -> list[Bound]:
    return [bound for stage in range(problem.chunks) for bound in stage_bounds(problem, stage)]


def test_rounds_through_the_memory_of_two_stages() -> None:
    """Twelve micro-batches, two workers of stage 0 with two activations each, three of stage 1 with one each.

    A backward is back on stage 0 after F, 4 slots of transfer, F, backward and 4 more: at 18. It and its W
    end at 21, when the fifth F has room, and the ninth at 42. Four micro-batches are left then. The last of
    them is the second on some worker of stage 1, which holds one: it has F, backward and W of another before
    it, 9 slots. So it is back at 42 + 27, and its backward and W take 3.
    """
    blocks = """
        parallel { pipeline = 2  data = 3 }  batch { microbatches = 4 }  memory { capacity = [2, 1] }
        profile {
          forward = [4, 4]  backward_input = [2, 2]  backward_weight = [1, 3]  transfer = 4
          optimizer = [0, 0]  activation = 1  kept_for_weight = [1, 1]
        }
        """
    job = parse_job_text(f"job tight {{ {blocks} }}", "tight.job")
    failed = normal_form((1, 0), 3)
    problem = routed_problem(job, failed)
    bounds = all_bounds(problem)
    others = max(bound.period for bound in bounds if not bound.reason.startswith("rounds"))
    assert others < Rounds().span(problem, 0) == (21 + 21 + 27 + 3) * SLOT
    assert lower_bound(problem) == Bound(72 * SLOT, "rounds of stage 0")
    assert plan_failed(job, failed).claims.period == 72 * SLOT


def test_bounds_against_schedules_with_tight_memory_and_long_transfers() -> None:
    """Jobs of the kind on which plans stay furthest above their bounds: no bound exceeds a schedule."""
    met, jobs = 0, 0
    for entry in load_optima(TIGHT_OPTIMA):
        failed = normal_form(entry.failed_per_stage, entry.job.pipelines)
        bounds = all_bounds(routed_problem(entry.job, failed))
        for bound in bounds:
            assert bound.period <= entry.best, f"seed {entry.seed}: {bound.reason} certifies a lie"
        jobs += 1
        met += max(bound.period for bound in bounds) == entry.best
    assert met >= 0.6 * jobs
