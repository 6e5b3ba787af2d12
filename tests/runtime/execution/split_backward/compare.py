"""The same stage twice, once with a plain and once with a split backward, and all their gradients."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from recycle_runtime.execution.split_backward import Split, WeightWork, prepare

EXACT = 1e-12
Run = Callable[[nn.Module, Sequence[Tensor]], Any]


@dataclass
class MicroBatch:
    """One micro-batch on its way through one of the two stages."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    gradients: list[Tensor | None]
    work: WeightWork | None = None


@dataclass
class Twins:
    """A stage and its copy, whose backward is split."""

    plain: nn.Module
    run: Run = lambda stage, inputs: stage(*inputs)
    tolerance: float = EXACT
    copied: Callable[[nn.Module], nn.Module] = copy.deepcopy
    other: nn.Module = field(init=False)
    split: Split = field(init=False)

    def __post_init__(self) -> None:
        self.plain = self.copied(self.plain)
        self.plain.zero_grad()
        self.other = self.copied(self.plain)
        self.split = prepare(self.other)

    def forward(self, stage: nn.Module, inputs: Sequence[Tensor], seed: int) -> MicroBatch:
        torch.manual_seed(seed)
        fresh = [each.detach().requires_grad_(each.requires_grad) for each in inputs]
        outputs = tensors(self.run(stage, fresh))
        gradients = [torch.randn_like(each) if each.requires_grad else None for each in outputs]
        return MicroBatch(fresh, outputs, gradients)

    def check(self, *microbatches: Sequence[Tensor], order: Sequence[int] = ()) -> None:
        """All micro-batches in flight at once; weight gradients in the given order."""
        ours = [self.forward(self.other, inputs, seed) for seed, inputs in enumerate(microbatches)]
        for each in ours:
            each.work = self.split.backward_input(each.outputs, each.gradients)
        theirs = [self.forward(self.plain, inputs, seed) for seed, inputs in enumerate(microbatches)]
        for each in theirs:
            self.split.backward(each.outputs, each.gradients)
        for one, other in zip(ours, theirs, strict=True):
            self.same(one.outputs, other.outputs)
            self.same([each.grad for each in one.inputs], [each.grad for each in other.inputs])
        for number in order or range(len(ours)):
            work = cast(WeightWork, ours[number].work)
            pieces = work.pieces
            # Some of it before the rest, as while tokens travel; and no more than there are.
            assert work.run_some(pieces // 2) == pieces // 2
            assert work.run_some(0) == 0 and work.pieces == pieces - pieces // 2
            work.run()
        self.same_gradients()

    def same_gradients(self) -> None:
        """Parameters and buffers of the two stages agree."""
        self.same(
            [each.grad for each in self.other.parameters()], [each.grad for each in self.plain.parameters()]
        )
        self.same(list(self.other.buffers()), list(self.plain.buffers()))

    def same(self, ours: Sequence[Tensor | None], theirs: Sequence[Tensor | None]) -> None:
        for one, other in zip(ours, theirs, strict=True):
            if one is None or other is None:
                assert one is other
                continue
            assert one.dtype == other.dtype and one.shape == other.shape
            one, other = one.detach().to_dense().double(), other.detach().to_dense().double()
            if one.numel():
                # Some gradients are nothing but rounding: the bias of attention's keys has none.
                assert float((one - other).abs().max()) <= self.tolerance * max(
                    0.01, float(other.abs().max())
                )


def tensors(value: Any) -> list[Tensor]:
    """All tensors of a result, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return tensors(list(cast(dict[Any, Any], value).values()))
    if isinstance(value, tuple | list):
        return [each for part in cast(Sequence[Any], value) for each in tensors(part)]
    return []


def numbers(*shape: int, grad: bool = True, seed: int = 7) -> Tensor:
    """Random input of a stage, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_(grad)


def twice(*inputs: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Two micro-batches: the first finds no gradient, the second adds to one."""
    return inputs, [
        (0.5 * each.detach()).requires_grad_(each.requires_grad) if each.is_floating_point() else each
        for each in inputs
    ]
