"""A few pipelines in place of all: their ops, and what comes of lifting their times."""

import numpy as np

from recycle_compiler.ir.failure import normal_form
from recycle_compiler.scheduling.bounds import lower_bound
from recycle_compiler.scheduling.budget import Budget, Goal, Guard, Noise
from recycle_compiler.scheduling.few_pipelines import few_pipelines, lifted
from recycle_compiler.scheduling.search import Effort
from recycle_compiler.scheduling.timing import Clock
from recycle_compiler.scheduling.tuning import tune
from tests.support.jobs import routed_problem, unit_job

AMPLE = Budget(Guard(10**15))


def test_without_failures_it_is_the_job_with_one_pipeline() -> None:
    one = few_pipelines(routed_problem(unit_job(3, 4, 80, capacity=3)))
    alone = routed_problem(unit_job(3, 1, 80, capacity=3))
    assert one is not None
    assert lower_bound(one) == lower_bound(alone)
    assert [column.tolist() for column in one.tasks[:4]] == [column.tolist() for column in alone.tasks[:4]]
    pairs = zip(one.tasks.edges, alone.tasks.edges, strict=True)
    assert all((ours == theirs).all() for ours, theirs in pairs)


def test_failures_that_divide_leave_the_job_with_so_many_fewer() -> None:
    few = few_pipelines(routed_problem(unit_job(3, 12, 40, capacity=4), normal_form((0, 3, 6), 12)))
    alone = routed_problem(unit_job(3, 4, 40, capacity=4), normal_form((0, 1, 2), 4))
    assert few is not None and few.pipelines == 4
    # Workers have other numbers: here those that are left come first.
    live = [{worker: place for place, worker in enumerate(hosts)} for hosts in alone.hosts]
    for chunk, hosts in enumerate(few.hosts):
        ours = [hosts.index(worker) for worker in few.host[:, chunk].tolist()]
        assert ours == [live[chunk][worker] for worker in alone.host[:, chunk].tolist()]


def test_one_that_would_be_tiny_has_some_more() -> None:
    few = few_pipelines(routed_problem(unit_job(2, 64, 16)))
    assert few is not None and few.pipelines == 8


def test_there_is_none() -> None:
    """Of a job that has but one pipeline, or where quotients are not whole."""
    assert few_pipelines(routed_problem(unit_job(6, 1, 40))) is None
    assert few_pipelines(routed_problem(unit_job(3, 4, 80), normal_form((0, 1, 0), 4))) is None


def test_micro_batches_dealt_out_one_after_another_have_the_times_of_one() -> None:
    problem = routed_problem(unit_job(2, 64, 16))
    few = few_pipelines(problem)
    assert few is not None
    start = np.broadcast_to(np.arange(few.units, dtype=np.int64)[:, None], (3, few.units, 2))
    found = lifted(problem, few, start)[0, :, 0].reshape(64, 16)
    # Micro-batches 0 of the first eight of 64 pipelines are those of the first of eight, and so on.
    assert found[:9, 0].tolist() == [0] * 8 + [16]
    assert found[:, 1].tolist() == [pipeline // 8 * 16 + 1 for pipeline in range(64)]


def test_all_pipelines_do_what_few_do() -> None:
    """Tuning the few and tuning the whole come to the same, which rules alone do not."""
    problem = routed_problem(unit_job(4, 12, 40, capacity=4), normal_form((0, 3, 0, 0), 12))
    few = few_pipelines(problem)
    assert few is not None
    goal = Goal(lower_bound(problem).period, lower_bound(problem).period)
    assert lower_bound(few).period == goal.aim
    whole = tune(Clock(problem), goal, Effort().tuning, Noise(0), AMPLE)
    alone = tune(Clock(few), goal, Effort().tuning._replace(other_routes=False), Noise(0), AMPLE)
    assert goal.enough <= whole.timed.period <= alone.timed.period


def test_pipelines_that_have_failed_need_not_divide() -> None:
    """Of 13 workers 3 have failed everywhere: 52 micro-batches on one worker, or 520 on ten."""
    problem = routed_problem(unit_job(3, 13, 40, capacity=4), normal_form((3, 3, 3), 13))
    few = few_pipelines(problem)
    assert few is not None
    assert {len(hosts) for hosts in few.hosts} == {1} and few.units == 52
    assert lower_bound(few).period == lower_bound(problem).period
    times = np.arange(3 * few.units * 3, dtype=np.int64).reshape(3, few.units, 3)
    start = lifted(problem, few, times)
    # Each worker of all has what the one of a few has, in the same order.
    for worker in np.unique(problem.host[:, 0]):
        assert sorted(start[0, problem.host[:, 0] == worker, 0]) == times[0, :, 0].tolist()
    goal = Goal(lower_bound(problem).period, lower_bound(problem).period)
    clock, alone = Clock(problem), tune(Clock(few), goal, Effort().tuning, Noise(0), AMPLE).timed
    whole = clock.time(clock.order_of(lifted(problem, few, alone.start)))
    assert whole is not None and whole.period == alone.period
