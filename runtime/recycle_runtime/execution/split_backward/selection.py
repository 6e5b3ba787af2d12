"""Which modules of a stage put their weights off, and how.

A layer with a unit of its own is the best case. A module that holds most of what it learns in matrices of its
own (attention with packed projections, recurrent layers, parametrized layers, layers by the user) is put off
whole. Everything else is left to autograd: what a module keeps beside its layers (a position table, a scale),
and layers that learn only vectors, such as norms. The gradients of those fall out of the same kernel as the
input's; to come back for them takes longer, and keeps two activations alive until then.
"""

from collections.abc import Iterator
from typing import cast

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from recycle_runtime.execution.split_backward import convolution, embedding
from recycle_runtime.execution.split_backward.convolution import Convolution, ConvolutionUnit
from recycle_runtime.execution.split_backward.deferred import Unit
from recycle_runtime.execution.split_backward.embedding import EmbeddingUnit
from recycle_runtime.execution.split_backward.general import GeneralUnit
from recycle_runtime.execution.split_backward.linear import LinearUnit
from recycle_runtime.execution.split_backward.owner import Owner


def choose_units(stage: nn.Module, owner: Owner) -> list[Unit | GeneralUnit]:
    """One for every module whose weights wait; no module belongs to two."""
    chosen = list(_candidates(stage, owner, set()))
    general = [unit for unit in chosen if isinstance(unit, GeneralUnit)]
    inside = {id(module) for unit in general for module in _inside(unit.module)}
    return [unit for unit in chosen if id(unit.module) not in inside]


def _candidates(module: nn.Module, owner: Owner, seen: set[int]) -> Iterator[Unit | GeneralUnit]:
    if id(module) in seen or isinstance(module, torch.jit.ScriptModule):
        return
    seen.add(id(module))
    unit = _layer_unit(module, owner)
    if unit is not None:
        yield unit
    elif _keeps_its_matrices(module):
        yield GeneralUnit(module, owner)
    else:
        for child in module.children():
            yield from _candidates(child, owner, seen)


def _inside(module: nn.Module) -> list[nn.Module]:
    return [each for each in module.modules() if each is not module]


def _layer_unit(module: nn.Module, owner: Owner) -> Unit | None:
    """A unit for the layer if it computes exactly what torch's layer of that name does."""
    parameters = dict(module.named_parameters(recurse=False))
    weight = parameters.get("weight")
    if type(weight) is not nn.Parameter or not weight.is_floating_point() or "forward" in vars(module):
        return None
    kind = type(module)
    if kind is nn.Linear:
        return LinearUnit(module, owner)
    if kind is nn.Embedding and embedding.fits(cast(nn.Embedding, module)):
        return EmbeddingUnit(module, owner)
    if kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d) and convolution.fits(cast(Convolution, module)):
        return ConvolutionUnit(cast(Convolution, module), owner)
    return None


def _keeps_its_matrices(module: nn.Module) -> bool:
    """Whether at least half of what it learns lies in matrices of its own."""
    if is_parametrized(module):
        return True
    own = sum(
        each.numel() for each in module.parameters(recurse=False) if each.requires_grad and each.dim() > 1
    )
    return own > 0 and 2 * own >= sum(each.numel() for each in module.parameters() if each.requires_grad)
