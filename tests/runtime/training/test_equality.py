"""Training with a plan gives the parameters of the same training on one process."""

import logging
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from recycle_compiler.ir.job import Techniques
from recycle_compiler.ir.streams import Streams
from tests.runtime.training.compare import (
    MLP,
    Failed,
    changed,
    check_in_threads,
    check_on_processes,
    check_plan_in_threads,
)
from tests.support.jobs import far_job, figure3, quick_plans, unit_job

FAILED: list[Failed] = [[], [(1, 2)], [(1, 2), (0, 0)], [(1, 2), (0, 0), (2, 2)]]
TECHNIQUES = [Techniques(bool(n & 1), bool(n & 2), bool(n & 4)) for n in range(8)]


@pytest.mark.parametrize(
    "failed", [*(pytest.param(failed, marks=pytest.mark.slow) for failed in FAILED[:-1]), FAILED[-1]]
)
def test_running_example_on_processes(tmp_path: Path, failed: Failed) -> None:
    check_on_processes(tmp_path, figure3((4, 3, 2, 1)), failed)


@pytest.mark.parametrize(
    ("techniques", "failed"),
    [(TECHNIQUES[-1], FAILED[0]), *((each, FAILED[-1]) for each in (TECHNIQUES[0], TECHNIQUES[-1]))],
    ids=str,
)
def test_running_example(tmp_path: Path, techniques: Techniques, failed: Failed) -> None:
    """Techniques and failures between these: `test_random_plans`."""
    check_in_threads(tmp_path, figure3((4, 3, 2, 1), techniques), failed)


@pytest.mark.parametrize("clip", [0.5, 2.0])
def test_clipping(tmp_path: Path, clip: float) -> None:
    """Early steps that must be made again, some of them or all, end where a barrier would have."""
    program = changed(tmp_path, MLP, f"CLIP_NORM = {clip}")
    check_in_threads(tmp_path, figure3((4, 3, 2, 1)), [(1, 2)], program)


def test_values_that_are_not_contiguous(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy before sending is said once, by each chunk that hands something on."""
    # Other tests of the same process have run commands, which set up logs of their own.
    monkeypatch.setattr(logging.getLogger("recycle_runtime"), "propagate", True)
    turned = "_forward = Layer.forward\nLayer.forward = lambda *given: _forward(*given).t().contiguous().t()"
    job = unit_job(2, 2, 2, None)
    with caplog.at_level("INFO", logger="recycle_runtime"):
        check_in_threads(tmp_path, job, [], changed(tmp_path, MLP, turned))
    said = [record.getMessage() for record in caplog.records if "handed on" in record.getMessage()]
    words = "1 tensor handed on: 1 not contiguous, 512 B a micro-batch copied before it is sent"
    assert said == [f"chunk 0: {words}"] * 2


@pytest.mark.slow
def test_routes_of_a_timetable(tmp_path: Path) -> None:
    """Micro-batches of healthy pipelines go through peers, and shares are not even."""
    check_in_threads(tmp_path, far_job(), [(1, 1)])


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=quick_plans())
def test_random_plans(tmp_path: Path, plan: Streams) -> None:
    check_plan_in_threads(tmp_path, plan)
