"""Random faults and returns."""

from pathlib import Path

import pytest

from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.testing.chaos import chaos
from tests.runtime.recovery.watched import TINY, disturbed
from tests.runtime.training.compare import MLP, changed


def survive(folder: Path, bundle: str, program: str, seed: int, events: int, steps: int) -> None:
    plan = Bundle.read(bundle)
    planned = chaos(seed, events, steps, plan.pipelines, plan.stages, [])
    disturbed(folder, bundle, steps, planned.faults, planned.returns, program, heartbeat_timeout=4.0)


@pytest.mark.slow
def test_twenty_events(tmp_path: Path, wide: str) -> None:
    survive(tmp_path, wide, TINY, seed=1, events=20, steps=150)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_two_hundred_events(tmp_path: Path, wide: str, seed: int) -> None:
    program = changed(tmp_path, TINY, "CLIP_NORM = 0.45")
    survive(tmp_path, wide, program, seed, events=200, steps=1500)


@pytest.mark.slow
def test_two_hundred_events_of_the_running_example(tmp_path: Path, running_example: str) -> None:
    survive(tmp_path, running_example, MLP, seed=5, events=200, steps=1000)
