"""Modules that are deferred whole, and those that cannot be."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from recycle_runtime.execution.split_backward.borders import find_borders
from recycle_runtime.execution.split_backward.deferred import Owner
from recycle_runtime.execution.split_backward.general import GeneralUnit
from recycle_runtime.execution.split_backward.split import choose_units
from tests.runtime.execution.split_backward.compare import Twins, numbers, twice


class Own(nn.Module):
    """A layer that somebody wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(5, 5))
        self.unused = nn.Parameter(torch.randn(2, 2))

    def forward(self, value: Tensor, scale: float = 1.0) -> Any:
        return value @ self.matrix * scale


class Named(NamedTuple):
    value: Tensor
    rest: dict[str, Any]


class Structured(Own):
    """Takes and gives all kinds of containers, and tensors without a gradient."""

    def forward(self, value: Any, scale: float = 1.0) -> Any:
        first, more = value
        product = first @ self.matrix + more["key"][0]
        return Named(product, {"first": first, "top": product.argmax(dim=-1), "name": "x", "none": None})


class Opaque:
    """A container that nobody knows."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


class HidesItsResult(Own):
    def forward(self, value: Tensor, scale: float = 1.0) -> Any:
        return Opaque(super().forward(value))


class HidesItsArgument(Own):
    def forward(self, value: Any, scale: float = 1.0) -> Any:
        return super().forward(value.value)


class RemembersItsResult(Own):
    """As layers do that add something to the loss."""

    extra: Tensor | None = None

    def forward(self, value: Tensor, scale: float = 1.0) -> Any:
        result = super().forward(value)
        self.extra = result.square().sum()
        return result


class ChangesItsInput(Own):
    def forward(self, value: Tensor, scale: float = 1.0) -> Any:
        return super().forward(value.mul_(2))


class UsesAnother(Own):
    """A weight that belongs to somebody else."""

    def __init__(self) -> None:
        super().__init__()
        self.other: list[Tensor] = [nn.Parameter(torch.randn(5, 5, dtype=torch.float64))]

    def forward(self, value: Tensor, scale: float = 1.0) -> Any:
        return super().forward(value) + F.linear(value, self.other[0])


class WithPositions(nn.Module):
    """Most of its parameters is in its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(3, 5))
        self.layers = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))

    def forward(self, value: Tensor) -> Tensor:
        return self.layers(value + self.positions)


def test_a_layer_of_ones_own() -> None:
    twins = Twins(Own().double(), run=lambda stage, inputs: stage(*inputs, scale=3.0))
    for _ in range(2):
        twins.check(*twice(numbers(3, 5)))
        twins.check(*twice(numbers(3, 5, grad=False)))


def test_containers() -> None:
    def run(stage: nn.Module, inputs: Sequence[Tensor]) -> Any:
        return stage((inputs[0], {"key": [inputs[1], 1]}))

    twins = Twins(Structured().double(), run=run)
    for _ in range(2):
        twins.check(*twice(numbers(3, 5), numbers(3, 5, seed=8)))
    result = run(twins.other, [numbers(3, 5), numbers(3, 5)])
    assert isinstance(result, Named)
    assert (result.rest["name"], result.rest["none"]) == ("x", None)
    assert not result.rest["top"].requires_grad


CASES: list[tuple[nn.Module, Callable[[Any, Any], Any]]] = [
    (HidesItsResult(), lambda stage, inputs: stage(inputs[0]).value),
    (HidesItsArgument(), lambda stage, inputs: stage(Opaque(inputs[0]))),
    (RemembersItsResult(), lambda stage, inputs: stage(inputs[0]).sum() + stage.extra),
    (ChangesItsInput(), lambda stage, inputs: stage(inputs[0] + 0)),
    (UsesAnother(), lambda stage, inputs: stage(inputs[0])),
]


@pytest.mark.parametrize(("module", "run"), CASES)
def test_modules_that_are_not_closed_are_left_to_autograd(module: nn.Module, run: Any) -> None:
    twins = Twins(module.double(), run=run)
    for _ in range(3):
        twins.check(*twice(numbers(3, 5)))
        twins.same([each.grad for each in foreign(twins.other)], [each.grad for each in foreign(twins.plain)])


def foreign(module: nn.Module) -> list[Tensor]:
    return module.other if isinstance(module, UsesAnother) else []


