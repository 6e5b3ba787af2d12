"""Ops placed backwards in time: they obey all that they obey forwards, with as much memory."""

import numpy as np
import pytest

from bench.reference.random_jobs import tight_job
from recycle_compiler.ir.failure import normal_form
from recycle_compiler.scheduling.mirror import Mirror, can_be_mirrored
from recycle_compiler.scheduling.problem import UNLIMITED, Problem
from recycle_compiler.scheduling.timing import Clock
from tests.support.jobs import routed_problem


def random_problem(seed: int) -> Problem:
    job, failed_per_stage = tight_job(seed)
    return routed_problem(job, normal_form(failed_per_stage, job.pipelines))


@pytest.mark.parametrize("problem", [*filter(can_be_mirrored, map(random_problem, range(40)))])
def test_ops_placed_backwards_are_a_schedule(problem: Problem) -> None:
    clock = Clock(problem)
    deadlines = np.array(problem.finish) * 3
    begin = (np.indices((3, problem.units, problem.chunks))[1] + 1).astype(np.int64)
    starts = Mirror(problem, deadlines).pushed_back(begin, patience=50)
    assert starts is not None
    order = clock.order_of(starts)
    ends = starts.ravel() + problem.tasks.duration
    before, after, lag = problem.tasks.edges
    assert (ends[before] + lag <= starts.ravel()[after]).all()
    for worker, ops in enumerate(order.reshape(problem.workers, -1)):
        mine = ops[ops >= 0]
        if len(mine) == 0:
            continue
        assert (ends[mine][:-1] <= starts.ravel()[mine][1:]).all()
        taken, freed = problem.tasks.takes[mine], problem.tasks.frees[mine]
        held = np.cumsum(taken) - np.concatenate([[0], np.cumsum(freed)[:-1]])
        if problem.worker_capacity[worker] != UNLIMITED:
            assert (held <= problem.worker_capacity[worker]).all()
