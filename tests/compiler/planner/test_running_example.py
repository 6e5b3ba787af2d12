"""The running example: 3 pipelines x 4 stages x 6 micro-batches, one failed worker on stage 2.

Every number was found by an exact solver, too; see docs/planning.md.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.failure import FailureSet, failure_set
from recycle_compiler.ir.job import Techniques
from recycle_compiler.ir.text import print_schedule
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.search import Effort
from tests.support.jobs import ADAPTIVE, ALL, DECOUPLED, NONE, SLOT, figure3

ONE_LOST = failure_set([(1, 2)])
DESCENDING = (4, 3, 2, 1)
"""What 1F1B holds: 4, 3, 2, 1 activations on stages 0 to 3."""


class Case(NamedTuple):
    name: str
    capacity: tuple[int | None, ...] | int | None
    techniques: Techniques
    failed: FailureSet
    makespan: int | None
    period: int
    bound: int


CASES = [
    Case("fault-free-1f1b", DESCENDING, NONE, (), 27, 30, 30),
    Case("adaptive", DESCENDING, ADAPTIVE, ONE_LOST, 36, 39, 39),
    Case("adaptive-equal-memory", 4, ADAPTIVE, ONE_LOST, 33, 36, 36),
    Case("decoupled-equal-memory", 4, DECOUPLED, ONE_LOST, 29, 32, 32),
    Case("decoupled", DESCENDING, DECOUPLED, ONE_LOST, 32, 35, 35),
    Case("staggered-unlimited", None, ALL, ONE_LOST, None, 30, 30),
    Case("staggered-equal-memory", 4, ALL, ONE_LOST, None, 32, 32),
    Case("fault-free-decoupled-unlimited", None, DECOUPLED, (), 21, 24, 24),
    Case("fault-free-zero-bubble", DESCENDING, ALL, (), None, 27, 27),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_slots(case: Case, golden_plan: Callable[[str, str, Effort], None]) -> None:
    job = replace(figure3(case.capacity, case.techniques), name="figure3")
    program = plan_failed(job, case.failed)
    claims = program.claims
    assert claims.period == case.period * SLOT
    assert claims.lower_bound == case.bound * SLOT
    if case.makespan is not None:
        assert claims.makespan == case.makespan * SLOT
    golden_plan(f"schedules/{case.name}.txt", print_schedule(replay(program)), Effort().prompt())
