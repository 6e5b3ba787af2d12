"""Models of `transformers` on processes, through a kill and a return: equal to a plain loop."""

from pathlib import Path

import pytest
import torch

from tests.runtime.recovery.watched import run
from tests.runtime.training.test_whole_models import MICROBATCHES, PIPELINES, PROGRAMS, two_by_two
from tests.runtime.training.whole import train_whole

STEPS = 60


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2", "experts"])
def test_a_kill_and_a_return(tmp_path: Path, name: str) -> None:
    program = str(PROGRAMS / f"{name}.py")
    outcome = run(tmp_path / "run", two_by_two(tmp_path, (2, 2)), program, STEPS, ["kill=1:1@3"], ["1:1@6"])
    assert outcome.error is None
    assert [row.step for row in outcome.rows] == list(range(STEPS))
    assert outcome.causes
    expected = train_whole(program, PIPELINES * MICROBATCHES, STEPS)
    assert [row.loss for row in outcome.rows] == pytest.approx(expected.losses, rel=1e-9)
    saved = [torch.load(path)["model"] for path in (tmp_path / "run" / "saved").iterdir()]
    assert {key for state in saved for key in state} == set(expected.state)
    for state in saved:
        for key, value in state.items():
            torch.testing.assert_close(value, expected.state[key], rtol=1e-9, atol=1e-11)
