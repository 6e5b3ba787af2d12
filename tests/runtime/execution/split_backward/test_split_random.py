"""Any stack of modules, any number of micro-batches, any order of their weights."""

from collections.abc import Callable
from typing import Any, cast

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from bench.split_backward import Block
from tests.runtime.execution.split_backward.compare import Twins, numbers

WIDTH = 4


class Applied(nn.Module):
    """A module, called in some way."""

    def __init__(self, call: Callable[[Any, Tensor], Tensor], module: nn.Module) -> None:
        super().__init__()
        self.call, self.module = call, module

    def forward(self, value: Tensor) -> Tensor:
        return self.call(self.module, value)


def _recurrent(module: nn.Module, value: Tensor) -> Tensor:
    return module(value)[0]


def _across(module: nn.Module, value: Tensor) -> Tensor:
    return module(value.transpose(1, 2)).transpose(1, 2)


def _attending(module: nn.Module, value: Tensor) -> Tensor:
    return module(value, value, value)[0]


def _residual(module: nn.Module, value: Tensor) -> Tensor:
    return value + module(value)


def _recomputed(module: nn.Module, value: Tensor) -> Tensor:
    return cast(Any, checkpoint)(module, value, use_reentrant=False)


def _again(module: nn.Module, value: Tensor) -> Tensor:
    return module(torch.tanh(module(value)))


LEAVES: list[Callable[[], nn.Module]] = [
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    lambda: nn.Linear(WIDTH, WIDTH).requires_grad_(False),
    lambda: nn.LayerNorm(WIDTH),
    nn.GELU,
    lambda: nn.ReLU(inplace=True),
    lambda: nn.Dropout(0.3),
    lambda: nn.Bilinear(WIDTH, WIDTH, WIDTH),
    lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    lambda: Applied(_recurrent, nn.GRU(WIDTH, WIDTH, batch_first=True)),
    lambda: Applied(_recurrent, nn.LSTM(WIDTH, WIDTH, batch_first=True)),
    lambda: Applied(_across, nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=2)),
    lambda: Applied(_across, nn.ConvTranspose1d(WIDTH, WIDTH, 3, padding=1)),
    lambda: Applied(_across, nn.BatchNorm1d(WIDTH)),
    lambda: Applied(_attending, nn.MultiheadAttention(WIDTH, 2, dropout=0.3, batch_first=True)),
    lambda: Block(WIDTH, 2),
]
WRAPPERS = [_residual, _recomputed, _again]


def _leaf(make: Callable[[], nn.Module]) -> nn.Module:
    module = make()
    if isinstance(module, nn.Bilinear):
        return Applied(lambda inner, value: inner(value, value), module)
    # A value that is changed in place must not be one that the layer before has saved.
    return Applied(lambda inner, value: inner(value + 0), module) if isinstance(module, nn.ReLU) else module


def _stack(parts: list[nn.Module]) -> nn.Module:
    return nn.Sequential(*parts)


modules = st.recursive(
    st.builds(_leaf, st.sampled_from(LEAVES)),
    lambda inner: st.one_of(
        st.builds(_stack, st.lists(inner, min_size=1, max_size=3)),
        st.builds(Applied, st.sampled_from(WRAPPERS), inner),
    ),
    max_leaves=6,
)


@settings(max_examples=25)
@given(
    st.lists(modules, min_size=1, max_size=3), st.permutations(range(3)), st.booleans(), st.integers(0, 99)
)
def test_any_stack(parts: list[nn.Module], order: list[int], grad: bool, seed: int) -> None:
    torch.manual_seed(seed)
    stage = nn.Sequential(*parts).double()
    for parameter in stage.parameters():
        nn.init.normal_(parameter, std=0.5)
    twins = Twins(stage)
    for first in (0, 3):
        microbatches = [[numbers(2, 3, WIDTH, grad=grad, seed=first + each)] for each in order]
        twins.check(*microbatches, order=order)
