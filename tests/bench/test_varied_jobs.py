"""The random jobs that gaps are measured on: the same everywhere, valid, and far apart."""

from itertools import pairwise

from bench.random_gaps import CLASSES, JOBS, SEED, TUNING_SEED, measured
from bench.random_small import Compared, section
from bench.reference.random_jobs import small_job
from bench.varied_jobs import LEAST_OPS, MOST_OPS, given_jobs, varied_job
from recycle_compiler.ir.job import print_job

REPORTED = [varied_job(SEED, number) for number in range(JOBS)]


def test_a_seed_and_a_number_always_give_the_same_job() -> None:
    first, again = varied_job(3, 5), varied_job(3, 5)
    assert (print_job(first.job), first.failed) == (print_job(again.job), again.failed)
    assert first.label == "29x45x35, heavy ends, transfers 10 %, no memory limit, W keeps 30%"


def test_tuned_jobs_are_not_reported_on() -> None:
    reported = {print_job(one.job).partition("\n")[2] for one in REPORTED}
    assert reported.isdisjoint(
        print_job(varied_job(TUNING_SEED, number).job).partition("\n")[2] for number in range(JOBS)
    )


def test_jobs_are_valid_and_every_stage_keeps_a_worker() -> None:
    for one in REPORTED:
        assert list(one.job.verify()) == []
        assert max(one.failed_per_stage) < one.job.pipelines
        assert LEAST_OPS <= one.ops <= MOST_OPS


def test_jobs_lie_far_apart() -> None:
    jobs = [one.job for one in REPORTED]
    for least, most in pairwise(CLASSES):
        assert sum(least <= one.ops <= most for one in REPORTED) >= JOBS // 10
    for values, low, high in (
        ([job.stages for job in jobs], 2, 48),
        ([job.pipelines for job in jobs], 2, 48),
        ([job.microbatches for job in jobs], 2, 200),
        ([max(job.transfer) // min(job.forward) for job in jobs], 0, 1),
        ([max(job.reduce) // min(job.forward) for job in jobs], 0, 10),
        ([len(one.failed) for one in REPORTED], 0, 20),
    ):
        assert min(values) <= low and max(values) >= high
    assert {job.capacity[0] is None for job in jobs} == {True, False}
    assert {job.techniques.stagger for job in jobs} == {True, False}
    kept = [job.kept_for_weight[0] / job.activation[0] for job in jobs]
    assert min(kept) == 0 and max(kept) == 1 and any(0.2 < part < 0.8 for part in kept)


def test_a_plan_is_no_better_than_its_bound() -> None:
    smallest = min(range(40), key=lambda number: varied_job(TUNING_SEED, number).ops)
    (plan,) = measured(TUNING_SEED, [smallest], gap=0.1)
    assert plan.gap >= 0
    assert plan.ops == varied_job(TUNING_SEED, smallest).ops


def test_small_and_given_jobs_are_valid() -> None:
    for number in range(40):
        job, failed = small_job(number)
        assert list(job.verify()) == [] and max(failed) < job.pipelines
    for given in given_jobs():
        assert list(given.job.verify()) == []
        assert 4 * given.job.failures == given.job.workers


def test_jobs_beside_cpsat_in_a_table() -> None:
    jobs = [Compared(0, "as good", 100, 100, 100, 1.0), Compared(1, "behind", 103, 90, 100, 2.0)]
    rows = section([*jobs, Compared(2, "ahead", 90, 90, 100, 1.0)], "").rows
    assert rows[0] == ("all 3", "66.7 %", "66.7 %", "3.00%", "66.7 %", "4")
    assert [row[0] for row in rows[1:]] == ["1: behind"]
