"""Using a split stage otherwise: plainly, copied, after errors, in the wrong way."""

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.split_backward import Block, blocks, layers
from recycle_runtime.execution.split_backward import prepare
from recycle_runtime.program.errors import ProgramError
from tests.runtime.execution.split_backward.compare import Twins, numbers, twice


def stage_of_all_kinds() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), Block(8, 2)
    ).double()


def test_the_stage_trains_as_ever_when_called_plainly() -> None:
    twins = Twins(stage_of_all_kinds())
    for seed in range(3):
        for stage in (twins.other, twins.plain):
            stage(numbers(2, 5, 8, seed=seed)).square().sum().backward()
        twins.same_gradients()


def test_a_whole_backward_between_split_ones() -> None:
    twins = Twins(stage_of_all_kinds())
    for seed in range(3):
        twins.check(*twice(numbers(2, 5, 8, seed=seed)))
        for stage in (twins.other, twins.plain):
            microbatch = twins.forward(stage, [numbers(2, 5, 8)], seed)
            twins.split.backward(microbatch.outputs, microbatch.gradients)
        twins.same_gradients()


def test_without_gradients_nothing_is_recorded() -> None:
    twins = Twins(stage_of_all_kinds())
    value = numbers(2, 5, 8)
    with torch.no_grad():
        assert not twins.other(value).requires_grad
    with torch.inference_mode():
        twins.same([twins.other(value)], [twins.plain(value)])
    twins.check(*twice(value))


def test_copies_and_pickles_train_on_their_own() -> None:
    twins = Twins(stage_of_all_kinds())
    twins.check(*twice(numbers(2, 5, 8)))
    file = io.BytesIO()
    torch.save(twins.other, file)
    file.seek(0)
    for other in (copy.deepcopy(twins.other), torch.load(file, weights_only=False)):
        before = [None if each.grad is None else each.grad.clone() for each in twins.other.parameters()]
        other.zero_grad()
        other(numbers(2, 5, 8)).sum().backward()
        assert all(each.grad is not None for each in other.parameters())
        twins.same([each.grad for each in twins.other.parameters()], before)


def test_state_dictionaries_do_not_change() -> None:
    twins = Twins(stage_of_all_kinds())
    assert list(twins.other.state_dict()) == list(twins.plain.state_dict())
    assert repr(twins.other) == repr(twins.plain)


def test_removing_the_split() -> None:
    twins = Twins(stage_of_all_kinds())
    twins.split.remove()
    assert all("forward" not in vars(module) for module in twins.other.modules())
    twins.check(*twice(numbers(2, 5, 8)))
    twins.split = prepare(twins.other)
    twins.check(*twice(numbers(2, 5, 8)))


def test_a_forward_somebody_else_put_there_comes_back() -> None:
    layer: Any = nn.Linear(5, 5).double()
    forward = layer.forward

    def given(value: Tensor) -> Tensor:
        return 2 * forward(value)

    layer.forward = given
    split = prepare(layer)
    value = numbers(3, 5)
    for _ in range(2):
        layer.zero_grad()
        split.backward_input([layer(value).sum()], [None]).run()
        assert torch.equal(layer.bias.grad, torch.full_like(layer.bias, 6.0))
    split.remove()
    assert layer.forward is given


def test_preparing_twice() -> None:
    stage = layers(4, 2)
    prepare(stage)
    with pytest.raises(ValueError, match="already"):
        prepare(nn.Sequential(stage))


def test_lazy_layers() -> None:
    with pytest.raises(ValueError, match="run the module once"):
        prepare(nn.LazyLinear(4))


def test_second_derivatives_are_refused() -> None:
    for stage in (nn.Linear(4, 4), nn.GRUCell(4, 4)):
        split = prepare(stage)
        split.backward_input([stage(torch.randn(2, 4)).sum()], [None]).run()
        value = torch.randn(2, 4, requires_grad=True)
        with pytest.raises(ProgramError, match=f"{type(stage).__name__}: .*create_graph"):
            torch.autograd.grad(stage(value).sum(), value, create_graph=True)


def test_moving_the_stage_after_it_was_prepared() -> None:
    twins = Twins(stage_of_all_kinds().float())
    twins.other.double()
    twins.plain.double()
    twins.check(*twice(numbers(2, 5, 8)))


def test_gradients_are_added_to_the_tensor_that_is_there() -> None:
    stage = stage_of_all_kinds()
    split = prepare(stage)
    for parameter in stage.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = [parameter.grad for parameter in stage.parameters()]
    for _ in range(2):
        split.backward_input([stage(numbers(2, 5, 8)).sum()], [None]).run()
    assert all(parameter.grad is grad for parameter, grad in zip(stage.parameters(), before, strict=True))


def test_a_stage_without_parameters() -> None:
    stage = nn.Linear(4, 4).requires_grad_(False)
    work = prepare(stage).backward_input([stage(torch.randn(2, 4))], [torch.ones(2, 4)])
    assert work.held_bytes == 0
    work.run()
    assert stage.weight.grad is None


def test_running_twice_adds_once() -> None:
    stage = nn.Linear(4, 4)
    work = prepare(stage).backward_input([stage(torch.ones(2, 4)).sum()], [None])
    work.run()
    work.run()
    assert torch.equal(stage.bias.grad, torch.full((4,), 2.0)) if stage.bias.grad is not None else False


class Breaks(torch.autograd.Function):
    """An error in the middle of backward, when it is told."""

    armed = False

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if Breaks.armed:
            raise ArithmeticError("in the middle")
        return gradients[0]


class Fragile(nn.Module):
    """Layers with a weak spot in between."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.GRUCell(5, 5), layers(5, 2)

    def forward(self, value: Tensor) -> Tensor:
        return self.after(Breaks.apply(self.before(value)))


def test_an_error_in_backward_leaves_nothing_behind() -> None:
    twins = Twins(Fragile().double())
    twins.check(*twice(numbers(3, 5)))
    broken = twins.forward(twins.other, [numbers(3, 5)], 0)
    Breaks.armed = True
    with pytest.raises(ArithmeticError):
        twins.split.backward_input(broken.outputs, broken.gradients)
    Breaks.armed = False
    twins.same_gradients()
    twins.check(*twice(numbers(3, 5)))
    # Nothing collects any more: a plain backward gets all its gradients at once.
    for stage in (twins.other, twins.plain):
        stage(numbers(3, 5)).sum().backward()
    twins.same_gradients()


def test_an_error_in_forward_leaves_nothing_behind() -> None:
    twins = Twins(stage_of_all_kinds())
    for _ in range(2):
        with pytest.raises(RuntimeError):
            twins.other(numbers(2, 5, 7))
        twins.check(*twice(numbers(2, 5, 8)))


def test_a_changed_weight_is_noticed() -> None:
    stage: Any = blocks(8, 1)
    split = prepare(stage)
    output = stage(torch.randn(2, 5, 8, requires_grad=True))
    with torch.no_grad():
        stage[0].up.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        split.backward_input([output], [torch.ones_like(output)])
