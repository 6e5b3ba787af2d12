"""Jobs whose peers share experts, cut anew while they train: experts, owners and routers travel along."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.recovery.recut_plans import write_bundle
from tests.runtime.recovery.test_recut_runs import (
    MOMENTS,
    has_recut,
    is_run_by_four,
    kill_coordinator,
    on_event,
    plans_in_order,
    run_until,
)
from tests.runtime.training.compare import changed
from tests.runtime.training.test_whole_models import PROGRAMS
from tests.support.layers import layer_costs, layered_job

EXPERT_LAYERS = str(PROGRAMS / "expert_layers.py")
FIVE = "4x3,2x2"
PER_STEP = 9
EXPERTS = (0, 4, 4, 4, 4, 0)
"""Of each layer."""


@pytest.fixture(scope="session")
def recuttable_with_experts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two workers of a stage have slots for its experts, one alone has not."""
    return bundle_with_slots(tmp_path_factory.mktemp("recut") / "experts.plan", 2)


@pytest.fixture(scope="session")
def with_slots_to_spare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Every worker has room for all experts."""
    return bundle_with_slots(tmp_path_factory.mktemp("recut") / "spare.plan", 4)


def bundle_with_slots(path: Path, slots: int) -> str:
    exchange = tuple(100 * (count > 0) for count in EXPERTS)
    costs = replace(layer_costs((1000,) * 6), expert_counts=EXPERTS, exchange=exchange)
    job = layered_job(costs, (3, 3), 3, PER_STEP // 3, owners=2, slots=slots)
    # Of the second stage one worker alone has slots for its experts only where there are some to spare.
    covered = [(1, 0), (0, 1)][: slots // 2]
    return write_bundle(path, job, {FIVE: covered}, [(0, 0), (0, 1), (1, 0), (1, 1)])


def test_a_failure_is_rerouted_and_then_recut(tmp_path: Path, recuttable_with_experts: str) -> None:
    outcome = run_until(
        tmp_path, recuttable_with_experts, ["kill=1:1@3"], [], has_recut(FIVE),
        steps=40, program=EXPERT_LAYERS, per_step=PER_STEP,
    )  # fmt: skip
    assert plans_in_order(outcome) == ["0 0", "0 1", FIVE]


@pytest.mark.slow
@pytest.mark.parametrize("clip", ["", "CLIP_NORM = 0.2"])
def test_there_and_back_again(tmp_path: Path, recuttable_with_experts: str, clip: str) -> None:
    """The worker comes back. Every step is clipped, too."""
    program = changed(tmp_path, EXPERT_LAYERS, clip) if clip else EXPERT_LAYERS
    outcome = run_until(
        tmp_path, recuttable_with_experts, ["kill=1:1@5"], ["1:1@40"], has_recut("3x3,3x3"),
        program=program, per_step=PER_STEP,
    )  # fmt: skip
    assert plans_in_order(outcome)[:3] == ["0 0", "0 1", FIVE]
    assert plans_in_order(outcome)[-1] == "0 0"


@pytest.mark.slow
def test_the_coordinator_is_killed_while_layers_travel(tmp_path: Path, recuttable_with_experts: str) -> None:
    outcome = run_until(
        tmp_path, recuttable_with_experts, ["kill=1:1@5"], [], has_recut(FIVE),
        drive=lambda: on_event("re-cut begins", kill_coordinator), program=EXPERT_LAYERS, per_step=PER_STEP,
    )  # fmt: skip
    assert plans_in_order(outcome) == ["0 0", "0 1", FIVE]


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_second_failure_around_the_switch(tmp_path: Path, with_slots_to_spare: str, moment: str) -> None:
    faults = ["kill=1:1@5", f"kill={moment}"]
    run_until(
        tmp_path, with_slots_to_spare, faults, [], is_run_by_four,
        program=EXPERT_LAYERS, per_step=PER_STEP,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("position", range(0, 40, 3))
@pytest.mark.parametrize("worker", ["0:1", "0:0"])
def test_a_second_failure_at_an_instruction(
    tmp_path: Path, with_slots_to_spare: str, worker: str, position: int
) -> None:
    """The first failure is in step 5, and layers travel from step 6 on; the switch is some steps later."""
    faults = ["kill=1:1@5", f"kill={worker}@{7 + position % 4}.{position}"]
    run_until(
        tmp_path, with_slots_to_spare, faults, [], is_run_by_four,
        program=EXPERT_LAYERS, per_step=PER_STEP,
    )  # fmt: skip