class SometimesRemembers(RemembersItsResult):
    """Closed at first, and not later."""

    calls = 0

    def forward(self, value: Tensor, scale: float = 1.0) -> Any:
        result = super().forward(value)
        self.calls += 1
        if self.calls == 1:
            self.extra = None
        return result


def test_a_gradient_that_would_be_dropped_is_an_error() -> None:
    twins = Twins(SometimesRemembers().double())
    twins.check([numbers(3, 5)])
    stage: Any = twins.other
    output = stage(numbers(3, 5).sin())
    with pytest.raises(RuntimeError):
        twins.split.backward_input([output.sum() + stage.extra], [None]).run()


class Shift(nn.Module):
    """The gradient of its parameter is that of its output."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(3, 5))

    def forward(self, value: Tensor) -> Tensor:
        return value + self.matrix


def test_a_gradient_that_others_hold_is_not_taken() -> None:
    twins = Twins(Shift().double())
    twins.check(*twice(numbers(3, 5)))
    stage: Any = twins.other
    stage.zero_grad()
    gradient = torch.ones(3, 5, dtype=torch.float64)
    twins.split.backward_input([stage(numbers(3, 5))], [gradient]).run()
    gradient.zero_()
    assert torch.equal(stage.matrix.grad, torch.ones(3, 5, dtype=torch.float64))


def test_the_second_walk_starts_at_borders() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    value = numbers(2, 5, 8).float().detach().requires_grad_()
    borders = find_borders([attention(value, value, value)[0]], [value], list(attention.parameters()))
    assert borders is not None
    found = [id(parameter) for border in borders for parameter in border.parameters]
    assert sorted(found) == sorted(id(parameter) for parameter in attention.parameters())


def test_a_recurrent_layer_has_no_borders() -> None:
    cell = nn.RNN(4, 4)
    value = numbers(3, 2, 4).float().detach().requires_grad_()
    assert find_borders([cell(value)[0]], [value], list(cell.parameters())) is None


def test_layers_inside_are_deferred_one_by_one() -> None:
    stage = WithPositions()
    kinds = [type(unit).__name__ for unit in choose_units(stage, Owner())]
    assert kinds == ["LinearUnit", "LinearUnit"]
    Twins(stage.double()).check(*twice(numbers(2, 3, 5)))


class Shares(nn.Module):
    """A layer that is inside another module and used on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.outside = nn.Linear(5, 5)
        self.whole = Own()
        self.whole.inside = self.outside
        self.whole.matrix = nn.Parameter(torch.randn(5, 50))

    def forward(self, value: Tensor) -> Tensor:
        return self.outside(self.whole(self.outside(value))[..., :5])


def test_a_layer_in_two_places_belongs_to_one_unit() -> None:
    stage = Shares()
    units = choose_units(stage, Owner())
    assert [type(unit) for unit in units] == [GeneralUnit]
    assert units[0].module is stage.whole
    twins = Twins(stage.double())
    for _ in range(2):
        twins.check(*twice(numbers(3, 5)))


def test_frozen_matrices_do_not_decide() -> None:
    class Adapted(nn.Linear):
        def __init__(self) -> None:
            super().__init__(5, 5)
            self.requires_grad_(False)
            self.down, self.up = nn.Linear(5, 2), nn.Linear(2, 5)

        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) + self.up(self.down(input))

    stage = Adapted()
    assert len(choose_units(stage, Owner())) == 2
    Twins(stage.double()).check(*twice(numbers(3, 5)))


class Mixture(nn.Module):
    """A router and experts, each with matrices of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router, self.experts = Matrices(2, width), Matrices(width, width)
        self.first = nn.Linear(4, width)

    def forward(self, value: Tensor) -> Tensor:
        value = self.first(value)
        return self.experts(value) * self.router(value).softmax(-1).amax(-1, keepdim=True)


class Matrices(nn.Module):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, width))

    def forward(self, value: Tensor) -> Tensor:
        return F.linear(value, self.weight)


@pytest.mark.parametrize(("width", "is_small"), [(62, False), (64, True)])
def test_a_module_that_is_small_beside_its_like_is_left_to_autograd(width: int, is_small: bool) -> None:
    mixture = Mixture(width)
    deferred = [unit.module for unit in choose_units(mixture, Owner())]
    assert deferred == [*([] if is_small else [mixture.router]), mixture.experts, mixture.first]
    twins = Twins(mixture.double())
    for _ in range(2):
        twins.check(*twice(numbers(3, 4)))
