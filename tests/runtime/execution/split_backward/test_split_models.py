"""Whole stages: what people build gives the gradients of plain autograd."""

from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from bench.split_backward import Block, blocks, layers
from recycle_runtime.execution.split_backward.deferred import Owner
from recycle_runtime.execution.split_backward.general import GeneralUnit
from recycle_runtime.execution.split_backward.split import choose_units
from tests.runtime.execution.split_backward.compare import Twins, numbers, twice


def test_linear_layers() -> None:
    Twins(layers(6, 3).double()).check(*twice(numbers(4, 6)))


def test_gpt_blocks() -> None:
    Twins(blocks(8, 2).double()).check(*twice(numbers(2, 5, 8)))


@pytest.mark.parametrize("norm_first", [False, True])
def test_torchs_encoder_layer(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first, dtype=torch.float64)
    Twins(layer).check(*twice(numbers(2, 5, 8)), *twice(numbers(2, 3, 8)))


@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_to_itself_and_to_others(need_weights: bool) -> None:
    layer = nn.MultiheadAttention(8, 2, dropout=0.25, kdim=6, vdim=4, dtype=torch.float64)
    query, key, value = numbers(5, 2, 8), numbers(4, 2, 6), numbers(4, 2, 4)
    Twins(layer, run=lambda stage, inputs: stage(*inputs, need_weights=need_weights)).check(
        *twice(query, key, value), *twice(query, key, value)
    )
    same = nn.MultiheadAttention(8, 2, bias=False, batch_first=True, dtype=torch.float64)
    Twins(same, run=lambda stage, inputs: stage(inputs[0], inputs[0], value=inputs[0])).check(
        *twice(query), *twice(query)
    )


def test_convolutions_and_batch_norm() -> None:
    stage = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 6, 3, groups=3, dilation=2),
        nn.GroupNorm(2, 6),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(6 * 2 * 2, 5),
    ).double()
    twins = Twins(stage)
    twins.check(*twice(numbers(2, 3, 8, 8)))
    assert int(cast(Any, twins.other)[1].num_batches_tracked) == 2


class Recurrent(nn.Module):
    """A recurrent layer with a head; the state goes in and comes out."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell: Any = cell(4, 6, num_layers=2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, value: Tensor, *states: Tensor) -> Any:
        first, *rest = states
        output, state = self.cell(value, states if rest else first)
        return self.head(output), state


@pytest.mark.parametrize("cell", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_layers(cell: type[nn.RNNBase]) -> None:
    states = [numbers(2, 3, 6, seed=seed) for seed in range(2 if cell is nn.LSTM else 1)]
    Twins(Recurrent(cell).double()).check(
        *twice(numbers(3, 5, 4), *states), *twice(numbers(3, 5, 4), *states)
    )


def test_packed_sequences() -> None:
    def run(stage: nn.Module, inputs: Any) -> Any:
        packed = pack_padded_sequence(inputs[0], torch.tensor([5, 3, 2]), batch_first=True)
        output, state = stage(packed)
        assert isinstance(output, PackedSequence)
        return output.data, state

    twins = Twins(nn.GRU(4, 6, batch_first=True, dtype=torch.float64), run=run)
    twins.check(*twice(numbers(3, 5, 4)), *twice(numbers(3, 5, 4)))


class Tied(nn.Module):
    """A language model that reads and writes with the same matrix."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.embedding, self.middle = nn.Embedding(9, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 9, bias=False)
        self.how = how
        if how == "layer":
            self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        value = torch.tanh(self.middle(self.embedding(words)))
        return self.head(value) if self.how == "layer" else F.linear(value, self.embedding.weight)


@pytest.mark.parametrize("how", ["layer", "function"])
def test_tied_weights(how: str) -> None:
    Twins(Tied(how).double()).check(*twice(torch.randint(0, 9, (3, 4))))


def normed(layer: nn.Module) -> nn.Module:
    return parametrizations.weight_norm(layer)


