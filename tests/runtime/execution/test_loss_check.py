"""A loss with parameters is refused, and one that counts is named: it would not be as in a plain loop."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recycle_runtime.execution.loss_check import LossCheck
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import Program

PATH = Path("train.py")
WARM = nn.Parameter(torch.ones(3))
calls = 0


class Warm(nn.Module):
    """A learnable temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return (output * self.temperature - target).square().mean()

    def seeing(self, output: Tensor, target: Tensor) -> Tensor:
        self.get_buffer("seen").add_(1)
        return (output - target).square().mean()


class Counting:
    def __init__(self) -> None:
        self.number, self.weight = 0, 0.5

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.number += 1
        return (output - target).square().mean() * self.weight


def plain(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def unused(*_: Any) -> Any:
    raise AssertionError


def counting_globally(output: Tensor, target: Tensor) -> Tensor:
    global calls
    calls += 1
    return plain(output, target)


def closing() -> Any:
    count = [0]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        count[0] += 1
        return plain(output, target)

    return loss


def with_parameter(output: Tensor, target: Tensor) -> Tensor:
    return plain(output * WARM, target)


def call(loss: Any, times: int = 3) -> LossCheck:
    layer = nn.Linear(3, 3)
    check = LossCheck(PATH, loss, layer)
    for number in range(times):
        assert not check.is_over or number >= 2
        if not check.is_over:
            check.call(lambda: loss(layer(torch.ones(2, 3)), torch.zeros(2, 3)))
    return check


@pytest.mark.parametrize("loss", [plain, nn.MSELoss(), nn.CrossEntropyLoss(torch.ones(3)), Warm().seeing])
def test_most_losses_are_functions(loss: Any, caplog: pytest.LogCaptureFixture) -> None:
    is_counting = getattr(loss, "__name__", "") == "seeing"
    assert call(loss).is_over
    assert bool(caplog.messages) == is_counting


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (Counting(), "Counting.number"),
        (Counting().__call__, "Counting.number"),
        (Warm().seeing, "Warm.seen"),
        (closing(), "count"),
        (counting_globally, "calls"),
    ],
)
def test_one_that_counts_is_named_once(loss: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert call(loss).is_over
    (said,) = caplog.messages
    assert said.startswith(f"train.py: the loss changes {name} when it is called: every worker calls it for")


def test_evaluations_show_nothing_of_parameters() -> None:
    layer = nn.Linear(3, 3)
    check = LossCheck(PATH, with_parameter, layer)
    with torch.no_grad():
        for _ in range(4):
            check.call(lambda: with_parameter(layer(torch.ones(2, 3)), torch.zeros(2, 3)))
    assert not check.is_over


def test_parameters_of_a_loss_are_refused() -> None:
    with pytest.raises(ProgramError, match=r"^train\.py: the loss uses a parameter of shape \(3,\) that req"):
        call(with_parameter)
    WARM.requires_grad_(False)
    try:
        call(with_parameter)
    finally:
        WARM.requires_grad_(True)


def test_a_module_with_parameters_is_refused_before_anything_is_built() -> None:
    names = dict.fromkeys(("build_stage", "optimizer", "batches"), unused)
    with pytest.raises(
        ProgramError, match=r"the loss has parameters .* nothing would train them: temperature$"
    ):
        Program(PATH, {**names, "loss": Warm()})
    Program(PATH, {**names, "loss": Warm().requires_grad_(False)})
