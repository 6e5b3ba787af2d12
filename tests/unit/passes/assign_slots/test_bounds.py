"""Lower bounds on known cases; their validity in volume is tested against proven optima."""

import pytest

from recycle_compiler.ir.failure import FailureSet, failure_set
from recycle_compiler.ir.job import Techniques
from recycle_compiler.passes.assign_slots.bounds import lower_bound, ramp_up, round_trip
from tests.support.jobs import ADAPTIVE, ALL, DECOUPLED, NONE, SLOT, figure3, routed_problem, unit_job

LOST = failure_set([(2, 2)])


@pytest.mark.parametrize(
    ("capacity", "techniques", "failed", "slots", "reason"),
    [
        ((4, 3, 2, 1), NONE, (), 30, "load of stage 0"),
        ((4, 3, 2, 1), ADAPTIVE, LOST, 39, "tail of stage 2 through stage 0"),
        (4, ADAPTIVE, LOST, 36, "tail of stage 2 through stage 0"),
        (4, DECOUPLED, LOST, 32, "load of stage 2"),
        (None, ALL, LOST, 30, "load of stage 2"),
        (4, ALL, LOST, 31, "tail of stage 2 through stage 0"),
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
