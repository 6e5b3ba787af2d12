"""The MILP against known optima; what it finds is judged by a checker that knows only the rules."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from bench.reference.optima import Optimum, load_optima
from recycle_compiler.ir.failure import failure_set, normal_form
from recycle_compiler.ir.job import Techniques
from recycle_compiler.scheduling.budget import Budget, Guard
from recycle_compiler.scheduling.milp.solve import Limits, Stop, raise_bound, relax, solve
from recycle_compiler.scheduling.problem import Problem
from tests.support.broken_rules import broken_rules
from tests.support.jobs import ADAPTIVE, ALL, DECOUPLED, NONE, SLOT, figure3, routed_problem, unit_job

OPTIMA = Path(__file__).resolve().parents[3] / "data" / "optima.jsonl"
PARTS = 40
"""In which all jobs are looked at: together they take longer than a test may."""
LIMITS = Limits()
AMPLE = Budget(Guard(10**15))
ONE_FAILED = failure_set([(1, 2)])


EXAMPLE = [
    pytest.param((4, 3, 2, 1), NONE, (), 27 + 3, id="fault-free"),
    pytest.param(None, DECOUPLED, (), 21 + 3, id="fault-free-decoupled"),
    pytest.param((4, 3, 2, 1), ADAPTIVE, ONE_FAILED, 36 + 3, id="adaptive-tight"),
    pytest.param(4, ADAPTIVE, ONE_FAILED, 33 + 3, id="adaptive"),
    pytest.param(4, DECOUPLED, ONE_FAILED, 29 + 3, id="decoupled"),
    pytest.param((4, 3, 2, 1), DECOUPLED, ONE_FAILED, 32 + 3, id="decoupled-tight"),
    pytest.param(None, ALL, ONE_FAILED, 30, id="staggered-unlimited"),
    pytest.param(4, ALL, ONE_FAILED, 32, id="staggered"),
]


@pytest.mark.parametrize("capacity, techniques, failed, least", EXAMPLE)
def test_the_running_example_is_found_and_nothing_shorter_exists(
    capacity: tuple[int, ...] | int | None,
    techniques: Techniques,
    failed: tuple[tuple[int, int], ...],
    least: int,
) -> None:
    problem = routed_problem(figure3(capacity, techniques), failure_set(failed))
    found = solve(problem, least * SLOT, LIMITS, AMPLE)
    assert found.stop is Stop.FOUND and found.start is not None
    assert broken_rules(problem, found.start, least * SLOT) == []
    for search in (solve, relax):
        below = search(problem, (least - 1) * SLOT, LIMITS, AMPLE)
        assert (below.stop, below.exact) == (Stop.REFUTED, True)
    assert raise_bound(problem, 0, (least + 4) * SLOT, LIMITS, AMPLE) == least * SLOT


def problem_of_entry(entry: Optimum) -> Problem:
    return routed_problem(entry.job, normal_form(entry.failed_per_stage, entry.job.pipelines))


def small_entries() -> list[Optimum]:
    """The first lines of the file, without those that take long."""
    return [entry for entry in islice(load_optima(OPTIMA), 120) if entry.best <= 24 * SLOT]


def check_against_optimum(entry: Optimum) -> None:
    """A schedule that is found is valid, and no proof denies a schedule that exists."""
    problem = problem_of_entry(entry)
    for target in (entry.best, entry.best - problem.grain):
        outcome = solve(problem, target, LIMITS, AMPLE)
        if outcome.start is not None:
            assert broken_rules(problem, outcome.start, target) == [], entry.seed
            assert target >= entry.lower_bound, f"seed {entry.seed}: better than the exact solver's bound"
        if outcome.stop is Stop.REFUTED and max(map(len, problem.hosts)) == 1:
            assert target < entry.best, f"seed {entry.seed}: the only routing was refuted where it works"
    assert relax(problem, entry.best, LIMITS, AMPLE).stop is not Stop.REFUTED, f"seed {entry.seed}"


def test_small_jobs_against_proven_optima() -> None:
    assert len(small_entries()) > 30
    for entry in small_entries():
        check_against_optimum(entry)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_all_jobs_against_proven_optima(part: int) -> None:
    for entry in load_optima(OPTIMA):
        if entry.seed % PARTS == part:
            check_against_optimum(entry)


def test_most_optima_are_proven_without_regard_to_routing() -> None:
    settled = [entry for entry in small_entries() if entry.optimum is not None]
    proven = [
        raise_bound(problem_of_entry(entry), 0, entry.best, LIMITS, AMPLE) == entry.best for entry in settled
    ]
    assert sum(proven) >= 0.9 * len(proven)


def test_what_differs_only_in_the_checker_is_caught() -> None:
    """The checker itself can see: move one op, and some rule breaks."""
    problem = routed_problem(unit_job(2, 1, 2, (2, 1)))
    target = 20 * SLOT
    found = solve(problem, target, LIMITS, AMPLE)
    assert found.start is not None and broken_rules(problem, found.start, target) == []
    for kind in range(3):
        moved = found.start.copy()
        moved[kind, 1, 1] = 0
        assert broken_rules(problem, moved, target) != []


def test_the_same_problem_gives_the_same_schedule() -> None:
    problem = routed_problem(figure3(4), ONE_FAILED)
    first, second = (solve(problem, 32 * SLOT, LIMITS, AMPLE) for _ in range(2))
    assert first.start is not None and second.start is not None
    assert np.array_equal(first.start, second.start)
    assert (first.relaxations, first.iterations) == (second.relaxations, second.iterations)


@pytest.mark.parametrize(
    "limits, budget, stop",
    [
        (replace(LIMITS, relaxations=0), AMPLE, Stop.WORK_LIMIT),
        (replace(LIMITS, relaxations=3), AMPLE, Stop.WORK_LIMIT),
        (replace(LIMITS, iterations=50), AMPLE, Stop.WORK_LIMIT),
        (replace(LIMITS, counts=100), AMPLE, Stop.WORK_LIMIT),
        (LIMITS, Budget(Guard(0)), Stop.TIME_LIMIT),
        (LIMITS, Budget(Guard(10**15), 10**6), Stop.WORK_LIMIT),
    ],
)
def test_a_limit_is_named(limits: Limits, budget: Budget, stop: Stop) -> None:
    outcome = solve(routed_problem(figure3(4), ONE_FAILED), 32 * SLOT, limits, budget)
    assert (outcome.stop, outcome.start, outcome.exact) == (stop, None, False)


def test_what_the_dive_leaves_open_goes_to_branch_and_bound() -> None:
    problem = routed_problem(unit_job(3, 2, 3, 3, DECOUPLED))
    least = raise_bound(problem, 0, 40 * SLOT, LIMITS, AMPLE)
    limits = replace(LIMITS, relaxations=0, nodes=1_000)
    found = solve(problem, least, limits, AMPLE)
    assert found.stop is Stop.FOUND and found.start is not None
    assert broken_rules(problem, found.start, least) == []
    below = solve(problem, least - SLOT, limits, AMPLE)
    assert (below.stop, below.exact) == (Stop.REFUTED, False)
