"""A worker's message about its parameters before the first step."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.parameter_looks import parameters_of
from recycle_runtime.program.loading import Program

HERE = Path("program.py")


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def program(optimizer: Callable[[Any], Any] = sgd, **names: Any) -> Program:
    base = {
        "build_stage": lambda stage, stages: nn.Linear(2, 2),  # pyright: ignore
        "loss": lambda output, target: output.sum(),  # pyright: ignore
        "microbatch": lambda index: (index, index),  # pyright: ignore
        "optimizer": optimizer,
    }
    return Program(HERE, {**base, **names})


def layer(of: Program, number: int, module: nn.Module) -> Layer:
    return Layer(of, number, "", module)


class Stage(nn.Module):
    def __init__(self, numbers: torch.Tensor, *, is_first: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.bias = nn.Parameter(torch.ones(4, 8))
        if is_first:
            self.wte = nn.Embedding(50, 8)
            self.wte.weight.data.copy_(numbers)
        else:
            self.head = nn.Linear(8, 50, bias=False)
            self.head.weight.data.copy_(numbers)


def test_copies_have_the_same_look() -> None:
    numbers, own = torch.randn(50, 8), program()
    first, last = (
        parameters_of(own, [layer(own, number, Stage(numbers, is_first=number == 0))]) for number in range(2)
    )
    assert first.trained == last.trained == 4 and not first.untrained
    one, other = ({look.name: look for look in said.looks} for said in (first, last))
    assert list(one) == ["bias", "wte.weight"] and list(other) == ["bias", "head.weight"]
    wte, head = one["wte.weight"], other["head.weight"]
    assert (wte.shape, wte.owner, wte.is_embedding, wte.layer) == ((50, 8), "Embedding", True, 0)
    assert (head.shape, head.owner, head.is_embedding, head.layer) == ((50, 8), "Linear", False, 1)
    assert wte.numbers == head.numbers != ""
    assert one["bias"].numbers == "", "all the same numbers say nothing"
    changed = numbers + 1e-3
    (said,) = [
        look for look in parameters_of(own, [layer(own, 1, Stage(changed, is_first=False))]).looks
        if look.name == "head.weight"
    ]  # fmt: skip
    assert said.numbers != wte.numbers


def test_who_says_what_is_tied_is_believed() -> None:
    for ties in ([("wte.weight", "head.weight")], list[Any]()):
        own = program(TIED=ties)
        assert parameters_of(own, [layer(own, 0, Stage(torch.randn(50, 8), is_first=True))]).looks == ()


def test_layers_that_are_made_at_once_need_no_looks() -> None:
    own = program(layers=lambda: [("wte", nn.Embedding(5, 2))])
    own.gives = "layers"
    assert parameters_of(own, [layer(own, 0, nn.Embedding(5, 2))]).looks == ()


def trained(choose: Callable[[Sequence[nn.Parameter]], Any], module: nn.Module) -> tuple[int, int, Any]:
    own = program(lambda parameters: sgd(choose(parameters)))
    said = parameters_of(own, [layer(own, 0, module)])
    return said.trained, said.untrained, said.names


def test_what_optimizers_leave_out() -> None:
    assert trained(list, nn.Linear(2, 2)) == (2, 0, ())
    assert trained(lambda _: [], nn.Linear(2, 2)) == (0, 2, ("weight", "bias"))
    assert trained(lambda _: [{"params": []}], nn.Linear(2, 2)) == (0, 2, ("weight", "bias"))
    assert trained(lambda parameters: parameters[:1], nn.Linear(2, 2)) == (1, 1, ("bias",))
    frozen = nn.Linear(2, 2)
    frozen.bias.requires_grad_(False)
    assert trained(list, frozen) == (1, 0, ())


def test_masters_are_named_after_their_weights() -> None:
    own = program(lambda parameters: sgd(parameters[:1]), PRECISION="bf16-weights")
    assert parameters_of(own, [layer(own, 0, nn.Linear(2, 2))]).names == ("bias",)
