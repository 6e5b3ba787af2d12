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


@pytest.mark.parametrize("fuses", [False, True])
@pytest.mark.parametrize("defers", [False, True])
@pytest.mark.parametrize("is_reentrant", [False, True])
def test_no_product_is_computed_more_often(is_reentrant: bool, defers: bool, fuses: bool) -> None:
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    model = Model(is_reentrant)
    plain, inputs = copy.deepcopy(model), [torch.randn(3, WIDTH) for _ in range(3)]
    with Products() as expected:
        for value in inputs:
            torch.autograd.backward(computed(plain, value))
    split = prepare(model)
    split.defer_weights(defers)
    split.fuse_weights(fuses)
    with Products() as counted:
        for value in inputs:
            split.refresh()
            loss = computed(model, value)
            if defers:
                split.backward_input([loss], [None]).run()
            else:
                split.backward([loss], [None])
    assert counted.counts == expected.counts
    assert (split.bytes_held > 0) == (defers or fuses)
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-6, atol=1e-7)


def test_nothing_is_kept_for_weights_that_are_computed_again() -> None:
    model = Model(is_reentrant=False)
    split = prepare(model)
    split.fuse_weights(True)
    work = split.backward_input([computed(model, torch.randn(3, WIDTH))], [None])
    of_one_layer = 3 * WIDTH * 2
    assert work.held_bytes <= 4 * of_one_layer, "inputs and gradients of first and last"
