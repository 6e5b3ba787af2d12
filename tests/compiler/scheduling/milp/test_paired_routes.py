"""Routes on which a healthy peer joins a failed one: as even as the usual ones, and once what was missing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.ir.failure import failure_set, normal_form
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.milp.paired_routes import paired
from recycle_compiler.scheduling.search import Effort
from tests.support.jobs import SLOT, routed_problem, unit_job


def test_a_peer_joins_the_failed_worker() -> None:
    problem = routed_problem(unit_job(4, 4, 8), normal_form((0, 0, 1, 0), 4))
    other = paired(problem)
    assert other is not None
    home = other.host[:, 2] % 4
    assert [np.bincount(home[first : first + 8], minlength=3).tolist() for first in range(0, 32, 8)] == [
        [8, 0, 0],
        [0, 8, 0],
        [0, 3, 5],
        [3, 0, 5],
    ]
    assert (other.host[:, [0, 1, 3]] == problem.host[:, [0, 1, 3]]).all()


@given(st.integers(2, 6), st.integers(1, 6), st.lists(st.integers(0, 3), min_size=2, max_size=3))
def test_everybody_has_as_many_as_before(pipelines: int, microbatches: int, counts: list[int]) -> None:
    failed = tuple(min(count, pipelines - 1) for count in counts)
    problem = routed_problem(unit_job(len(counts), pipelines, microbatches), normal_form(failed, pipelines))
    other = paired(problem)
    if other is None:
        assert len(set(failed)) == 1 or max(failed) * 3 > pipelines
        return
    assert (np.sort(other.host, axis=0) == np.sort(problem.host, axis=0)).all()


@pytest.mark.slow
def test_a_plan_that_the_usual_routes_do_not_have() -> None:
    """Four pipelines of four stages, eight micro-batches each: with the usual routes 36 is the optimum."""
    job = unit_job(4, 4, 8, capacity=4, optimizer=1)
    claims = plan_failed(job, failure_set([(1, 2)]), effort=Effort()).claims
    assert (claims.period, claims.lower_bound) == (35 * SLOT, 35 * SLOT)
