"""Runs that go over to groups of pipelines with cuts of their own, and survive failures there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.recovery.recut_plans import LAYERED, check_layers, three_by_two, write_bundle
from tests.runtime.recovery.test_recut_runs import has_recut, plans_in_order, run_until
from tests.runtime.recovery.watched import Outcome, run

GROUPS = "3x2,3x2@10+6x1@2"
"""Of five workers: four as two pipelines, and one that holds all layers."""


@pytest.fixture(scope="session")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("groups") / "groups.plan"
    return write_bundle(path, three_by_two(), {GROUPS: [(1, 1, 0)]})


@pytest.mark.slow
@pytest.mark.parametrize("owners", [0, 2], ids=["whole", "sharded"])
def test_a_failure_is_rerouted_and_then_in_groups(tmp_path: Path, owners: int) -> None:
    """Also with optimizer state in shards, which workers of both groups own."""
    bundle = write_bundle(tmp_path / "groups.plan", three_by_two(owners=owners), {GROUPS: [(1, 1, 0)]})
    outcome = run_until(tmp_path, bundle, ["kill=1:1@5"], [], has_recut(GROUPS))
    assert plans_in_order(outcome) == ["0 0", "0 1", GROUPS]


def goes_on_as(*plans: str) -> Callable[[Outcome], bool]:
    def happened(outcome: Outcome) -> bool:
        wanted = ["0 0", "0 1", *plans]
        return plans_in_order(outcome)[: len(wanted)] == wanted

    return happened


@pytest.mark.slow
@pytest.mark.parametrize("position", [0, 9, 30, 33])
def test_the_worker_with_all_layers_fails(tmp_path: Path, grouped: str, position: int) -> None:
    """The other group goes on alone: its workers hold all that the job's own cut needs."""
    faults = ["kill=1:1@5", f"kill=2:0@45.{position}"]
    run_until(tmp_path, grouped, faults, [], goes_on_as(GROUPS, "1 1"))


@pytest.mark.slow
@pytest.mark.parametrize("worker", ["0:0", "0:1"])
def test_a_worker_of_a_pipeline_fails(tmp_path: Path, grouped: str, worker: str) -> None:
    """A plan of the same groups covers it; what is summed over all groups stays so."""
    faults = ["kill=1:1@5", f"kill={worker}@45.9"]
    run_until(tmp_path, grouped, faults, [], goes_on_as(GROUPS, "3x1,3x1@10+6x1@2"))


@pytest.mark.slow
def test_a_checkpoint_of_groups_and_a_resume(tmp_path: Path, grouped: str) -> None:
    """Every layer is written once, though two workers or more of both groups hold it."""
    kept = tmp_path / "kept"
    first = run(tmp_path / "first", grouped, LAYERED, 90, ["kill=1:1@5"], checkpoint=kept, recut="always")
    assert first.rows[-1].plan == GROUPS
    second = run(tmp_path / "second", grouped, LAYERED, 120, checkpoint=kept, resume=True)
    begins = second.rows[0].step
    assert 0 < begins <= 90
    check_layers(tmp_path / "second", second, LAYERED, 12, 120, begins)
