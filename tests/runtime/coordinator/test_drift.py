"""Measured op times, from what workers report."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.ir.job import print_job
from recycle_compiler.ir.layout import shared_out
from recycle_runtime.coordinator.drift import SmoothedTimes, calibrated, measured_times, shift
from recycle_runtime.coordinator.measured_job import JobText, StageTimes
from tests.support.jobs import unit_job

JOB = JobText(print_job(unit_job(2, 3, 6)))
SPLIT = {"F": 0.010, "I": 0.010, "W": 0.010, "R": 0.002, "O": 0.030}
COUPLED = {"F": 0.010, "B": 0.030, "R": 0.002, "O": 0.030}


def measured(steps: int = 10, **factors: float) -> SmoothedTimes:
    """Three pipelines of two stages; `w12=3.0` makes worker 1:2 slower."""
    ops = SmoothedTimes()
    for _ in range(steps):
        for worker in [(p, s) for p in range(3) for s in range(2)]:
            factor = factors.get(f"w{worker[0]}{worker[1]}", 1.0)
            ops.add(worker, {kind: seconds * factor for kind, seconds in SPLIT.items()})
    return ops


def test_too_few_steps_say_nothing() -> None:
    ops = measured(steps=4)
    assert ops.of_stage(0) == {}
    assert ops.factor((0, 0)) is None
    assert calibrated(JOB, ops) is None


def test_a_slot_is_what_work_takes() -> None:
    tick = calibrated(JOB, measured())
    assert tick is not None and tick == pytest.approx(0.010 / 1_000)
    one = (1000, 1000)
    expected = StageTimes(one, one, one, optimizer=(3000, 3000), reduce=(200, 200))
    assert measured_times(JOB, measured(), tick) == expected


def test_times_with_a_sharded_state() -> None:
    """With one of three workers gone, the other two step all shards of that stage."""
    job = JobText(print_job(shared_out(unit_job(2, 3, 6), 2, (3, 3), (500, 500), (0, 0), (0, 0))))
    ops = measured(w00=1.2)
    for worker in [(p, s) for p in range(3) for s in range(2)]:
        for _ in range(10):
            ops.add(worker, {"G": 0.004 if worker[0] == 1 else 0.006})
    assert job.times.optimizer == (2000, 2000) and job.times.gather == (500, 500)
    found = measured_times(job, ops, 1e-5, gone=(1, 0))
    assert found is not None
    assert (found.optimizer, found.gather) == ((2000, 3000), (400, 400))
    change, _ = shift(job.times, found, 6)
    assert change > 0
    # Peers make a gather together.
    assert ops.factor((0, 1)) == pytest.approx(1.0) and ops.factor((0, 0)) == pytest.approx(1.2)


def test_real_times_need_no_calibration() -> None:
    text = print_job(unit_job(2, 3, 6)).replace("units slot", "units ms")
    assert calibrated(JobText(text), SmoothedTimes()) == 1e-9


def test_one_slow_worker_does_not_count_for_its_stage() -> None:
    ops = measured(w11=3.0)
    assert ops.of_stage(1) == ops.of_stage(0)
    assert ops.slow([(p, s) for p in range(3) for s in range(2)], 2.0) == {(1, 1): pytest.approx(3.0)}
    ops.keep({(0, 1), (1, 1)})
    assert ops.factor((1, 1)) == pytest.approx(3.0), "one peer is enough to see it"
    ops.forget((0, 1))
    assert ops.factor((1, 1)) is None, "nobody to compare with"
    assert ops.of_stage(1)["F"] == pytest.approx(0.030), "then it is the stage"


def test_a_worker_with_fewer_ranks_makes_nobody_slow() -> None:
    """With messages between ranks for most of the time, it is much faster than its peers."""
    everybody = [(p, s) for p in range(3) for s in range(2)]
    ops = measured(w10=1 / 13)
    assert ops.slow(everybody, 2.0).keys() == {(0, 0), (2, 0)}
    ops.have_fewer_ranks({(1, 0): 1})
    assert ops.slow(everybody, 2.0) == {} and ops.of_stage(0)["F"] == ops.of_stage(1)["F"]
    ops.forget((2, 0))
    assert ops.slow(everybody, 2.0) == {} and ops.of_stage(0)["F"] == ops.of_stage(1)["F"]
    ops.have_fewer_ranks({})
    assert ops.slow(everybody, 2.0) == {(0, 0): pytest.approx(13.0)}


def test_a_worker_with_fewer_ranks_may_be_slow() -> None:
    everybody = [(p, s) for p in range(3) for s in range(2)]
    ops = measured(w10=3.0, w20=3.5)
    ops.have_fewer_ranks({(1, 0): 2, (2, 0): 1})
    # Both beside the one that has all ranks.
    assert ops.slow(everybody, 2.0) == {(1, 0): pytest.approx(3.0), (2, 0): pytest.approx(3.5)}
    ops.forget((0, 0))
    assert ops.slow(everybody, 1.1) == {(2, 0): pytest.approx(3.5 / 3.0)}
    assert ops.of_stage(0)["F"] == pytest.approx(0.030)


def test_a_whole_stage_that_is_slower_has_no_slow_worker() -> None:
    ops = measured(w01=3.0, w11=3.0, w21=3.0)
    assert ops.slow([(p, 1) for p in range(3)], 2.0) == {}
    times = measured_times(JOB, ops, 1e-5)
    assert times is not None and times.forward == (1000, 3000)


def test_a_worker_that_watches_is_judged_by_its_optimizer() -> None:
    ops = measured()
    ops.forget((1, 1))
    for _ in range(10):
        ops.add((1, 1), {"R": 0.5, "O": 0.090})
    assert ops.factor((1, 1)) == pytest.approx(3.0)


def test_a_coupled_backward_is_shared_out_as_planned() -> None:
    ops = SmoothedTimes()
    for _ in range(10):
        for worker in [(p, s) for p in range(3) for s in range(2)]:
            ops.add(worker, COUPLED)
    times = measured_times(JOB, ops, 1e-5)
    assert times is not None
    assert (times.forward, times.backward_input, times.backward_weight) == (
        (1000,) * 2,
        (1500,) * 2,
        (1500,) * 2,
    )


def test_a_reduction_is_as_long_as_for_the_last_who_comes() -> None:
    ops = measured()
    for _ in range(10):
        ops.add((0, 0), SPLIT | {"R": 0.8})
    assert ops.of_stage(0)["R"] == pytest.approx(0.002)


def test_a_hitch_is_not_a_trend() -> None:
    ops = measured()
    ops.add((0, 0), {kind: 100 * seconds for kind, seconds in SPLIT.items()})
    assert ops.factor((0, 0)) < 1.5  # pyright: ignore[reportOptionalOperand]


@given(st.floats(0.2, 5.0), st.integers(1, 40))
def test_what_lasts_is_believed_in_the_end(factor: float, before: int) -> None:
    ops = SmoothedTimes()
    for step in range(before + 80):
        for pipeline in range(2):
            by = factor if pipeline and step >= before else 1.0
            ops.add((pipeline, 0), {"F": 0.01 * by, "W": 0.02 * by})
    assert ops.factor((1, 0)) == pytest.approx(factor, rel=0.01)


@given(st.lists(st.integers(1, 10**6), min_size=10, max_size=10), st.integers(1, 50), st.integers(1, 64))
def test_that_all_ops_take_longer_is_no_shift(ticks: list[int], scale: int, microbatches: int) -> None:
    before = StageTimes(*(tuple(ticks[2 * k : 2 * k + 2]) for k in range(5)))
    now = StageTimes(*(tuple(scale * tick for tick in row) for row in before))
    assert shift(before, now, microbatches)[0] == pytest.approx(0, abs=1e-9)


def test_a_shift_is_named_by_where_it_is_largest() -> None:
    one, none = (1000, 1000, 1000), (0, 0, 0)
    before = StageTimes(one, one, one, none, none)
    now = before._replace(forward=(1000, 1000, 2000))
    share, stage = shift(before, now, 6)
    assert stage == 2
    # Of 18 slots on the longest stage; all take 9/10 of that, but stage 2 has 6 slots more.
    assert share == pytest.approx((0.9 * 12 - 6 + 2 * (6 - 0.9 * 6)) / 18)
