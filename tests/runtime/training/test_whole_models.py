"""Models of `transformers`, given whole, train in a pipeline as in a plain loop."""

from dataclasses import replace
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


def two_by_two(folder: Path, cut: tuple[int, ...], tied: tuple[int, ...] = ()) -> str:
    job = replace(layered_job(layer_costs((1000,) * sum(cut)), cut, PIPELINES, MICROBATCHES), tied=tied)
    return write_bundle(folder / "whole.plan", job, {}, [(0, 0), (0, 1), (1, 0)])


def tied_gpt2(folder: Path) -> str:
    """As `transformers` has it: the head is the token embedding."""
    path = folder / "tied_gpt2.py"
    source = (PROGRAMS / "gpt2.py").read_text()
    path.write_text(source.replace("tie_word_embeddings=False", "tie_word_embeddings=True"))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cut", "tied"), [("llama", (2, 2), ()), ("gpt2", (1, 3), ()), ("tied gpt2", (2, 2), (0, 3))]
)
def test_equals_a_plain_loop(tmp_path: Path, name: str, cut: tuple[int, ...], tied: tuple[int, ...]) -> None:
    """Without failures, and with one."""
    program = tied_gpt2(tmp_path) if tied else str(PROGRAMS / f"{name}.py")
    expected = train_whole(program, PIPELINES * MICROBATCHES, STEPS)
    for plan in (0, 1):
        losses, workers = train_in_threads(two_by_two(tmp_path, cut, tied), program, plan, STEPS)
        assert losses == pytest.approx(expected.losses, rel=1e-12)
        seen: set[str] = set()
        for worker in workers.values():
            for chunk in worker.chunks.values():
                for key, value in chunk.module.state_dict().items():
                    torch.testing.assert_close(value, expected.state[key], rtol=1e-10, atol=1e-12)
                    seen.add(key)
        assert seen == set(expected.state)
