"""Runs that are cut anew while they train: nothing is lost or repeated, all numbers are as they should be."""

from pathlib import Path

import pytest

from tests.runtime.recovery.recut_plans import LAYERED, check_layers, three_by_two, write_bundle
from tests.runtime.recovery.watched import run

STEPS = 60
FIVE = "4x3,2x2"
"""For five workers."""


@pytest.fixture(scope="session")
def recuttable(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("recut") / "recut.plan"
    return write_bundle(path, three_by_two(), {FIVE: [(1, 0), (0, 1), (1, 1)]})


def test_a_failure_is_rerouted_and_then_recut(tmp_path: Path, recuttable: str) -> None:
    outcome = run(tmp_path, recuttable, LAYERED, STEPS, ["kill=1:1@5"], recut="always")
    print(*outcome.events, *outcome.causes, sep="\n")
    check_layers(tmp_path, outcome, LAYERED, 12, STEPS)
    assert any(event.startswith(f"re-cut to {FIVE}: ") and "a pause of" in event for event in outcome.events)
    assert [row.plan for row in outcome.rows][-1] == FIVE
