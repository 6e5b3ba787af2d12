"""Timetables: whole trips on workers that are idle and have room, and plans that no routes in turn have."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.ir.failure import normal_form
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling import tuning
from recycle_compiler.scheduling.bounds import lower_bound
from recycle_compiler.scheduling.budget import Budget, Guard
from recycle_compiler.scheduling.problem import Ints, Problem, rerouted
from recycle_compiler.scheduling.rules import holdable
from recycle_compiler.scheduling.search import Effort, plan
from recycle_compiler.scheduling.timetable import can_have_timetable, free_from, take, timetable
from tests.support.jobs import SLOT, far_job, routed_problem, unit_job


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    stages, pipelines = draw(st.integers(2, 5)), draw(st.integers(2, 4))
    job = unit_job(stages, pipelines, draw(st.integers(1, 8)), capacity=draw(st.sampled_from([None, 3, 5])))
    forward, backward, weight, transfer = (
        tuple(draw(st.integers(1, 5)) * SLOT for _ in range(count))
        for count in (stages, stages, stages, stages - 1)
    )
    job = replace(job, forward=forward, backward_input=backward, backward_weight=weight, transfer=transfer)
    failed = tuple(draw(st.integers(0, pipelines - 1)) for _ in range(stages))
    return _in_turn(routed_problem(job, normal_form(failed, pipelines)))


def _in_turn(problem: Problem) -> Problem:
    pipeline, turn = np.divmod(np.arange(problem.units), problem.microbatches)
    number = turn * problem.pipelines + pipeline
    host = np.stack([np.array(workers)[number % len(workers)] for workers in problem.hosts], axis=1)
    return rerouted(problem, problem.hosts, host)


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from([500, 950, 1000, 1500]))
def test_trips_are_whole_and_nobody_is_in_the_way(problem: Problem, pace: int) -> None:
    assert can_have_timetable(problem)
    period = 2 * lower_bound(problem).period
    found = timetable(problem, pace, period)
    forward, backward = found.start
    length, back = np.array(problem.forward), np.array(problem.backward)
    transfer = np.array(problem.transfer)
    assert (forward[:, 1:] >= forward[:, :-1] + length[:-1] + transfer).all()
    assert (backward[:, :-1] >= backward[:, 1:] + back[1:] + transfer).all()
    assert (backward[:, -1] >= forward[:, -1] + length[-1]).all()
    for chunk, workers in enumerate(problem.hosts):
        host = found.problem.host[:, chunk]
        assert set(host.tolist()) <= set(workers)
        for worker in workers:
            mine = host == worker
            _check_worker(problem, chunk, forward[mine, chunk], backward[mine, chunk], period)


def _check_worker(problem: Problem, chunk: int, forward: Ints, backward: Ints, period: int) -> None:
    """It does one thing at a time, holds what fits into its memory, and has no more than it can do."""
    begins = np.concatenate([forward, backward])
    ends = np.concatenate([forward + problem.forward[chunk], backward + problem.backward[chunk]])
    order = np.argsort(begins)
    assert (begins[order][1:] >= ends[order][:-1]).all()
    freed = backward + problem.backward[chunk]
    held = [int(((forward <= time) & (freed > time)).sum()) for time in forward.tolist()]
    assert max(held, default=0) <= holdable(problem)[chunk]
    share = -(-problem.units // len(problem.hosts[chunk]))
    each = problem.forward[chunk] + problem.backward[chunk] + problem.weight[chunk]
    assert len(forward) <= max(share, (period - problem.pool_finish[chunk]) // each)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 6)), max_size=12),
    st.integers(0, 80),
    st.integers(1, 9),
)
def test_the_first_gap_that_is_long_enough(wishes: list[tuple[int, int]], time: int, length: int) -> None:
    begins, ends = np.zeros(14, dtype=np.int64), np.zeros(14, dtype=np.int64)
    busy = np.zeros(200, dtype=np.bool_)
    for count, (wish, lasts) in enumerate(wishes):
        begin = free_from(begins, ends, count, wish, lasts)
        assert not busy[begin : begin + lasts].any()
        busy[begin : begin + lasts] = True
        take(begins, ends, count, begin, lasts)
    found = free_from(begins, ends, len(wishes), time, length)
    assert found == next(at for at in range(time, 200) if not busy[at : at + length].any())


def test_routes_that_somebody_chose_stay() -> None:
    problem = routed_problem(unit_job(5, 4, 9), normal_form((0, 0, 1, 0, 0), 4))
    host = problem.host.copy()
    host[[0, 9], 2] = host[[9, 0], 2]
    assert can_have_timetable(problem)
    assert not can_have_timetable(rerouted(problem, problem.hosts, host))


def test_weights_come_later() -> None:
    problem = routed_problem(unit_job(3, 2, 4), ())
    found = timetable(problem, 1000, 10**12)
    soon, late = found.priority(0), found.priority(80)
    assert (soon[:2] == found.start).all() and (late[:2] == found.start).all()
    assert (found.start[1] < soon[2]).all() and (soon[2] < late[2]).all()


def test_routes_stay_where_they_are_settled() -> None:
    """Groups of pipelines are planned one by one, on workers that the graph of all has named."""
    job, effort = far_job(), replace(Effort(), rounds=2)
    problem = routed_problem(job, normal_form((0, 1, 0, 0, 0, 0), 3))
    free, settled = (
        plan(problem, job.solver, replace(effort, other_routes=other_routes), Budget(Guard(10**15)))
        for other_routes in (True, False)
    )
    assert free.host is not None
    assert settled.host is None
    assert free.timed.period < settled.timed.period


def test_a_plan_that_rules_do_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes verify the schedule and its streams on the way."""
    failed, effort = normal_form((0, 1, 0, 0, 0, 0), 3), replace(Effort(), rounds=2)
    claims = plan_failed(far_job(), failed, effort=effort).claims
    assert claims.period * 100 <= claims.lower_bound * 101
    monkeypatch.setattr(tuning, "can_have_timetable", _never)
    by_rules = plan_failed(far_job(), failed, effort=effort).claims
    assert by_rules.lower_bound == claims.lower_bound
    assert by_rules.period > claims.period


def _never(problem: Problem) -> bool:
    return False
