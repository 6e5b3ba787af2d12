"""An even flow: what a worker repeats fits into its cycle, and nobody waits for what has not arrived."""

import numpy as np
import pytest

from bench.reference.random_jobs import random_job
from recycle_compiler.ir.failure import normal_form
from recycle_compiler.scheduling.flow import flow_cycles, flow_priority, with_weights
from recycle_compiler.scheduling.problem import UNLIMITED, Problem
from recycle_compiler.scheduling.ways import round_trip
from tests.support.jobs import SLOT, routed_problem, unit_job


def random_problem(seed: int) -> Problem:
    job, failed_per_stage = random_job(seed)
    return routed_problem(job, normal_form(failed_per_stage, job.pipelines))


@pytest.mark.parametrize("seed", range(40))
def test_a_cycle_has_room_for_all_three(seed: int) -> None:
    problem = random_problem(seed)
    cycles, times = flow_cycles(problem), flow_priority(problem, in_turn=True, deferral=0)[:, 0]
    for chunk, cycle in enumerate(cycles.tolist()):
        forward, backward = (times[kind, chunk] % cycle for kind in (0, 1))
        between = (backward - forward) % cycle - problem.forward[chunk]
        after = (forward - backward) % cycle - problem.backward[chunk]
        assert min(between, after) >= 0
        assert max(between, after) >= problem.weight[chunk]


@pytest.mark.parametrize("seed", range(40))
def test_ops_follow_what_they_wait_for(seed: int) -> None:
    problem = random_problem(seed)
    forward, backward, weight = flow_priority(problem, in_turn=False, deferral=100)[:, -1]
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
    sets_out = flow_priority(problem, in_turn=True, deferral=80)[0, :, 0].reshape(2, 3)
    assert (sets_out == step * np.array([[0, 2, 4], [1, 3, 5]])).all()
    at_once = flow_priority(problem, in_turn=False, deferral=80)[0, :, 0]
    assert (at_once == step * np.array([0, 2, 4, 0, 2, 4])).all()


def test_memory_sets_the_step_where_it_holds_one_micro_batch() -> None:
    """A round trip through four stages takes 8 slots with F and backward of the first, and W one more."""
    problem = routed_problem(unit_job(4, 1, 3, capacity=1))
    assert flow_cycles(problem).tolist() == [9 * SLOT * 102 // 100] * 4


@pytest.mark.parametrize("seed", range(40))
def test_deferred_weights_fit_into_memory(seed: int) -> None:
    """On average a worker holds as much as lies on the way round, and what W keep while they wait."""
    problem = random_problem(seed)
    cycles, start = flow_cycles(problem), np.zeros((2, problem.units, problem.chunks), dtype=np.int64)
    soon, halfway, late = (with_weights(problem, start, deferral)[2, 0] for deferral in (0, 50, 100))
    assert (soon == problem.backward).all()
    assert (abs(soon + late - 2 * halfway) <= 1).all()
    for chunk, (cycle, delay) in enumerate(zip(cycles.tolist(), (late - soon).tolist(), strict=True)):
        assert 0 <= delay <= cycle * problem.units
        if delay > 0 and problem.capacity[chunk] != UNLIMITED:
            way = problem.forward[chunk] + round_trip(problem, chunk) + problem.backward[chunk]
            held = problem.activation[chunk] * way + problem.kept[chunk] * delay
            assert held <= problem.capacity[chunk] * cycle or problem.kept[chunk] == 0


def test_weights_wait_where_there_is_room() -> None:
    """Of four stages with room for four each the first needs all of it for the way round, the last one next
    to nothing: it puts off three W at least."""
    problem = routed_problem(unit_job(4, 1, 12, capacity=4))
    start = np.zeros((2, problem.units, problem.chunks), dtype=np.int64)
    delays = with_weights(problem, start, 100)[2, 0] - with_weights(problem, start, 0)[2, 0]
    cycle = int(flow_cycles(problem)[0])
    assert delays.tolist() == sorted(delays.tolist())
    assert delays[0] < 2 * cycle and 3 * cycle <= delays[3] <= 4 * cycle
