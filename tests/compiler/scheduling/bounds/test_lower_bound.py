"""Lower bounds on known cases; their validity in volume is tested against proven optima."""

from dataclasses import replace

import pytest

from recycle_compiler.frontend import parse_job_text
from recycle_compiler.ir.failure import FailureSet, failure_set, normal_form
from recycle_compiler.ir.job import Techniques
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.bounds import lower_bound
from recycle_compiler.scheduling.bounds.load import ramp_up
from recycle_compiler.scheduling.ways import round_trip
from tests.support.jobs import ADAPTIVE, ALL, DECOUPLED, NONE, SLOT, figure3, routed_problem, unit_job

FAILED = failure_set([(2, 2)])


@pytest.mark.parametrize(
    ("capacity", "techniques", "failed", "slots", "reason"),
    [
        ((4, 3, 2, 1), NONE, (), 30, "rounds of stage 0"),
        ((4, 3, 2, 1), ADAPTIVE, FAILED, 39, "rounds of stage 2"),
        (4, ADAPTIVE, FAILED, 36, "rounds of stage 2"),
        (4, DECOUPLED, FAILED, 32, "load of stage 2"),
        (None, ALL, FAILED, 30, "load of stage 2"),
        (4, ALL, FAILED, 32, "both ends of stage 2"),
        (1, ALL, (), 57, "rounds of stage 0"),
    ],
)
def test_running_example(
    capacity: tuple[int | None, ...] | int | None,
    techniques: Techniques,
    failed: FailureSet,
    slots: int,
    reason: str,
) -> None:
    bound = lower_bound(routed_problem(figure3(capacity, techniques), failed))
    assert (bound.period, bound.reason) == (slots * SLOT, reason)


def test_round_trip_and_ramp_up() -> None:
    problem = routed_problem(unit_job(4, 1, 8, capacity=(4, 3, 2, 1)))
    assert [round_trip(problem, stage) // SLOT for stage in range(4)] == [6, 4, 2, 0]
    assert [ramp_up(problem, stage) // SLOT for stage in range(4)] == [3, 2, 1, 0]


def test_a_later_stage_that_takes_long_to_reduce() -> None:
    """Six micro-batches on the one worker that stage 0 has left, memory for two, ten slots to reduce on
    stage 1, none on stage 0. The optimum is 27."""
    job = replace(unit_job(2, 2, 3, capacity=2, optimizer=0), reduce=(0, 10 * SLOT))
    failed = normal_form((1, 0), 2)
    assert lower_bound(routed_problem(job, failed)).period == 27 * SLOT
    assert plan_failed(job, failed).claims.period == 27 * SLOT


def test_a_plan_that_waits_in_rounds() -> None:
    """Six micro-batches on three workers of stage 0, which two of stage 1 serve.

    The last first backward comes after 1 + 2 x 2 slots, of which two F fill two: three are idle. With six of
    work and one for the optimizer this is 10, and no schedule is shorter.
    """
    job = unit_job(2, 3, 2, optimizer=1)
    failed = normal_form((0, 1), 3)
    problem = routed_problem(job, failed)
    assert ramp_up(problem, 0) == 1 * SLOT
    assert lower_bound(problem).period == 10 * SLOT
    assert plan_failed(job, failed).claims.period == 10 * SLOT


def test_the_last_of_a_crowd_makes_its_whole_trip_behind_the_others() -> None:
    """One micro-batch for each of three workers of stage 0, which two of stage 1 serve; two stages follow.

    A round trip takes 6 slots. One of the three finds stage 1 busy with the F of another and comes back after
    7, though stage 1 itself has time enough: 3 of work, 7 idle, one for the optimizer, and a plan does it.
    """
    job = unit_job(4, 3, 1, optimizer=1)
    failed = normal_form((0, 1, 0, 0), 3)
    problem = routed_problem(job, failed)
    assert round_trip(problem, 0) == ramp_up(problem, 0) == 6 * SLOT
    assert lower_bound(problem).period == 11 * SLOT
    assert plan_failed(job, failed).claims.period == 11 * SLOT


def test_a_crowd_begins_in_rounds() -> None:
    """Two micro-batches for each of two workers of stage 2, which one of stage 1 serves.

    The first F of one worker comes 2 slots after that of the other, 4 + 2 after the window of stage 0 opens.
    Up to its last backward it has 14 slots of work, less 4 that it may leave for W; then come 2 on the way
    up, a W and an optimizer step. No schedule is shorter.
    """
    blocks = """
        parallel { pipeline = 3  data = 2 }  batch { microbatches = 2 }  memory { capacity = [3, 4, 5] }
        profile {
          forward = [2, 2, 3]  backward_input = [1, 1, 2]  backward_weight = [1, 1, 2]
          optimizer = [1, 2, 1]  activation = 1  kept_for_weight = [1, 1, 1]
        }
        """
    job = parse_job_text(f"job tight {{ {blocks} }}", "tight.job")
    failed = normal_form((0, 1, 0), 2)
    assert lower_bound(routed_problem(job, failed)).period == (6 + 10 + 2 + 1 + 1) * SLOT
    assert plan_failed(job, failed).claims.period == (6 + 10 + 2 + 1 + 1) * SLOT
