"""Failures: normal form and renaming, placement on stages."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.ir.failure import failed_per_stage, failure_set, normal_form
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.normalize_failures import NormalizeFailures, relabel
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.planner.place_failures import place_failures, stage_costs
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle
from tests.support.jobs import figure3, routed_problem, small_targets, unit_job


def test_normal_form_gives_losses_to_the_last_pipelines() -> None:
    target = Target(unit_job(4, 3, 2), failure_set([(0, 1), (2, 1), (1, 3)]))
    assert NormalizeFailures().run(target).failed == failure_set([(2, 1), (1, 1), (2, 3)])


@settings(max_examples=30)
@given(small_targets().filter(lambda target: all(target.hosts)))
def test_a_renamed_plan_is_the_same_plan(target: Target) -> None:
    counts = failed_per_stage(target.failed, target.job.stages)
    planned = plan_failed(target.job, normal_form(counts, target.job.pipelines))
    renamed = relabel(planned, target.failed)
    assert renamed.failed == target.failed
    assert renamed.claims == planned.claims
    bundle = Bundle.parse(bundle_bytes(source="", plans=[renamed]))
    assert [str(violation) for violation in verify_bundle(bundle)] == []


def test_a_plan_is_not_renamed_to_other_counts() -> None:
    program = plan_failed(unit_job(2, 2, 2), failure_set([(1, 1)]))
    with pytest.raises(ValueError, match="other counts"):
        relabel(program, failure_set([(1, 0)]))


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
        each = [row[losses] for row, losses in zip(costs, counts, strict=True)]
        return max(each), sum(each)

    assert cost(found[0][1]) == min(map(cost, every))
    assert all(bound == cost(counts)[0] for bound, counts in found)
    assert [bound for bound, _ in found] == sorted(bound for bound, _ in found)
    # Whatever is left out is bounded by no less than what is proposed.
    left_out = [cost(counts)[0] for counts in every if counts not in [counts for _, counts in found]]
    assert len(found) == len(every) or min(left_out) >= found[0][0]


def test_the_middle_carries_a_failure_best_when_memory_is_equal() -> None:
    """Stage 1 idles for a slot at its start, stage 2 for more at its end, the first and the last for most."""
    costs = stage_costs(routed_problem(figure3(4)), 8)
    assert place_failures(costs, 1, 4) == [
        (31_000, (0, 1, 0, 0)),
        (31_500, (0, 0, 1, 0)),
        (33_000, (0, 0, 0, 1)),
        (33_000, (1, 0, 0, 0)),
    ]
