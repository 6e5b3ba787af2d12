"""Backward by the shortest way gives what torch.autograd.backward gives."""

import pytest
import torch

from recycle_runtime.execution.split_backward import autograd_engine
from recycle_runtime.execution.split_backward.autograd_engine import run_backward


def gradients(*, short: bool) -> list[torch.Tensor]:
    values = [torch.arange(6.0, dtype=torch.float64).reshape(2, 3).requires_grad_() for _ in range(2)]
    outputs = [values[0] * values[1], (values[0] + 1).log().sum()]
    starts = [torch.full((2, 3), 0.5, dtype=torch.float64), torch.tensor(0.25, dtype=torch.float64)]
    (run_backward if short else torch.autograd.backward)(outputs, starts)
    return [value.grad for value in values if value.grad is not None]


def test_gradients_are_those_of_torch() -> None:
    assert torch.equal(torch.stack(gradients(short=True)), torch.stack(gradients(short=False)))


def test_a_torch_without_the_short_way_takes_the_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = gradients(short=True)
    monkeypatch.setattr(autograd_engine, "_run", None)
    assert torch.equal(torch.stack(gradients(short=True)), torch.stack(expected))


def test_a_loss_needs_no_gradient_of_its_own() -> None:
    value = torch.ones(3, requires_grad=True)
    run_backward([value.sum()], [None])
    assert value.grad is not None and value.grad.tolist() == [1.0] * 3


def test_a_gradient_of_another_shape_is_refused() -> None:
    value = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="shape"):
        run_backward([value * 2], [torch.ones(4)])
