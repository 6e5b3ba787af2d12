from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.planner.baselines import ORDERS, Textbook, one_f_one_b_period, textbook_schedule
from recycle_compiler.scheduling.inner_loops import BACKWARD, FORWARD, WEIGHT
from tests.support.jobs import NONE, SLOT, figure3, unit_job

FINISH = 3


def even_job(stages: int, microbatches: int, forward: int, backward_input: int, weight: int) -> JobSpec:
    """Every stage takes the same, in slots."""
    return replace(
        unit_job(stages, 1, microbatches, optimizer=FINISH),
        forward=(forward * SLOT,) * stages,
        backward_input=(backward_input * SLOT,) * stages,
        backward_weight=(weight * SLOT,) * stages,
    )


def bubble(job: JobSpec, period: int) -> int:
    """Time of an iteration beyond the work of one stage, in slots."""
    work = job.microbatches * (job.forward[0] + job.backward_input[0] + job.backward_weight[0])
    return (period - work) // SLOT - FINISH


def in_slots(schedule: Textbook) -> tuple[int, int, int]:
    return schedule.makespan // SLOT, schedule.period // SLOT, schedule.staggered_period // SLOT


@pytest.mark.parametrize(
    ("name", "expected"),
    [("GPipe", (27, 30, 30)), ("1F1B", (27, 30, 30)), ("ZB-H1", (21, 24, 24)), ("ZB-H2", (21, 24, 22))],
)
def test_running_example(name: str, expected: tuple[int, int, int]) -> None:
    assert in_slots(textbook_schedule(figure3(None), name)) == expected


even_times = st.integers(1, 4)


@settings(max_examples=40)
@given(st.integers(2, 6), even_times, even_times, even_times)
def test_bubbles_are_those_of_the_literature(stages: int, forward: int, back: int, weight: int) -> None:
    # The formulas are for a W that is no longer than what it hides behind, and enough micro-batches.
    weight = min(weight, forward, back)
    job = even_job(stages, 2 * stages + 2, forward, back, weight)
    expected = {
        "GPipe": forward + back + weight,
        "1F1B": forward + back + weight,
        "ZB-H1": forward + back - weight,
        "ZB-H2": forward + back - 2 * weight,
    }
    found = {name: bubble(job, textbook_schedule(job, name).staggered_period) for name in expected}
    assert found == {name: (stages - 1) * each for name, each in expected.items()}


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(1, 14))
def test_memory_is_that_of_the_literature(stages: int, microbatches: int) -> None:
    def held(name: str) -> list[int]:
        memory = textbook_schedule(unit_job(stages, 1, microbatches), name).memory
        return [amount // SLOT for amount in memory]

    assert held("GPipe") == [microbatches] * stages
    assert held("1F1B") == [min(microbatches, stages - stage) for stage in range(stages)]
    assert held("ZB-H1") == [min(microbatches, stages)] * stages
    assert held("ZB-H2") == [min(microbatches, 2 * stages - 1)] * stages


@given(st.sampled_from(sorted(ORDERS)), st.integers(1, 6), st.integers(1, 14))
def test_every_op_comes_once(name: str, stages: int, microbatches: int) -> None:
    kinds = (FORWARD, BACKWARD, WEIGHT) if name.startswith("ZB") else (FORWARD, BACKWARD)
    expected = sorted((kind, microbatch) for kind in kinds for microbatch in range(microbatches))
    for stage in range(stages):
        assert sorted(ORDERS[name](stages, microbatches, stage)) == expected


def test_one_f_one_b_is_the_baseline_of_every_plan() -> None:
    job = replace(
        unit_job(4, 3, 6, techniques=NONE),
        forward=(1 * SLOT, 2 * SLOT, 1 * SLOT, 3 * SLOT),
        transfer=(SLOT, 0, 2 * SLOT),
    )
    assert textbook_schedule(job, "1F1B").period == one_f_one_b_period(job)
