"""Models of `transformers`, given whole, train in a pipeline as in a plain loop."""

from pathlib import Path

import pytest
import torch

from tests.runtime.recovery.recut_plans import write_bundle
from tests.runtime.training.threads import train_in_threads
from tests.runtime.training.whole import train_whole
from tests.support.layers import layer_costs, layered_job

PROGRAMS = Path(__file__).resolve().parent / "programs"
STEPS = 4
PIPELINES = MICROBATCHES = 2


def two_by_two(folder: Path, cut: tuple[int, ...]) -> str:
    job = layered_job(layer_costs((1000,) * sum(cut)), cut, PIPELINES, MICROBATCHES)
    return write_bundle(folder / "whole.plan", job, {}, [(0, 0), (0, 1), (1, 0)])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cut"), [("llama", (2, 2)), ("gpt2", (1, 3))])
def test_equals_a_plain_loop(tmp_path: Path, name: str, cut: tuple[int, ...]) -> None:
    """Without failures, and with one."""
    program = str(PROGRAMS / f"{name}.py")
    expected = train_whole(program, PIPELINES * MICROBATCHES, STEPS)
    for plan in (0, 1):
        losses, workers = train_in_threads(two_by_two(tmp_path, cut), program, plan, STEPS)
        assert losses == pytest.approx(expected.losses, rel=1e-12)
        seen: set[str] = set()
        for worker in workers.values():
            for chunk in worker.chunks.values():
                for key, value in chunk.module.state_dict().items():
                    torch.testing.assert_close(value, expected.state[key], rtol=1e-10, atol=1e-12)
                    seen.add(key)
        assert seen == set(expected.state)