def test_parametrized_weights() -> None:
    stage = nn.Sequential(normed(nn.Linear(5, 5)), nn.Tanh(), normed(nn.Conv1d(3, 3, 1))).double()
    assert [type(unit) for unit in choose_units(stage, Owner())] == [GeneralUnit, GeneralUnit]
    Twins(stage).check(*twice(numbers(2, 3, 5)), *twice(numbers(2, 3, 5)))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weights_that_a_hook_computes() -> None:
    def fresh(layer: nn.Module) -> nn.Module:
        """Such a weight cannot be copied."""
        another: nn.Module = cast(Any, nn.utils).weight_norm(nn.Linear(5, 5, dtype=torch.float64))
        another.load_state_dict(layer.state_dict(), strict=isinstance(layer, nn.Linear))
        return another

    Twins(fresh(nn.Module()), copied=fresh).check(*twice(numbers(3, 5)), *twice(numbers(3, 5)))


class Again(nn.Module):
    """The same modules twice in one forward."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, value: Tensor) -> Tensor:
        return self.layer(torch.sin(self.layer(value))) + self.layer(value)


@pytest.mark.parametrize("layer", [nn.Linear(5, 5), nn.Conv1d(3, 3, 3, padding=1), normed(nn.Linear(5, 5))])
def test_a_module_used_again(layer: nn.Module) -> None:
    Twins(Again(layer).double()).check(*twice(numbers(2, 3, 5)), *twice(numbers(2, 3, 5)))


def test_dropout_draws_the_same() -> None:
    stage = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.GRU(6, 6, 2, dropout=0.5)).double()
    Twins(stage, run=lambda stage, inputs: stage(*inputs)[0]).check(
        *twice(numbers(4, 6)), *twice(numbers(4, 6))
    )


class Checkpointed(nn.Module):
    """Recomputes its blocks in backward."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, value: Tensor) -> Any:
        for part in self.parts:
            value = cast(Any, checkpoint)(part, value, use_reentrant=False)
        return value


def test_checkpoints() -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    stage = Checkpointed(Block(8, 2), encoder, nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))).double()
    Twins(stage).check(*twice(numbers(2, 5, 8)), *twice(numbers(2, 5, 8)))
    words = Checkpointed(nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8), nn.Tanh())).double()
    Twins(words).check(*twice(torch.randint(0, 9, (3, 4))))


class Pair(nn.Module):
    """Two tensors in, two out; only one of them leads to the second input."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(first), self.two(first * second)


@pytest.mark.parametrize("grads", [(True, True), (True, False), (False, True), (False, False)])
def test_several_inputs_and_outputs(grads: tuple[bool, bool]) -> None:
    inputs = [numbers(3, 5, grad=grad, seed=seed) for seed, grad in enumerate(grads)]
    Twins(Pair().double()).check(*twice(*inputs))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_weights_of_several_micro_batches_in_any_order(order: tuple[int, ...]) -> None:
    stage = nn.Sequential(Block(8, 2), nn.TransformerEncoderLayer(8, 2, 16)).double()
    microbatches = [[numbers(2, 5, 8, seed=seed)] for seed in range(4)]
    twins = Twins(stage)
    twins.check(*microbatches, order=order)
    twins.check(*microbatches, order=order)


@pytest.mark.parametrize(
    ("stage", "inputs"),
    [
        (blocks(8, 2), [numbers(2, 5, 8).float()]),
        (
            nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv1d(4, 2, 1)),
            [numbers(2, 3, 9).float()],
        ),
        (nn.TransformerEncoderLayer(8, 2, 16), [numbers(2, 5, 8).float()]),
        (Tied("layer"), [torch.randint(0, 9, (3, 4))]),
        (Tied("function"), [torch.randint(0, 9, (3, 4))]),
        (Again(nn.Linear(5, 5)), [numbers(3, 5).float()]),
    ],
)
def test_autocast(stage: nn.Module, inputs: list[Tensor]) -> None:
    leaves = [each.detach().requires_grad_() if each.is_floating_point() else each for each in inputs]

    def run(stage: nn.Module, inputs: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return stage(*inputs)

    Twins(stage, run=run, tolerance=0.03).check(*twice(*leaves), *twice(*leaves))
