"""Copies of modules behave as the modules that they were made of, also where somebody looks at gradients."""

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recycle_runtime.execution.split_backward import prepare
from recycle_runtime.program.copies import copied
from recycle_runtime.program.cutting import Stage
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.layers import build_layers
from recycle_runtime.program.loading import Program
from recycle_runtime.trainer.names import model_names

WIDTH, MICROBATCHES = 6, 4


class Model(nn.Module):
    """One that is cut at its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, value: Tensor) -> Tensor:
        for block in self.blocks:
            value = torch.tanh(block(value))
        return value


def sequential() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))


def whole() -> nn.Module:
    return Model()


def built(model: Any, **names: Any) -> list[tuple[str, nn.Module]]:
    """The layers that a worker makes of what a script gives."""
    given, _ = model_names(model)
    needed = {"loss": nn.functional.mse_loss, "optimizer": torch.optim.SGD, "data": print}
    return build_layers(Program(Path("train.py"), {**given, **needed, **names}), 0)


def microbatch(index: int) -> Tensor:
    return torch.randn(3, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(index))


def tripled(gradient: Tensor) -> Tensor:
    return 3 * gradient


def shifted(gradient: Tensor) -> Tensor:
    return gradient + 0.001


def clamped(gradient: Tensor) -> Tensor:
    """A stand-in that shows its arguments, and how often it is called."""
    return gradient.clamp(-0.01, 0.01)


def masked(gradient: Tensor) -> Tensor:
    return gradient * (torch.arange(len(gradient)) % 2)


def ignored(parameter: Tensor) -> None: ...


def hook(model: nn.Module) -> None:
    matrices = [each for each in model.parameters() if each.dim() > 1]
    for each, does in ((matrices[0], tripled), (matrices[0], shifted), (matrices[-1], clamped)):
        each.register_hook(does)
    for each in model.parameters():
        if each.dim() == 1:
            each.register_hook(masked)


@pytest.mark.parametrize("make", [sequential, whole])
@pytest.mark.parametrize("is_split", [True, False])
def test_hooks_on_gradients_are_called_as_in_a_plain_loop(
    make: Callable[[], nn.Module], is_split: bool
) -> None:
    torch.manual_seed(1)
    model = make().double()
    hook(model)
    plain = copied(model)
    for index in range(MICROBATCHES):
        (plain(microbatch(index)).square().mean() / MICROBATCHES).backward()
    expected = {name: each.grad for name, each in plain.named_parameters()}
    assert all(gradient is not None and gradient.abs().max() > 0 for gradient in expected.values())

    stage = Stage(built(model), spread=True)
    split = prepare(stage)
    split.defer_weights(is_split)
    for index in range(MICROBATCHES):
        loss = stage(microbatch(index)).square().mean() / MICROBATCHES
        if is_split:
            split.backward_input([loss], [None]).run()
        else:
            split.backward([loss], [None])
    for name, parameter in stage.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("make", [sequential, whole])
def test_marks_on_parameters_are_kept(make: Callable[[], nn.Module]) -> None:
    model = make()
    for each in model.parameters():
        vars(each)["no_weight_decay"] = each.dim() == 1
    found = [
        (each.dim() == 1, vars(each)["no_weight_decay"])
        for _, layer in built(model)
        for each in layer.parameters()
    ]
    assert found and all(expected == kept for expected, kept in found)


def test_what_is_bound_to_a_module_is_bound_to_its_copy() -> None:
    def doubled(self: nn.Linear, value: Tensor) -> Tensor:
        return 2 * nn.functional.linear(value, self.weight)

    model: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 1))
    model[0].forward = types.MethodType(doubled, model[0])
    nn.utils.parametrizations.weight_norm(model[1])
    expected = model(torch.ones(1, WIDTH))
    twin = copied(model)
    with torch.no_grad():
        model[0].weight.zero_()
    torch.testing.assert_close(twin(torch.ones(1, WIDTH)), expected)


@pytest.mark.parametrize("make", [sequential, whole])
def test_hooks_on_accumulated_gradients_are_refused(make: Callable[[], nn.Module]) -> None:
    model = make()
    name, last = list(model.named_parameters())[-1]
    last.register_post_accumulate_grad_hook(ignored)
    with pytest.raises(ProgramError, match=f"^train.py: {name} has a hook that was set by register_post"):
        built(model)


def test_hooks_on_tied_parameters_are_refused() -> None:
    model: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    model[2].weight = model[0].weight
    model[0].weight.register_hook(tripled)
    with pytest.raises(ProgramError, match=r"0\.weight has a hook on its gradient and is one with 2\.weight"):
        built(model)


def test_hooks_of_a_frozen_parameter_have_no_gradient_to_see() -> None:
    model: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    model[0].bias.register_hook(tripled)
    model[0].bias.requires_grad_(False)
    ((_, layer),) = built(model)
    assert [name for name, each in layer.named_parameters() if each.requires_grad] == ["weight"]
