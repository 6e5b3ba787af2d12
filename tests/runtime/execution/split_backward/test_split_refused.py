"""Uses of a layer whose weights wait that would train something else: refused, by the layer's name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.gpu_step import PLANS, OfPlan, compile_plans
from recycle_runtime.execution.interpreter import StreamError
from recycle_runtime.execution.split_backward import Split, prepare
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import Program


class Energy(nn.Module):
    """Gives its input's gradient of an energy, as force fields do."""

    def __init__(self, inner: nn.Module, ask: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.ask = inner, ask
        self.outer = nn.Linear(4, 4)

    def forward(self, value: Tensor) -> Tensor:
        value = value.detach().requires_grad_()
        return self.outer(self.ask(self.inner(value).sum(), value))


def by_grad(energy: Tensor, value: Tensor) -> Tensor:
    return torch.autograd.grad(energy, value)[0]


def by_backward(energy: Tensor, value: Tensor) -> Tensor:
    torch.autograd.backward(energy)
    assert value.grad is not None
    return value.grad


def forward(split: Split, value: Tensor) -> Tensor:
    return split.compute(split.module, value)


INNER: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(4, 3),
    "Conv1d": lambda: nn.Conv1d(2, 3, 2),
    "GRUCell": lambda: nn.GRUCell(4, 4),
}


@pytest.mark.parametrize("ask", [by_grad, by_backward])
@pytest.mark.parametrize("kind", INNER)
def test_gradients_asked_for_by_a_forward(kind: str, ask: Any) -> None:
    split = prepare(Energy(INNER[kind](), ask))
    value = torch.randn(2, 4)
    if kind == "GRUCell":
        # Its first call shows whether it is closed.
        split.module(value)
    split.module.zero_grad()
    with pytest.raises(ProgramError, match=rf"{kind} inner: the model asks for a gradient by itself"):
        forward(split, value)
    assert all(each.grad is None for each in split.module.parameters())


def test_gradients_asked_for_where_no_weights_wait() -> None:
    split = prepare(Energy(nn.Linear(4, 3), by_grad))
    split.defer_weights(False)
    split.backward([forward(split, torch.randn(2, 4)).sum()], [None])
    assert split.module.inner.weight.grad is None  # pyright: ignore
    assert split.module.outer.weight.grad is not None  # pyright: ignore


class Inside(torch.autograd.Function):
    """Computes a layer in a graph of its own, and takes from it the gradient of its input alone."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, layer: nn.Module) -> Tensor:
        with torch.enable_grad():
            ctx.value = value.detach().requires_grad_()
            ctx.made = layer(ctx.value)
        return ctx.made.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.autograd.grad(ctx.made, ctx.value, gradients)[0], None


class Enclosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, value: Tensor) -> Tensor:
        made: Tensor = Inside.apply(self.first(value), self.second)  # pyright: ignore
        return made


@pytest.mark.parametrize("is_split", [True, False])
def test_gradients_asked_for_by_a_backward(is_split: bool) -> None:
    split = prepare(Enclosing())
    made = forward(split, torch.randn(2, 4)).sum()
    backward: Any = split.backward_input if is_split else split.backward
    with pytest.raises(ProgramError, match="Linear second: the model asks"):
        backward([made], [None])


class Shared(nn.Module):
    """Writes its input to memory of its own, which the next forward uses again."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.before, self.layer = nn.Linear(4, 4), layer
        self.memory = torch.empty(2, 4)

    def forward(self, value: Tensor) -> Tensor:
        # Without a change that autograd sees before the gradient of the input is computed.
        self.memory = self.memory.detach()
        return self.layer(self.memory.copy_(self.before(value)))


