"""Every layer with a unit of its own gives the gradients of plain autograd."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from recycle_runtime.execution.split_backward.deferred import Owner
from recycle_runtime.execution.split_backward.general import GeneralUnit
from recycle_runtime.execution.split_backward.layers import ConvolutionUnit, EmbeddingUnit, LinearUnit
from recycle_runtime.execution.split_backward.split import choose_units
from tests.runtime.execution.split_backward.compare import Twins, numbers, twice


def units(module: nn.Module) -> list[type[object]]:
    return [type(unit) for unit in choose_units(module, Owner())]


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 3, 1, 5), (0, 5)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_linear(shape: tuple[int, ...], bias: bool, grad: bool) -> None:
    layer = nn.Linear(5, 4, bias=bias, dtype=torch.float64)
    assert units(layer) == [LinearUnit]
    Twins(layer).check(*twice(numbers(*shape, grad=grad)))


VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda value: value.t(),
    lambda value: value[:, ::2].t(),
    lambda value: value.t().expand(2, -1, -1),
    lambda value: value[:, :1].t().expand(4, -1),
    lambda value: value.t().reshape(3, 2, 5).transpose(0, 1),
]


@pytest.mark.parametrize(
    "view",
    VIEWS,
)
def test_linear_with_inputs_that_are_not_contiguous(view: Callable[[Tensor], Tensor]) -> None:
    twins = Twins(
        nn.Linear(5, 4, dtype=torch.float64),
        run=lambda stage, inputs: stage(view(inputs[0])).transpose(0, -1),
    )
    twins.check(*twice(numbers(5, 6)))


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 2, 2), (0,)])
@pytest.mark.parametrize("padding", [None, 2, -1])
def test_embedding(shape: tuple[int, ...], padding: int | None) -> None:
    layer = nn.Embedding(6, 3, padding_idx=padding, dtype=torch.float64)
    assert units(layer) == [EmbeddingUnit]
    Twins(layer).check(*twice(torch.randint(0, 6, shape)), [torch.randint(0, 6, shape, dtype=torch.int32)])


def test_an_embedding_in_bfloat16() -> None:
    layer = nn.Embedding(6, 3, dtype=torch.bfloat16)
    Twins(layer, tolerance=0.01).check(*twice(torch.randint(0, 6, (40,))))


CONVOLUTIONS = [
    (nn.Conv1d(4, 6, 3, dtype=torch.float64), (2, 4, 9)),
    (nn.Conv1d(4, 6, 3, padding="same", dilation=2, dtype=torch.float64), (4, 9)),
    (nn.Conv2d(4, 6, 3, groups=2, padding=1, bias=False, dtype=torch.float64), (2, 4, 7, 5)),
    (nn.Conv2d(4, 4, (3, 2), groups=4, dilation=(2, 1), stride=(1, 2), dtype=torch.float64), (2, 4, 7, 6)),
    (nn.Conv2d(4, 6, 1, padding="valid", dtype=torch.float64), (4, 7, 5)),
    (nn.Conv3d(2, 4, (1, 3, 2), padding=(0, 1, 1), stride=2, dtype=torch.float64), (2, 2, 3, 5, 4)),
]


@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS)
@pytest.mark.parametrize("grad", [False, True])
def test_convolution(layer: nn.Module, shape: tuple[int, ...], grad: bool) -> None:
    assert units(layer) == [ConvolutionUnit]
    Twins(layer).check(*twice(numbers(*shape, grad=grad)))


def test_a_convolution_on_a_transposed_input() -> None:
    layer = nn.Conv1d(3, 5, 2, dtype=torch.float64)
    twins = Twins(layer, run=lambda stage, inputs: stage(inputs[0].transpose(1, 2)).transpose(1, 2))
    twins.check(*twice(numbers(2, 7, 3)))


OTHER_OPTIONS = [
    (nn.Conv1d(3, 5, 2, padding="same", dtype=torch.float64), numbers(2, 3, 7)),
    (nn.Conv2d(3, 5, 3, padding=1, padding_mode="circular", dtype=torch.float64), numbers(2, 3, 7, 6)),
    (nn.ConvTranspose1d(3, 5, 2, stride=2, dtype=torch.float64), numbers(2, 3, 7)),
    (nn.Embedding(6, 3, sparse=True, dtype=torch.float64), torch.tensor([1, 1, 4])),
    (nn.Embedding(6, 3, scale_grad_by_freq=True, dtype=torch.float64), torch.tensor([1, 1, 4])),
    (nn.Embedding(6, 3, max_norm=1.0, dtype=torch.float64), torch.tensor([1, 1, 4])),
    (nn.EmbeddingBag(6, 3, dtype=torch.float64), torch.tensor([[1, 1, 4]])),
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(("layer", "value"), OTHER_OPTIONS)
def test_options_that_no_layer_unit_knows(layer: nn.Module, value: Tensor) -> None:
    assert units(layer) == [GeneralUnit]
    Twins(layer).check(*twice(value), *twice(value))


def frozen(layer: nn.Module, *names: str) -> nn.Module:
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name not in names)
    return layer


@pytest.mark.parametrize("names", [("weight",), ("bias",), ("weight", "bias")])
@pytest.mark.parametrize("grad", [False, True])
def test_frozen_parameters(names: tuple[str, ...], grad: bool) -> None:
    Twins(frozen(nn.Linear(5, 4, dtype=torch.float64), *names)).check(*twice(numbers(3, 5, grad=grad)))
    layer = frozen(nn.Conv1d(3, 5, 2, dtype=torch.float64), *names)
    Twins(layer).check(*twice(numbers(2, 3, 7, grad=grad)))


def test_a_frozen_weight_keeps_no_input() -> None:
    layer = frozen(nn.Conv1d(3, 5, 2, dtype=torch.float64), "weight")
    twins = Twins(layer)
    microbatch = twins.forward(twins.other, [numbers(50, 3, 7)], 0)
    work = twins.split.backward_input(microbatch.outputs, microbatch.gradients)
    output = microbatch.outputs[0]
    assert work.held_bytes == output.numel() * output.element_size() + 8


def test_an_embedding_that_is_frozen() -> None:
    Twins(frozen(nn.Embedding(6, 3), "weight")).check(*twice(torch.randint(0, 6, (4,))))


@pytest.mark.parametrize(
    "layer",
    [
        nn.LayerNorm(6),
        nn.RMSNorm(6),
        nn.BatchNorm1d(6),
        nn.GroupNorm(2, 6),
        nn.PReLU(6),
    ],
)  # fmt: skip
def test_vectors_are_left_to_autograd(layer: nn.Module) -> None:
    assert units(layer) == []
    Twins(layer.double()).check(*twice(numbers(4, 6)))
