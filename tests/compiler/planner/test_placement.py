"""Failures are carried by the stages that carry them best: no other counts per stage give a better plan.

Jobs are so small that every way to place any number of failures can be planned.
"""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.reference.random_jobs import small_job
from recycle_compiler.ir.failure import failed_per_stage, normal_form
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.planner.compile import compile_job, plan_failed
from recycle_compiler.planner.placement import failure_costs, place_failures
from tests.support.jobs import SLOT, figure3, routed_problem, unit_job

Times = tuple[int, ...]
Counts = tuple[int, ...]


def uneven(
    job: JobSpec, forward: Times, backward: Times, weight: Times, optimizer: Times, transfer: Times
) -> JobSpec:
    """The job with other times, in slots."""
    forward, backward, weight, optimizer, transfer = (
        tuple(SLOT * time for time in times) for times in (forward, backward, weight, optimizer, transfer)
    )
    return replace(
        job,
        forward=forward,
        backward_input=backward,
        backward_weight=weight,
        optimizer=optimizer,
        transfer=transfer,
    )


EVEN = {
    "two stages": unit_job(2, 2, 4),
    "two stages, three pipelines": unit_job(2, 3, 3),
    "two stages, memory of 1F1B": unit_job(2, 3, 4, capacity=(2, 1)),
    "three stages": unit_job(3, 2, 4),
    "three stages, memory of 1F1B": unit_job(3, 2, 4, capacity=(3, 2, 1)),
    "three stages, little memory": unit_job(3, 3, 2, capacity=1),
    "three stages, equal memory": unit_job(3, 3, 2, capacity=3),
}
UNEVEN = {
    "a slow end": uneven(unit_job(2, 3, 3, capacity=2), (1, 2), (1, 2), (1, 2), (1, 1), (0,)),
    "a slow start": uneven(
        unit_job(3, 2, 3, capacity=(3, 2, 1)), (2, 1, 1), (2, 1, 1), (1,) * 3, (1,) * 3, (0, 0)
    ),
    "a slow middle": uneven(unit_job(3, 3, 2), (1, 2, 1), (1, 2, 1), (1, 2, 1), (0,) * 3, (0, 0)),
    "transfers": uneven(unit_job(3, 2, 3, capacity=4), (1,) * 3, (2,) * 3, (1,) * 3, (2,) * 3, (1, 1)),
    "optimizers": uneven(unit_job(2, 3, 4, capacity=2), (1, 1), (1, 1), (1, 1), (6, 0), (1,)),
}
MISJUDGED = {
    "one failure on two stages": uneven(unit_job(2, 3, 2, capacity=2), (2, 2), (2, 2), (1, 2), (0, 1), (0,)),
    "one failure, longer ops": uneven(unit_job(2, 3, 2, capacity=2), (3, 3), (3, 3), (2, 3), (1, 2), (0,)),
    "two failures": uneven(unit_job(3, 3, 2, capacity=2), (2, 2, 1), (1, 3, 2), (1, 2, 1), (0, 0, 2), (0, 0)),
    "four failures": uneven(
        unit_job(3, 3, 2, capacity=(3, 2, 1)), (1, 2, 2), (3, 2, 3), (2, 2, 3), (0, 2, 2), (1, 1)
    ),
}
"""Here a quick plan is not enough to tell which counts are best."""
JOBS = {**EVEN, **UNEVEN, **MISJUDGED}
SLOW = ("three stages, little memory", "a slow middle", "transfers", "two failures", "four failures")
"""Jobs with most ways to place failures, or with the longest way to a plan."""


def best_placements(job: JobSpec) -> dict[int, tuple[int, list[Counts]]]:
    """For each number of failures, the shortest period and all counts per stage that reach it."""
    found: dict[int, dict[Counts, int]] = {}
    for counts in product(range(job.pipelines), repeat=job.stages):
        claims = plan_failed(job, normal_form(counts, job.pipelines)).claims
        found.setdefault(sum(counts), {})[counts] = claims.period
    return {
        failures: (
            min(periods.values()),
            [c for c, period in periods.items() if period == min(periods.values())],
        )
        for failures, periods in found.items()
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in JOBS]
)
def test_no_other_placement_gives_a_better_plan(name: str) -> None:
    job = JOBS[name]
    best = best_placements(job)
    programs = compile_job(job, failures=job.stages * (job.pipelines - 1))
    assert len(programs) == len(best)
    for failures, program in enumerate(programs):
        period, placements = best[failures]
        counts = failed_per_stage(program.failed, job.stages)
        assert program.claims.period <= period, f"{counts} was chosen, {placements} would be better"


COSTS = st.lists(
    st.lists(st.integers(1, 20), min_size=3, max_size=3).map(lambda row: sorted(row)), min_size=1, max_size=4
)


@given(COSTS, st.integers(0, 9))
def test_placement_is_the_best_of_all(costs: list[list[int]], total: int) -> None:
    every = [counts for counts in product(range(3), repeat=len(costs)) if sum(counts) == total]
    found = place_failures(costs, total, 4)
    if not every:
        assert found == []
        return

    def cost(counts: tuple[int, ...]) -> tuple[int, int]:
        each = [row[failed] for row, failed in zip(costs, counts, strict=True)]
        return max(each), sum(each)

    assert cost(found[0][1]) == min(map(cost, every))
    assert all(bound == cost(counts)[0] for bound, counts in found)
    assert [bound for bound, _ in found] == sorted(bound for bound, _ in found)
    # Whatever is left out is bounded by no less than what is proposed.
    left_out = [cost(counts)[0] for counts in every if counts not in [counts for _, counts in found]]
    assert len(found) == len(every) or min(left_out) >= found[0][0]


def test_the_middle_carries_a_failure_best_when_memory_is_equal() -> None:
    """Stage 1 idles for a slot at its start, stage 2 for more at its end, the first and the last for most."""
    costs = failure_costs(routed_problem(figure3(4)), 8, figure3(4))
    assert place_failures(costs, 1, 4) == [
        (31_000, (0, 1, 0, 0)),
        (31_500, (0, 0, 1, 0)),
        (33_000, (0, 0, 0, 1)),
        (33_000, (1, 0, 0, 0)),
    ]


@pytest.mark.parametrize("seed", [251, 259, 275])
def test_costs_of_failures_grow(seed: int) -> None:
    """The choice of counts relies on it, though bounds find less with fewer workers in these jobs."""
    job, _ = small_job(seed)
    job = replace(job, techniques=replace(job.techniques, decouple=False))
    costs = failure_costs(routed_problem(job, ()), job.workers - job.stages, job)
    assert all(row == sorted(row) for row in costs)
