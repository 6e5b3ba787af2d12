"""Hooks on parameters, tensors and modules are called as in plain autograd."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from bench.split_backward import layers
from recycle_runtime.execution.split_backward import prepare
from tests.runtime.execution.split_backward.compare import Twins, numbers, twice
from tests.runtime.execution.split_backward.test_split_models import Again

Seen = list[tuple[str, float]]


def watch(stage: nn.Module, seen: Seen) -> None:
    """Write down every gradient that a hook sees, and double it on its way."""
    for name, parameter in stage.named_parameters():
        parameter.register_hook(_doubling(name, seen))
        parameter.register_post_accumulate_grad_hook(_recording(f"{name} after", seen))


def _doubling(name: str, seen: Seen) -> Callable[[Tensor], Tensor]:
    def hook(gradient: Tensor) -> Tensor:
        seen.append((name, float(gradient.sum())))
        return 2 * gradient

    return hook


def _recording(name: str, seen: Seen) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        assert parameter.grad is not None
        seen.append((name, float(parameter.grad.sum())))

    return hook


def _noting(what: str, names: list[str]) -> Callable[..., None]:
    def hook(*_: object) -> None:
        names.append(what)

    return hook


def same(ours: Seen, theirs: Seen) -> None:
    """The order among parameters is nobody's promise."""
    assert [name for name, _ in sorted(ours)] == [name for name, _ in sorted(theirs)]
    for (_, one), (_, other) in zip(sorted(ours), sorted(theirs), strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("stage", "inputs"),
    [
        (layers(5, 2), [numbers(3, 5)]),
        (nn.Sequential(nn.Embedding(9, 5), nn.LayerNorm(5), nn.Linear(5, 5)), [torch.randint(0, 9, (3,))]),
        (nn.Conv1d(3, 5, 2), [numbers(2, 3, 7)]),
        (nn.GRUCell(5, 5), [numbers(3, 5)]),
        (Again(nn.Linear(5, 5)), [numbers(3, 5)]),
        (Again(nn.GRUCell(5, 5)), [numbers(3, 5)]),
        (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), [numbers(2, 3, 4)]),
    ],
)
def test_hooks_of_parameters(stage: nn.Module, inputs: Sequence[Tensor]) -> None:
    twins = Twins(stage.double())
    twins.check(*twice(*inputs))
    ours: Seen = []
    theirs: Seen = []
    watch(twins.other, ours)
    watch(twins.plain, theirs)
    for _ in range(2):
        twins.check(inputs)
        same(ours, theirs)
        assert theirs


def test_hooks_wait_for_the_weights() -> None:
    stage = nn.Linear(5, 5)
    seen: Seen = []
    watch(stage, seen)
    split = prepare(stage)
    work = split.backward_input([stage(torch.randn(3, 5)).sum()], [None])
    assert seen == []
    work.run()
    assert len(seen) == 4


def test_hooks_in_a_backward_that_is_not_split() -> None:
    twins = Twins(layers(5, 2).double())
    ours: Seen = []
    theirs: Seen = []
    watch(twins.other, ours)
    watch(twins.plain, theirs)
    for stage in (twins.plain, twins.other):
        twins.run(stage, [numbers(3, 5)]).sum().backward()
    same(ours, theirs)
    twins.same_gradients()


@pytest.mark.parametrize(
    "stage", [layers(5, 2), nn.GRU(5, 5, dropout=0.0), nn.TransformerEncoderLayer(5, 1, 5)]
)
def test_hooks_of_modules(stage: nn.Module) -> None:
    twins = Twins(stage.double())
    calls: list[list[str]] = []
    for each in (twins.other, twins.plain):
        names: list[str] = []
        calls.append(names)
        for name, module in each.named_modules():
            module.register_forward_hook(_noting(f"{name} forward", names))
            if type(module).__name__ != "NonDynamicallyQuantizableLinear":
                module.register_full_backward_hook(_noting(f"{name} backward", names))
    twins.check(*twice(numbers(2, 3, 5)))
    assert sorted(calls[0]) == sorted(calls[1])
    assert calls[0]
