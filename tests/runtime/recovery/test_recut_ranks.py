"""A job whose workers are two tensor-parallel processes each, cut anew while it trains."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recycle_runtime.plan.bundle import Bundle
from tests.runtime.recovery.recut_plans import write_bundle
from tests.runtime.recovery.watched import PROGRAMS, Outcome, run
from tests.runtime.training.alone import train_alone
from tests.support.layers import layer_costs, layered_job

SLICED = str(PROGRAMS / "sliced_layers.py")
RANKS, PER_STEP = 2, 2
SLICED_ALONG = {"up": 0, "down": 1}


def check_slices(folder: Path, outcome: Outcome, steps: int) -> None:
    """Every step once, with its loss; every rank has its slices of what one process trains."""
    alone = train_alone(SLICED, 1, PER_STEP, steps, cut=(4,))
    said = (folder / "stderr").read_text(errors="replace")[-5_000:]
    assert outcome.error is None, said
    assert [row.step for row in outcome.rows] == list(range(steps)), said
    assert [row.loss for row in outcome.rows] == pytest.approx(alone.losses, rel=1e-9), said
    saved = sorted((folder / "saved").glob("worker-*.pt"))
    assert len(saved) == RANKS * outcome.rows[-1].live
    for path in saved:
        rank = int(path.stem.rpartition("-")[2])
        state: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["model"]
        for name, tensor in state.items():
            expected = alone.states[0][name]
            if (along := SLICED_ALONG.get(name.rpartition(".")[2])) is not None:
                expected = expected.chunk(RANKS, along)[rank]
            torch.testing.assert_close(tensor, expected, rtol=1e-9, atol=1e-9)


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
        check_slices(here, outcome, steps)
        if outcome.rows[-1].plan == "4x1":
            assert any(event.startswith("re-cut to 4x2: ") for event in outcome.events)
            return
        steps *= 3
    pytest.fail(f"it has not come to it: {outcome.events}")
