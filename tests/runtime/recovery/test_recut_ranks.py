"""A job whose workers are two tensor-parallel processes each, cut anew while it trains."""

from dataclasses import replace
from pathlib import Path

import pytest

from recycle_runtime.plan.bundle import Bundle
from tests.runtime.recovery.recut_plans import write_bundle
from tests.runtime.recovery.sliced import RANKS, SLICED, check_slices
from tests.runtime.recovery.watched import Outcome, run
from tests.support.layers import layer_costs, layered_job

PER_STEP = 2


@pytest.mark.slow
def test_every_rank_takes_the_layers_of_the_same_rank(tmp_path: Path) -> None:
    """From one pipeline of two stages to one stage on both workers; then one of them fails."""
    job = replace(layered_job(layer_costs((1000,) * 4), (2, 2), 1, PER_STEP), tensor=RANKS)
    bundle = write_bundle(tmp_path / "ranks.plan", job, {"4x2": [(1,)]}, [(0, 0)])
    assert Bundle.read(bundle).tensor == RANKS
    steps, outcome = 60, Outcome()
    for attempt in range(3):
        here = tmp_path / f"run-{attempt}"
        outcome = run(here, bundle, SLICED, steps, [f"kill=0:1@{steps - 20}"], recut="always")
        check_slices(here, outcome, steps, PER_STEP)
        if outcome.rows[-1].plan == "4x1":
            assert any(event.startswith("re-cut to 4x2: ") for event in outcome.events)
            return
        steps *= 3
    pytest.fail(f"it has not come to it: {outcome.events}")


GROUPS = "2x1,2x1@3+4x1@1"
"""Of three workers: a pipeline of two, and one that holds all layers."""


@pytest.mark.slow
def test_every_rank_sums_with_the_same_rank_of_other_groups(tmp_path: Path) -> None:
    """A pipeline loses a stage, and its other worker becomes a group of its own; then that fails."""
    job = replace(layered_job(layer_costs((1000,) * 4), (2, 2), 2, PER_STEP), tensor=RANKS)
    bundle = write_bundle(tmp_path / "ranks.plan", job, {GROUPS: []}, [(0, 0), (0, 1), (1, 0), (1, 1)])
    steps, outcome = 60, Outcome()
    for attempt in range(3):
        here = tmp_path / f"run-{attempt}"
        faults = ["kill=1:1@5", f"kill=1:0@{steps - 20}"]
        outcome = run(here, bundle, SLICED, steps, faults, recut="always")
        check_slices(here, outcome, steps, 2 * PER_STEP)
        if GROUPS in [row.plan for row in outcome.rows] and outcome.rows[-1].live == 2:
            return
        steps *= 3
    pytest.fail(f"it has not come to it: {outcome.events}")


@pytest.mark.slow
def test_where_layers_travel_no_worker_comes_back_with_fewer_ranks(tmp_path: Path) -> None:
    """It is refused in a sentence, and the job goes on without it."""
    job = replace(layered_job(layer_costs((1000,) * 4), (2, 2), 2, PER_STEP), tensor=RANKS)
    bundle = write_bundle(tmp_path / "ranks.plan", job, {"4x2": []}, [(0, 0), (0, 1)])
    outcome = run(tmp_path / "run", bundle, SLICED, 12, ["kill=1:1@3"], ["1:1@5x1"], recut="auto")
    check_slices(tmp_path / "run", outcome, 12, 2 * PER_STEP)
    assert outcome.rows[-1].live == 3
    (said,) = [event for event in outcome.events if "with 1 of its ranks" in event]
    assert said.startswith("1:1 is not restarted") and "several cuts" in said
