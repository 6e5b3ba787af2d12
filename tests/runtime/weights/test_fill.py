"""A model begins with weights that are given, under every cut; what does not fit is named."""

from pathlib import Path

import pytest
import torch

from recycle_runtime.execution.chunk import build_module
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import load_program
from recycle_runtime.weights.fill import fill_layers
from recycle_runtime.weights.safetensors import WeightsError, write_folder

PROGRAM = """
import torch
from torch import nn
WEIGHTS = {weights!r}
def layers():
    return [("first", nn.Linear(2, 3)), ("blocks.0", nn.BatchNorm1d(3)), ("last", nn.Linear(3, 1))]
def loss(output, target):
    return output.sum()
def batches(seed):
    while True:
        yield torch.zeros(2, 2), torch.zeros(2)
def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""


def program(folder: Path, weights: str) -> str:
    path = folder / "program.py"
    path.write_text(PROGRAM.format(weights=weights))
    return str(path)


def whole(folder: Path) -> dict[str, torch.Tensor]:
    """Weights under the names of the model, in a folder beside the program."""
    model = build_module(load_program(_plain(folder)), 0, 1, 5)
    weights = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    (folder / "given").mkdir()
    write_folder(folder / "given", weights, 16)
    return weights


def _plain(folder: Path) -> str:
    path = folder / "plain.py"
    path.write_text(PROGRAM.format(weights=None))
    return str(path)


@pytest.mark.parametrize("cut", [(3,), (1, 2), (1, 1, 1)])
def test_every_chunk_takes_its_own(tmp_path: Path, cut: tuple[int, ...]) -> None:
    weights = whole(tmp_path)
    loaded = load_program(program(tmp_path, "given"))
    found: dict[str, torch.Tensor] = {}
    for chunk in range(len(cut)):
        found |= build_module(loaded, chunk, len(cut), 0, cut=cut).state_dict()
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_the_type_of_the_model_is_kept_and_other_names_are_left_alone() -> None:
    layer = torch.nn.Linear(2, 1).double()
    given = {"x.weight": torch.ones(1, 2), "x.bias": torch.ones(1), "y.weight": torch.ones(9)}
    fill_layers(layer, "x", given)
    assert layer.weight.dtype == torch.float64
    assert layer.weight.tolist() == [[1.0, 1.0]]


def test_a_name_that_is_missing_and_a_shape_that_differs() -> None:
    layer = torch.nn.Linear(2, 1)
    with pytest.raises(WeightsError, match=r"the weights have no x\.weight; is it X\.weight\?"):
        fill_layers(layer, "x", {"X.weight": torch.ones(1, 2)})
    with pytest.raises(WeightsError, match=r"x\.weight has shape \(2, 1\) in the weights and \(1, 2\)"):
        fill_layers(layer, "x", {"x.weight": torch.ones(2, 1)})


def test_a_program_whose_weights_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"program\.py: .*missing: no such file"):
        load_program(program(tmp_path, "missing"))
    (tmp_path / "program.py").write_text(PROGRAM.format(weights=3))
    with pytest.raises(ProgramError, match="WEIGHTS must be a file, a folder or a state dict"):
        load_program(tmp_path / "program.py")
