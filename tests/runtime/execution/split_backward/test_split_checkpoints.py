"""Recomputation by torch.utils.checkpoint costs as many matrix products as in a plain loop."""

import copy
from collections import Counter
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from recycle_runtime.execution.split_backward import prepare

WIDTH = 8


class Products(TorchDispatchMode):
    """Counts matrix products, by where their time goes."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "addmm_", "bmm", "baddbmm", "linear"):
            self.counts["products"] += 1
        return func(*args, **(kwargs or {}))


class Model(nn.Module):
    def __init__(self, is_reentrant: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
            for _ in range(2)
        )
        self.is_reentrant = is_reentrant

    def forward(self, value: Tensor) -> Tensor:
        value = self.first(value)
        for block in self.blocks:
            value = value + cast(Any, checkpoint)(block, value, use_reentrant=self.is_reentrant)
        return self.last(value)


def computed(module: nn.Module, value: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return module(value).float().pow(2).mean()


@pytest.mark.parametrize("lowers", [False, True])
@pytest.mark.parametrize("defers", [False, True])
@pytest.mark.parametrize("is_reentrant", [False, True])
def test_no_product_is_computed_more_often(is_reentrant: bool, defers: bool, lowers: bool) -> None:
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    model = Model(is_reentrant)
    plain, inputs = copy.deepcopy(model), [torch.randn(3, WIDTH) for _ in range(3)]
    with Products() as expected:
        for value in inputs:
            torch.autograd.backward(computed(plain, value))
    split = prepare(model)
    split.defer_weights(defers)
    split.lower_weights(lowers)
    with Products() as counted:
        for value in inputs:
            split.refresh()
            loss = computed(model, value)
            if defers:
                split.backward_input([loss], [None]).run()
            else:
                split.backward([loss], [None])
    assert counted.counts == expected.counts
    assert (split.bytes_held > 0) == (defers or lowers)
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-6, atol=1e-7)


def test_nothing_is_kept_for_weights_that_are_computed_again() -> None:
    model = Model(is_reentrant=False)
    split = prepare(model)
    split.lower_weights(True)
    work = split.backward_input([computed(model, torch.randn(3, WIDTH))], [None])
    of_one_layer = 3 * WIDTH * 2
    assert work.held_bytes <= 4 * of_one_layer, "inputs and gradients of first and last"


@pytest.mark.parametrize("is_watched", [False, True])
def test_weights_that_do_not_wait_are_not_cast_in_the_graph(is_watched: bool) -> None:
    """Unless somebody is called with their gradients: then autograd has to bring them."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False))
    plain, value = copy.deepcopy(model), torch.randn(3, WIDTH)
    seen: list[Tensor] = []
    if is_watched:
        model[0].weight.register_hook(seen.append)  # pyright: ignore
    split = prepare(model)
    split.defer_weights(False)
    split.lower_weights(True)
    for parameter in (*model.parameters(), *plain.parameters()):
        parameter.grad = torch.ones_like(parameter)
    kept = [parameter.grad for parameter in model.parameters()]
    for _ in range(2):
        split.refresh()
        torch.autograd.backward(computed(plain, value))
        loss = computed(model, value)
        names: list[str] = []
        waiting: list[Any] = [loss.grad_fn]
        while waiting:
            node = waiting.pop()
            names.append(node.name())
            waiting += [each for each, _ in node.next_functions if each is not None]
        split.backward([loss], [None])
        assert names.count("ToCopyBackward0") == 1 + is_watched * 2, "the output, and a watched layer's two"
        with torch.no_grad():
            for own, other in zip(model.parameters(), plain.parameters(), strict=True):
                own.mul_(1.5)
                other.mul_(1.5)
    assert len(seen) == 2 * is_watched
    for parameter, grad, other in zip(model.parameters(), kept, plain.parameters(), strict=True):
        assert parameter.grad is grad, "where peers sum it"
        torch.testing.assert_close(grad, other.grad, rtol=0, atol=0)
