"""One pipeline in place of all: its ops, and what comes of lifting its times."""

import numpy as np

from recycle_compiler.ir.failure import normal_form
from recycle_compiler.scheduling.bounds import lower_bound
from recycle_compiler.scheduling.budget import Budget, Goal, Guard, Noise
from recycle_compiler.scheduling.one_pipeline import lifted, one_pipeline
from recycle_compiler.scheduling.order_search import search_at_length
from recycle_compiler.scheduling.search import Effort
from recycle_compiler.scheduling.timing import Clock
from recycle_compiler.scheduling.tuning import tune_by_one_pipeline
from tests.support.jobs import SLOT, routed_problem, unit_job

AMPLE = Budget(Guard(10**15))


def test_without_failures_it_is_the_job_with_one_pipeline() -> None:
    one = one_pipeline(routed_problem(unit_job(3, 4, 40, capacity=3)))
    alone = routed_problem(unit_job(3, 1, 40, capacity=3))
    assert one is not None
    assert lower_bound(one) == lower_bound(alone)
    assert [column.tolist() for column in one.tasks[:4]] == [column.tolist() for column in alone.tasks[:4]]
    pairs = zip(one.tasks.edges, alone.tasks.edges, strict=True)
    assert all((ours == theirs).all() for ours, theirs in pairs)


def test_a_stage_that_lost_workers_takes_longer_and_holds_less() -> None:
    one = one_pipeline(routed_problem(unit_job(3, 4, 40, capacity=4), normal_form((0, 1, 0), 4)))
    assert one is not None
    # Four pipelines on three workers, in whole ticks.
    assert one.forward == (SLOT, -(-4 * SLOT // 3), SLOT)
    assert one.capacity == (4 * SLOT, 3 * SLOT, 4 * SLOT)


def test_there_is_none() -> None:
    """Of a job that has but one, or where a stage would have less memory than a micro-batch takes."""
    assert one_pipeline(routed_problem(unit_job(3, 1, 40))) is None
    assert one_pipeline(routed_problem(unit_job(3, 4, 40, capacity=1), normal_form((0, 1, 0), 4))) is None


def test_every_pipeline_has_its_times() -> None:
    problem = routed_problem(unit_job(2, 3, 2))
    start = np.arange(12, dtype=np.int64).reshape(3, 2, 2)
    assert lifted(problem, start)[0].tolist() == [[0, 1], [2, 3]] * 3


def test_without_failures_all_pipelines_do_what_one_does() -> None:
    problem = routed_problem(unit_job(4, 3, 40, capacity=4))
    clock = Clock(problem)
    goal = Goal(lower_bound(problem).period, lower_bound(problem).period)
    found = tune_by_one_pipeline(clock, goal, Effort().tuning, Noise(0), AMPLE)
    assert found is not None
    better = search_at_length(clock, found, goal, Noise(0), AMPLE)
    assert goal.enough <= better.period <= found.period
