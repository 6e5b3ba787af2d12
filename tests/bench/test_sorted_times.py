"""Sorted times of stages: every plan has them, and a period that is too short has none."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from bench.sorted_times import Case, case_of
from recycle_compiler.ir.layout import parse_layout
from tests.support.layers import layer_costs, layered_job

ASKED = """
from bench.sorted_times import Case, refuted
for period in (15000, 14000):
    case = Case((1, 2), 4, ((1000, 1000, 1000), (2000, 2000, 2000)), (0,), (1000, 2000), period)
    print(*(refuted(case, shares, 600) for shares in case.cases()))
"""


def case(period: int) -> Case:
    """Two stages: of one layer on one worker, and of two on two."""
    job = layered_job(layer_costs((1000,) * 3, optimizer=1000), (1, 2), 2, 2, redundancy=1)
    return case_of(job, parse_layout("1x1,2x2"), period)


def test_a_case_for_each_way_to_share_out() -> None:
    assert case(21_000).times == ((1000,) * 3, (2000,) * 3)
    assert case(21_000).finish == (1000, 2000)
    # A worker of the second stage has time for three micro-batches from 20 ms on.
    assert list(case(20_000).cases()) == [{1: (3, 1)}, {1: (2, 2)}]
    assert list(case(19_999).cases()) == [{1: (2, 2)}]


def test_memory_that_could_bind_is_refused() -> None:
    costs = layer_costs((1000,) * 3, capacity=4000)
    with pytest.raises(AssertionError, match="memory"):
        case_of(layered_job(costs, (1, 2), 2, 2, redundancy=1), parse_layout("1x1,2x2"), 30_000)


@pytest.mark.skipif(find_spec("ortools") is None, reason="OR-Tools is not a dependency: pip install ortools")
def test_too_short_a_period_is_refuted_and_that_of_a_plan_is_not() -> None:
    """The plan of `case` takes 15 ms. In a process of its own, since CP-SAT and HiGHS do not share one."""
    run = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    enough, too_short = run.stdout.splitlines()
    assert "False" in enough.split()
    assert set(too_short.split()) == {"True"}
