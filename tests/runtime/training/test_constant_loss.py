"""A loss that no backward can begin with ends the run with a sentence, in place of training nothing."""

from pathlib import Path

import pytest

from recycle_runtime.execution.interpreter import StreamError
from recycle_runtime.program.errors import ProgramError
from tests.runtime.training.compare import MLP, changed
from tests.runtime.training.threads import train_in_threads

DETACHED = """
def loss(output, target):
    return torch.nn.functional.mse_loss(output.detach(), target)
"""
FROZEN = """
_layers = layers
def layers():
    return [(name, layer.requires_grad_({trained}(name))) for name, layer in _layers()]
"""


@pytest.mark.parametrize(
    "change",
    [DETACHED, "torch.set_grad_enabled(False)", FROZEN.format(trained="(lambda name: False)")],
    ids=["detached", "switched off", "frozen"],
)
def test_it_is_refused(tmp_path: Path, pair: str, change: str) -> None:
    # The line is told where the loss is written in this file.
    words = r"changed\.py:\d+: " if change == DETACHED else r"changed\.py: "
    words += "the loss does not depend on any parameter"
    with pytest.raises((ProgramError, StreamError), match=words):
        train_in_threads(pair, changed(tmp_path, MLP, change), 0, 1)


def test_the_end_of_a_model_may_be_frozen(tmp_path: Path, pair: str) -> None:
    change = FROZEN.format(trained="(lambda name, first=_layers()[0][0]: name == first)")
    losses, _ = train_in_threads(pair, changed(tmp_path, MLP, change), 0, 2)
    assert len(losses) == 2