@pytest.mark.parametrize("by_pieces", [True, False])
def test_inputs_that_the_next_forward_overwrites(by_pieces: bool) -> None:
    split = prepare(Shared(nn.Linear(4, 3)))
    work = split.backward_input([forward(split, torch.randn(2, 4)).sum()], [None])
    forward(split, torch.randn(2, 4))
    with pytest.raises(ProgramError, match=r"Linear layer: its input, .* was changed in place"):
        if by_pieces:
            work.run_some(work.pieces)
        else:
            work.run()


def test_inputs_that_are_overwritten_before_their_gradient() -> None:
    split = prepare(Shared(nn.Linear(4, 3)))
    made = forward(split, torch.randn(2, 4)).sum()
    forward(split, torch.randn(2, 4))
    work = split.backward_input([made], [None])
    with pytest.raises(ProgramError, match="Linear layer"):
        work.run()


@pytest.mark.parametrize("layer", [nn.Linear(4, 3), nn.GRUCell(4, 4)], ids=["Linear", "GRUCell"])
def test_gradients_that_are_changed(layer: nn.Module) -> None:
    split = prepare(layer)
    for _ in range(2):
        split.backward_input([split.module(torch.randn(2, 4)).sum()], [None]).run()
    made: Any = split.module(torch.randn(2, 4))
    gradient = torch.ones_like(made)
    work = split.backward_input([made], [gradient])
    gradient.mul_(2)
    with pytest.raises(ProgramError, match="was changed in place"):
        work.run()


def test_a_hook_of_the_user_may_change_the_gradient() -> None:
    """On the output of a layer whose weights wait: they get what it has made of it."""
    layer, seen = nn.Linear(4, 3), list[Tensor]()
    split = prepare(layer)
    made = split.module(torch.randn(2, 4, requires_grad=True))
    made.register_hook(lambda gradient: 2 * gradient)  # pyright: ignore
    made.register_hook(seen.append)
    split.backward_input([made.sum()], [None]).run()
    assert torch.equal(seen[0], torch.full((2, 3), 2.0))
    assert layer.bias.grad is not None and torch.equal(layer.bias.grad, torch.full((3,), 4.0))


class Force(nn.Module):
    """A layer that gives the gradient of an energy."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, value: Tensor) -> Tensor:
        value = value.detach().requires_grad_()
        return torch.autograd.grad(self.inner(value).pow(2).sum(), value)[0]


def penalized(output: Tensor, target: Tensor) -> Tensor:
    """Asks for a gradient of the output alone, which comes by no layer."""
    loss = (output - target).pow(2).mean()
    return loss + 0 * torch.autograd.grad(loss, output, retain_graph=True)[0].sum()


def run(folder: Path, plan: int, layer: nn.Module, loss: Any) -> list[float]:
    """Losses of a worker's first steps."""
    torch.manual_seed(0)
    layers = [("one", nn.Linear(4, 4)), ("two", layer), ("three", nn.Linear(4, 4))]
    names: dict[str, Any] = {
        "build_layers": lambda first, last: layers[first:last],  # pyright: ignore
        "LAYER_COUNT": 3,
        "loss": loss,
        "microbatch": lambda index: (torch.full((2, 4), index + 1.0), torch.zeros(2, 4)),  # pyright: ignore
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.01),  # pyright: ignore
    }
    worker = OfPlan(Program(Path("train.py"), names), folder / f"step-{plan}.plan", "cpu")
    return [worker.step(step) for step in range(3)]


def test_in_a_run(tmp_path: Path) -> None:
    """Plans without decoupled backwards train; others end at the layer, or train the same."""
    compile_plans(tmp_path)
    whole, decoupled = range(len(PLANS))
    assert run(tmp_path, whole, Force(), nn.functional.mse_loss)
    with pytest.raises(StreamError, match=r"Linear two\.inner: the model asks for a gradient"):
        run(tmp_path, decoupled, Force(), nn.functional.mse_loss)
    alike = [run(tmp_path, plan, nn.Identity(), penalized) for plan in (whole, decoupled)]
    assert alike[1] == pytest.approx(alike[0], rel=1e-5)
