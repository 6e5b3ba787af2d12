"""Lower bounds on known cases; their validity in volume is tested against proven optima."""

from dataclasses import replace

import pytest

from recycle_compiler.frontend import parse_job_text
from recycle_compiler.ir.failure import FailureSet, failure_set, normal_form
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.bounds import Bound, lower_bound, ramp_up, stage_bounds
from recycle_compiler.scheduling.ways import round_trip
from tests.support.jobs import ADAPTIVE, ALL, DECOUPLED, NONE, SLOT, figure3, routed_problem, unit_job

FAILED = failure_set([(2, 2)])


@pytest.mark.parametrize(
    ("capacity", "techniques", "failed", "slots", "reason"),
    [
        ((4, 3, 2, 1), NONE, (), 30, "load of stage 0"),
        ((4, 3, 2, 1), ADAPTIVE, FAILED, 39, "tail of stage 2 through stage 0"),
        (4, ADAPTIVE, FAILED, 36, "tail of stage 2 through stage 0"),
        (4, DECOUPLED, FAILED, 32, "load of stage 2"),
        (None, ALL, FAILED, 30, "load of stage 2"),
        (4, ALL, FAILED, 32, "both ends of stage 2"),
        (1, ALL, (), 57, "memory of stage 0"),
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
    assert [ramp_up(problem, stage, 8) // SLOT for stage in range(4)] == [3, 2, 1, 0]


def long_to_reduce_later() -> tuple[JobSpec, FailureSet]:
    """Six micro-batches on the one worker that stage 0 has left, memory for two, ten slots to reduce on
    stage 1, none on stage 0. The optimum is 27."""
    job = replace(unit_job(2, 2, 3, capacity=2, optimizer=0), reduce=(0, 10 * SLOT))
    return job, normal_form((1, 0), 2)


def test_a_later_stage_that_takes_long_to_reduce_ends_early() -> None:
    """Eighteen slots of work, and one idle before the first backward. Stage 1 begins a slot later and must
    end 10 and a W sooner, so when its last backward is done stage 0 has 10 slots left, and 2 x 2 of work for
    them. If stage 1 begins later, so does that first backward."""
    bounds = stage_bounds(routed_problem(*long_to_reduce_later()), 0)
    assert Bound(25 * SLOT, "load of stage 0") in bounds


def test_a_later_stage_waits_for_one_with_little_memory() -> None:
    """The first backward of stage 0 comes two slots after stage 1 has begun; two F lie before it. Three F,
    four backwards and four W come after it before the last F has room; with it, its transfer of no length,
    and F, backward and W on stage 1 these are 2 + 11 + 1 + 3 slots, and ten to reduce."""
    job, failed = long_to_reduce_later()
    assert lower_bound(routed_problem(job, failed)) == Bound(27 * SLOT, "feed of stage 0 to stage 1")
    assert plan_failed(job, failed).claims.period == 27 * SLOT


def slots(stages: int, microbatches: int, failed_per_stage: tuple[int, ...], stage: int) -> dict[str, int]:
    """The bounds of a stage by name, for three pipelines with the memory of 1F1B."""
    job = unit_job(stages, 3, microbatches, capacity=tuple(range(stages, 0, -1)))
    problem = routed_problem(job, normal_form(failed_per_stage, 3))
    return {bound.reason: bound.period // SLOT for bound in stage_bounds(problem, stage)}


def test_a_crowd_passes_a_narrow_stage_in_rounds() -> None:
    """Twelve micro-batches, four on each worker of stages 0 and 2, all on the one that stage 1 has left.

    The first backwards for the three workers of stage 0 leave stage 1 one after another, each with an F and
    a backward of its own. The last comes 1 + 3 x 2 slots after the start, when its worker has run three F:
    work 12, four slots idle, three for the optimizer. A worker with five micro-batches would need 15 + 2 + 3.

    The last backwards of stage 2 pass stage 1 in rounds, too. All work but a W comes before them: 2 slots for
    the first F on its way, 11 of work, three backwards on stage 1, a backward and a W on stage 0, and 3.
    """
    narrow = slots(3, 4, (0, 2, 0), 0)
    assert narrow["load of stage 0"] == 12 + 4 + 3
    assert slots(3, 4, (0, 0, 0), 0)["load of stage 0"] == 12 + 2 + 3
    assert slots(3, 4, (0, 2, 0), 2)["tail of stage 2 through stage 0"] == 2 + 11 + 3 + 2 + 3
    assert slots(3, 4, (0, 0, 0), 2)["tail of stage 2 through stage 0"] == 2 + 11 + 1 + 2 + 3


def test_rounds_cost_no_more_than_one_micro_batch_more() -> None:
    """The crowd of stage 1 passes stage 0, where each backward has a W after it.

    With two workers there, the last backward waits for one round: 1 slot for the first F on its way, 11 of
    work, 2 x 2, and 3. With one worker it waits for two, and that is 21; but 20 is enough for five
    micro-batches on one worker, the last of which waits for no other: 1 + 14 + 2 + 3.
    """
    assert slots(2, 4, (0, 0), 1)["tail of stage 1 through stage 0"] == 1 + 11 + 2 + 3
    assert slots(2, 4, (1, 0), 1)["tail of stage 1 through stage 0"] == 1 + 11 + 2 * 2 + 3
    assert slots(2, 4, (2, 0), 1)["tail of stage 1 through stage 0"] == 1 + 14 + 2 + 3


def test_a_plan_that_waits_in_rounds() -> None:
    """Six micro-batches on three workers of stage 0, which two of stage 1 serve.

    The last first backward comes after 1 + 2 x 2 slots, of which two F fill two: three are idle. With six of
    work and one for the optimizer this is 10, and no schedule is shorter.
    """
    job = unit_job(2, 3, 2, optimizer=1)
    failed = normal_form((0, 1), 3)
    problem = routed_problem(job, failed)
    assert ramp_up(problem, 0, 2) == 1 * SLOT
    assert ramp_up(problem, 0, 2, crowd=3) == 3 * SLOT
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
    assert round_trip(problem, 0) == ramp_up(problem, 0, 1) == 6 * SLOT
    assert ramp_up(problem, 0, 1, crowd=3) == 7 * SLOT
    assert stage_bounds(problem, 0)[0] == Bound(11 * SLOT, "load of stage 0")
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
    through_first = stage_bounds(routed_problem(job, failed), 2)[1]
    assert through_first == Bound((6 + 10 + 2 + 1 + 1) * SLOT, "tail of stage 2 through stage 0")
    assert plan_failed(job, failed).claims.period == through_first.period
