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


CUT_OFF = """
class Detaches(nn.Module):
    def forward(self, value):
        return value.detach()

_layers = layers
def layers():
    made = _layers()
    after = [(name, layer.requires_grad_({trained})) for name, layer in made[{at}:]]
    return [*made[:{at}], ("detaches", Detaches()), *after]
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (FROZEN.format(trained="(lambda name: False)"), "no parameter of the model requires a gradient"),
        (
            CUT_OFF.format(at=1, trained=False),
            "no parameter that an optimizer has got a gradient in step 0, so nothing would be trained",
        ),
    ],
    ids=["frozen", "cut off"],
)
def test_several_stages_see_it_together(tmp_path: Path, square: str, change: str, words: str) -> None:
    """The loss depends on what comes into the last stage, so that one alone sees nothing wrong."""
    with pytest.raises(ProgramError, match=words):
        train_in_threads(square, changed(tmp_path, MLP, change), 0, 1)


def test_what_comes_before_a_detached_layer(
    tmp_path: Path, square: str, caplog: pytest.LogCaptureFixture
) -> None:
    program = changed(tmp_path, MLP, CUT_OFF.format(at=-1, trained=True))
    losses, workers = train_in_threads(square, program, 0, 2)
    assert len(losses) == 2
    for (_, stage), worker in workers.items():
        # Zeros in place of none would let weight decay in.
        gradients = worker.chunks[stage].stepper.gradients
        assert (gradients.absent == set(gradients.parameters)) == (stage == 0)
    assert {record.getMessage() for record in caplog.records} == {
        "chunk 1 gave no gradient back in step 0, so chunk 0 is not trained; is its input detached?"
    }


def test_a_frozen_stage_is_no_mistake(tmp_path: Path, square: str, caplog: pytest.LogCaptureFixture) -> None:
    change = FROZEN.format(trained="(lambda name: name == 'first')")
    losses, _ = train_in_threads(square, changed(tmp_path, MLP, change), 0, 2)
    assert len(losses) == 2 and not caplog.records


LEARNS = """
TEMPERATURE = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

def loss(output, target):
    return torch.nn.functional.mse_loss(output * {temperature}, target)
"""
BORROWS = """
_first = torch.nn.Parameter(torch.ones(16, dtype=torch.float64))

class Borrows(nn.Module):
    def forward(self, value):
        return value * _first

_layers = layers
def layers():
    first, *rest = _layers()
    return [first, ("borrows", Borrows()), *rest]
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (LEARNS.format(temperature="TEMPERATURE"), r"a parameter of shape \(\) that"),
        (BORROWS, r"chunk 0 of the model computes with a parameter of shape \(16,\) that is in none of its"),
    ],
    ids=["loss", "layer"],
)
def test_parameters_of_no_layer_are_refused(tmp_path: Path, square: str, change: str, words: str) -> None:
    with pytest.raises((ProgramError, StreamError), match=words):
        train_in_threads(square, changed(tmp_path, MLP, change), 0, 1)


def test_what_is_detached_needs_no_layer(tmp_path: Path, square: str) -> None:
    change = LEARNS.format(temperature="TEMPERATURE.detach()")
    assert len(train_in_threads(square, changed(tmp_path, MLP, change), 0, 1)[0]) == 1
