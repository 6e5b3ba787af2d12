"""An even flow: what a worker repeats fits into its cycle, and nobody waits for what has not arrived."""

import numpy as np
import pytest

from bench.reference.random_jobs import random_job
from recycle_compiler.ir.failure import normal_form
from recycle_compiler.scheduling.flow import flow_cycles, flow_priority
from recycle_compiler.scheduling.problem import Problem
from tests.support.jobs import SLOT, routed_problem, unit_job


def random_problem(seed: int) -> Problem:
    job, failed_per_stage = random_job(seed)
    return routed_problem(job, normal_form(failed_per_stage, job.pipelines))


@pytest.mark.parametrize("seed", range(40))
def test_ops_of_a_cycle_do_not_overlap(seed: int) -> None:
    problem = random_problem(seed)
    cycles, times = flow_cycles(problem), flow_priority(problem, in_turn=True)[:, 0]
    durations = np.array([problem.forward, problem.backward, problem.weight])
    for chunk, cycle in enumerate(cycles.tolist()):
        begins = sorted(zip(times[:, chunk] % cycle, durations[:, chunk], strict=True))
        ends = [begin + duration for begin, duration in begins]
        assert all(end <= begin for end, (begin, _) in zip(ends, begins[1:], strict=False))
        assert ends[-1] <= begins[0][0] + cycle


@pytest.mark.parametrize("seed", range(40))
def test_ops_follow_what_they_wait_for(seed: int) -> None:
    problem = random_problem(seed)
    forward, backward, weight = flow_priority(problem, in_turn=False)[:, -1]
    down = np.array(problem.forward[:-1]) + np.array(problem.transfer)
    way_up = np.array(problem.backward[1:]) + np.array(problem.transfer)
    assert (np.diff(forward) >= down).all()
    assert (backward[:-1] - backward[1:] >= way_up).all()
    assert (backward >= forward + np.array(problem.forward)).all()
    assert (weight >= backward + np.array(problem.backward)).all()


def test_micro_batches_set_out_a_step_apart() -> None:
    """Two pipelines of two stages, all times a slot: 3 slots of work, and 2 % more, for two workers."""
    problem = routed_problem(unit_job(2, 2, 3))
    step = 3 * SLOT // 2 * 102 // 100
    assert flow_cycles(problem).tolist() == [2 * step, 2 * step]
    sets_out = flow_priority(problem, in_turn=True)[0, :, 0].reshape(2, 3)
    assert (sets_out == step * np.array([[0, 2, 4], [1, 3, 5]])).all()
    assert (flow_priority(problem, in_turn=False)[0, :, 0] == step * np.array([0, 2, 4, 0, 2, 4])).all()


def test_memory_sets_the_step_where_it_holds_one_micro_batch() -> None:
    """A round trip through four stages takes 8 slots with F and backward of the first, and W one more."""
    problem = routed_problem(unit_job(4, 1, 3, capacity=1))
    assert flow_cycles(problem).tolist() == [9 * SLOT * 102 // 100] * 4
