"""Models that torch's tensor parallelism distributes over the ranks of a worker, through failures: every rank
has its slices of what a plain loop trains."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.runtime.recovery.recut_plans import write_bundle
from tests.runtime.recovery.watched import Outcome, run
from tests.runtime.training.whole import Whole, train_whole
from tests.support.layers import layer_costs, layered_job

PROGRAMS = Path(__file__).resolve().parents[1] / "training" / "programs"
LLAMA = str(PROGRAMS / "parallel_llama.py")
PIPELINES = MICROBATCHES = RANKS = 2


def two_by_two(folder: Path, *, decouples: bool = True, ranks: int = RANKS) -> str:
    """Two pipelines of two stages, each worker of so many ranks; Llama's four layers."""
    job = replace(layered_job(layer_costs((1000,) * 4), (2, 2), PIPELINES, MICROBATCHES), tensor=ranks)
    job = replace(job, techniques=replace(job.techniques, decouple=decouples))
    return write_bundle(folder / "ranks.plan", job, {}, [(0, 0), (0, 1), (1, 0)])


def check(folder: Path, outcome: Outcome, steps: int, expected: Whole) -> None:
    said = (folder / "stderr").read_text(errors="replace")[-5_000:]
    assert outcome.error is None, said
    assert [row.step for row in outcome.rows] == list(range(steps)), said
    assert [row.loss for row in outcome.rows] == pytest.approx(expected.losses[:steps], rel=1e-9)
    seen: set[str] = set()
    for path in (folder / "saved").glob("worker-*-0.pt"):
        ranks = [path.with_name(f"{path.name[: -len('0.pt')]}{rank}.pt") for rank in range(RANKS)]
        parts = [torch.load(each, weights_only=True)["model"] for each in ranks]
        for name, whole in expected.state.items():
            if name not in parts[0]:
                continue
            pieces = [part[name] for part in parts]
            along = [axis for axis, size in enumerate(whole.shape) if pieces[0].shape[axis] != size]
            joined = torch.cat(pieces, along[0]) if along else pieces[0]
            torch.testing.assert_close(joined, whole, rtol=1e-9, atol=1e-11)
            seen.add(name)
    assert seen == set(expected.state)


@pytest.mark.slow
@pytest.mark.parametrize("decouples", [True, False])
def test_a_kill_and_a_return(tmp_path: Path, decouples: bool) -> None:
    """One rank of a worker fails, and its worker with it."""
    steps = 60
    bundle = two_by_two(tmp_path, decouples=decouples)
    outcome = run(tmp_path / "run", bundle, LLAMA, steps, ["kill=1:1@3"], ["1:1@6"])
    assert outcome.causes
    assert outcome.rows[-1].live == 4
    check(tmp_path / "run", outcome, steps, train_whole(LLAMA, PIPELINES * MICROBATCHES, steps))
