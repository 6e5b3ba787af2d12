"""Other routes than those in turn: as even as these, and once what was missing."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.ir.failure import normal_form
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.problem import rerouted
from recycle_compiler.scheduling.routes import extras_apart, kept_at_home
from recycle_compiler.scheduling.search import Effort
from tests.support.jobs import ALL, SLOT, routed_problem, unit_job

ROUNDS_ALONE = replace(Effort(), searched_ops=0, rounds=2, compiled_op_moves=0, exact=False)


def test_only_those_of_failed_workers_are_dealt_out() -> None:
    problem = routed_problem(unit_job(5, 4, 9), normal_form((0, 0, 1, 0, 0), 4))
    other = kept_at_home(problem)
    assert other is not None
    runs = other.host[:, 2].reshape(4, 9) % 4
    assert runs.tolist() == [[0] * 9, [1] * 9, [2] * 9, [0, 1, 2] * 3]
    assert (other.host[:, [0, 1, 3, 4]] == problem.host[:, [0, 1, 3, 4]]).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 9), st.integers(12, 20), st.lists(st.integers(0, 8), min_size=7, max_size=9))
def test_nobody_has_more_than_the_busiest_in_turn(
    pipelines: int, microbatches: int, counts: list[int]
) -> None:
    failed = tuple(min(count, pipelines - 1) for count in counts)
    problem = routed_problem(unit_job(len(counts), pipelines, microbatches), normal_form(failed, pipelines))
    other = kept_at_home(problem)
    if other is None:
        assert len(set(failed)) == 1 or pipelines - max(failed) == 1
        return
    for chunk, workers in enumerate(problem.hosts):
        shares, others = (np.unique(one.host[:, chunk], return_counts=True) for one in (problem, other))
        assert set(others[0]) <= set(workers)
        assert others[1].max() == shares[1].max()


def test_other_workers_of_each_stage_have_one_more() -> None:
    """Sixteen micro-batches on three workers of every stage."""
    problem = routed_problem(unit_job(9, 4, 4), normal_form((1,) * 9, 4))
    other = extras_apart(problem)
    assert other is not None
    rows = other.host.reshape(4, 4, 9).transpose(1, 0, 2).reshape(16, 9) % 4
    assert rows[:, 0].tolist() == [0, *[0, 1, 2] * 5]
    assert rows[:, 4].tolist() == [1, *[0, 1, 2] * 5]
    extras = [np.bincount(rows[:, stage]).argmax() for stage in range(9)]
    assert extras == [0, 1, 2] * 3


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 9), st.integers(12, 20), st.lists(st.integers(0, 8), min_size=7, max_size=9))
def test_extras_apart_are_as_even(pipelines: int, microbatches: int, counts: list[int]) -> None:
    failed = tuple(min(count, pipelines - 1) for count in counts)
    problem = routed_problem(unit_job(len(counts), pipelines, microbatches), normal_form(failed, pipelines))
    other = extras_apart(problem)
    if other is None:
        assert all(problem.units % len(workers) == 0 for workers in problem.hosts)
        return
    for chunk in range(problem.chunks):
        shares, others = (np.unique(one.host[:, chunk], return_counts=True)[1] for one in (problem, other))
        assert sorted(others) == sorted(shares)


def test_a_plan_with_extras_apart() -> None:
    """The passes verify the schedule and its streams on the way, and the routes are those of the plan."""
    job = unit_job(9, 4, 4, capacity=9)
    failed = normal_form((1,) * 9, 4)
    plan = plan_failed(job, failed, effort=replace(ROUNDS_ALONE, extras_apart=True))
    usual = plan_failed(job, failed, effort=ROUNDS_ALONE)
    assert np.diff(plan.offsets).tolist() != np.diff(usual.offsets).tolist()
    assert plan.claims.lower_bound == usual.claims.lower_bound <= plan.claims.period


def test_whole_pipelines_stay_whole() -> None:
    """Without the technique `adaptive`, a micro-batch has one pipeline's workers on all stages."""
    techniques = replace(ALL, adaptive=False)
    job = replace(unit_job(3, 4, 40, capacity=9), techniques=techniques)
    failed = normal_form((1, 1, 1), 4)
    apart, usual = (
        plan_failed(job, failed, effort=replace(ROUNDS_ALONE, extras_apart=wanted))
        for wanted in (True, False)
    )
    assert apart.claims == usual.claims
    assert np.array_equal(apart.columns, usual.columns)


def test_routes_that_somebody_chose_stay() -> None:
    problem = routed_problem(unit_job(5, 4, 9), normal_form((0, 0, 1, 0, 0), 4))
    host = problem.host.copy()
    host[[0, 9], 2] = host[[9, 0], 2]
    assert kept_at_home(rerouted(problem, problem.hosts, host)) is None
    assert kept_at_home(routed_problem(unit_job(5, 4, 9), ())) is None


def test_a_plan_that_turns_do_not_have() -> None:
    """With routes in turn, as long a search ends at 21 slots. The passes verify the schedule and its streams
    on the way."""
    job = unit_job(4, 10, 4, capacity=3, optimizer=1)
    claims = plan_failed(job, normal_form((0, 1, 0, 0), 10), effort=ROUNDS_ALONE).claims
    assert (claims.period, claims.lower_bound) == (20 * SLOT, 20 * SLOT)
