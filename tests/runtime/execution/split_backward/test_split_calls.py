"""Layers whose output is changed in place, or that are called in unusual ways."""

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, vmap  # pyright: ignore
from torch.utils.checkpoint import checkpoint

from recycle_runtime.execution.split_backward import prepare
from tests.runtime.execution.split_backward.compare import Twins, numbers, twice

Use = Callable[[Any, Tensor], Tensor]


class Two(nn.Module):
    """Two layers, one weight beside them, and a forward that is given."""

    def __init__(self, use: Use) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.cell = nn.GRUCell(5, 5)
        self.other = nn.Parameter(torch.randn(5, 5))
        self.use = use

    def forward(self, value: Tensor) -> Tensor:
        return self.use(self, value)


def two(use: Use) -> nn.Module:
    torch.manual_seed(3)
    return Two(use).double()


def changed_whole(stage: Two, value: Tensor) -> Tensor:
    return stage.second(stage.first(value).add_(value).relu_())


def changed_in_part(stage: Two, value: Tensor) -> Tensor:
    made = stage.first(value)
    made[..., :2].mul_(2)
    return stage.second(made)


def changed_under_a_view(stage: Two, value: Tensor) -> Tensor:
    made = stage.first(value)
    view = made.unsqueeze(0)
    made.mul_(2)
    return stage.second(view)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 0, 5)])
@pytest.mark.parametrize("grad", [True, False], ids=["inside", "first layer"])
@pytest.mark.parametrize("use", [changed_whole, changed_in_part, changed_under_a_view])
def test_outputs_that_are_changed_in_place(use: Use, grad: bool, shape: tuple[int, ...]) -> None:
    Twins(two(use)).check(*twice(numbers(*shape, grad=grad)))


def test_outputs_of_a_convolution_that_are_changed_in_place() -> None:
    stage = nn.Sequential(nn.Conv1d(3, 4, 2), nn.ReLU(inplace=True), nn.Conv1d(4, 2, 2))
    Twins(stage.double()).check(*twice(numbers(3, 7)))


def hook_on_the_node(stage: Two, value: Tensor) -> Tensor:
    made = stage.first(value)
    if made.grad_fn is not None:
        made.grad_fn.register_prehook(lambda gradients: (2 * gradients[0],))  # pyright: ignore
    return stage.second(made)


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5)])
def test_hooks_on_nodes(shape: tuple[int, ...]) -> None:
    Twins(two(hook_on_the_node)).check(*twice(numbers(*shape)))


def computed_weight(stage: Two, value: Tensor) -> Tensor:
    return functional_call(stage.first, {"weight": 2 * stage.first.weight}, (stage.second(value),))


def weight_of_another(stage: Two, value: Tensor) -> Tensor:
    return functional_call(stage.first, {"weight": stage.other}, (stage.second(value),))


def weight_and_weight_of_another(stage: Two, value: Tensor) -> Tensor:
    return functional_call(stage.first, {"weight": stage.other}, (stage.first(value),))


def each_row(stage: Two, value: Tensor) -> Tensor:
    return vmap(lambda row: stage.first(row).relu_())(stage.second(value))  # pyright: ignore


def energy(stage: Two, value: Tensor) -> Tensor:
    return stage.second(grad(lambda each: stage.first(each).pow(2).sum())(value))  # pyright: ignore


def along_a_tangent(stage: Two, value: Tensor) -> Tensor:
    with forward_ad.dual_level():
        made = stage.first(forward_ad.make_dual(value, value.sin()))
        return stage.second(forward_ad.unpack_dual(made).tangent)


def cell_of_a_computed_weight(stage: Two, value: Tensor) -> Tensor:
    weight = 2 * stage.cell.weight_ih
    return stage.cell(value) + functional_call(stage.cell, {"weight_ih": weight}, (value,))


@pytest.mark.parametrize(
    "use",
    [computed_weight, weight_of_another, each_row, energy, along_a_tangent, cell_of_a_computed_weight],
)
@pytest.mark.parametrize("grad", [True, False], ids=["inside", "first layer"])
def test_calls_that_are_left_to_autograd(use: Use, grad: bool) -> None:
    twins = Twins(two(use))
    for _ in range(2):
        twins.check(*twice(numbers(3, 5, grad=grad)))


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors(layout: torch.layout) -> None:
    def rows_of_different_numbers(stage: Two, value: Tensor) -> Tensor:
        nested: Any = torch.nested.as_nested_tensor([value[0], value[1, :2]], layout=layout)
        return torch.nested.to_padded_tensor(stage.second(stage.first(nested)), 0.0)

    Twins(two(rows_of_different_numbers)).check(*twice(numbers(2, 3, 5)))


def test_a_weight_of_another_under_autocast() -> None:
    """Where no weights wait, those in low precision are the layer's own."""
    stage = two(weight_and_weight_of_another).float()
    plain = copy.deepcopy(stage)
    split = prepare(stage)
    split.defer_weights(False)
    split.lower_weights(True)
    for module in (stage, plain):
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
    split.refresh()
    value = numbers(3, 5).float()
    for module in (stage, plain):
        with torch.autocast("cpu", torch.bfloat16):
            made: Tensor = module(value)
        split.backward([made.float().sum()], [None])
    for own, other in zip(stage.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=0.01, atol=0.05)


class Again(nn.Module):
    """Layers that backward computes again, in a backward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 5)
        self.inner = nn.Sequential(nn.Linear(5, 5), nn.ReLU(inplace=True), nn.Linear(5, 5))

    def forward(self, value: Tensor) -> Tensor:
        return self.last(cast(Any, checkpoint)(self.inner, self.first(value), use_reentrant=True))


def test_a_whole_backward_of_what_is_computed_again() -> None:
    """Plans with decoupled backwards have such for some micro-batches."""
    twins = Twins(Again().double())
    value = numbers(2, 3, 5)
    for stage in (twins.other, twins.plain):
        made: Tensor = twins.split.compute(stage, value)
        if stage is twins.other:
            twins.split.backward([made], [torch.ones_like(made)])
        else:
            made.backward(torch.ones_like(made))
    twins.same_gradients()


def test_a_layer_whose_weight_is_replaced_for_good() -> None:
    layer = nn.Linear(5, 5)
    split = prepare(layer)
    layer.weight = nn.Parameter(torch.zeros(5, 5))
    split.backward_input([split.module(torch.randn(3, 5, requires_grad=True)).sum()], [None]).run()
    assert layer.weight.grad is not None and layer.bias.grad is not None
