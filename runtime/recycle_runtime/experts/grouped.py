"""Products of rows that are sorted by expert, each with the weights of its expert.

An expert that is made of linear layers and of functions of single rows (activations, gates, dropout) is
called once with the rows of all experts: its linear layers have the weights of all of them. On CUDA in bf16
that is one grouped product, and the host need not know how many rows an expert has; elsewhere it is a product
for each expert.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from recycle_runtime.program.errors import ProgramError


class ExpertRows(NamedTuple):
    """Groups of rows by the expert that they are for."""

    counts: Tensor
    """Rows of every slot that is computed here, on the device of the rows."""
    chosen: Tensor | None
    """Rows of weights, one for every slot, where slots and weights are not the same."""

    def weights(self, stacked: Tensor) -> Tensor:
        """Of every slot."""
        return stacked if self.chosen is None else stacked.index_select(0, self.chosen)


_groups: ContextVar[ExpertRows] = ContextVar("groups of rows")


@contextmanager
def grouped(groups: ExpertRows) -> Generator[None]:
    """Rows are in these groups for all linear layers that are called in here."""
    token = _groups.set(groups)
    try:
        yield
    finally:
        _groups.reset(token)


def groups_here() -> ExpertRows:
    """Of the call of experts that this is part of."""
    groups = _groups.get(None)
    if groups is None:
        raise ProgramError(
            "an expert is computed a second time in the backward (activation checkpointing): by then its "
            "rows and weights are not known any more",
            "checkpoint what lies before and after a mixture of experts, and not its experts",
        )
    return groups


class GroupedLinear(nn.Module):
    """Linear layers of all experts in one: called with rows that are sorted by expert."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight = weight
        self.register_parameter("bias", bias)

    def forward(self, rows: Tensor) -> Tensor:
        groups = groups_here()
        bias = cast("Tensor | None", self.bias)
        return grouped_linear(rows, self.weight, bias, groups)

    def extra_repr(self) -> str:
        experts, outputs, inputs = self.weight.shape
        has_bias = "bias" in dict(self.named_parameters())
        return f"experts={experts}, in_features={inputs}, out_features={outputs}, bias={has_bias}"


def grouped_linear(rows: Tensor, weight: Tensor, bias: Tensor | None, groups: ExpertRows) -> Tensor:
    """Each group of rows times its matrix [outputs, inputs], plus its bias; rows beyond all groups give
    anything."""
    weight = groups.weights(weight)
    device = rows.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        rows, weight = rows.to(dtype), weight.to(dtype)
    if not _has_grouped_product(rows, weight):
        return by_group(rows, groups.counts, lambda number, part: _linear(part, weight, bias, groups, number))
    ends = groups.counts.cumsum(0, dtype=torch.int32)
    product = cast(Any, torch)._grouped_mm(rows, weight.transpose(-2, -1), offs=ends)
    if bias is None:
        return product
    last = len(groups.counts) - 1
    places = torch.searchsorted(
        ends, torch.arange(len(rows), device=rows.device, dtype=torch.int32), right=True
    )
    return product + groups.weights(bias)[places.clamp(max=last)].to(product.dtype)


def by_group(rows: Tensor, counts: Tensor, compute: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Results of every group of rows, one after the other; on CUDA the host waits for their sizes."""
    sizes: Sequence[int] = counts.tolist()
    parts = rows[: sum(sizes)].split(sizes)
    made = torch.cat([compute(number, part) for number, part in enumerate(parts)])
    if len(made) == len(rows):
        return made
    return torch.cat([made, made.new_zeros(len(rows) - len(made), *made.shape[1:])])


def _linear(part: Tensor, weight: Tensor, bias: Tensor | None, groups: ExpertRows, number: int) -> Tensor:
    own = None if bias is None else groups.weights(bias)[number].to(weight.dtype)
    return functional.linear(part, weight[number], own)


def _has_grouped_product(rows: Tensor, weight: Tensor) -> bool:
    """Matrices whose rows begin at multiples of 16 bytes, in bf16, on a GPU of compute capability 9 or
    more."""
    if not rows.is_cuda or rows.dtype is not torch.bfloat16 or not hasattr(torch, "_grouped_mm"):
        return False
    is_aligned = all(size % 8 == 0 for size in weight.shape[1:])
    return is_aligned and torch.cuda.get_device_capability(rows.device) >= (9, 0)
