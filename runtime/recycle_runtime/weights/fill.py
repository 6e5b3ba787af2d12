"""A layer takes its own from the weights of a whole model."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import torch

from recycle_runtime.weights.named import Weights
from recycle_runtime.weights.safetensors import WeightsError


def fill_layers(
    module: torch.nn.Module, prefix: str, weights: Weights, whole_name: Callable[[str], str] = str
) -> None:
    """Copy what is called `prefix.NAME` in the weights into the parameters and buffers of a module.

    Every parameter must be there, with its shape; the type of the module's own is kept. A buffer that
    is not there stays as it is built. A name that `whole_name` gives comes first.
    """
    own = module.state_dict(keep_vars=True)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, target in own.items():
            full = f"{prefix}.{name}" if prefix else name
            given = weights.get(whole_name(full))
            given = weights.get(full) if given is None else given
            if given is None and name not in parameters:
                continue
            if given is None:
                raise WeightsError(f"the weights have no {full}{_near(full, weights)}")
            if given.shape != target.shape:
                raise WeightsError(
                    f"{full} has shape {tuple(given.shape)} in the weights and {tuple(target.shape)} in "
                    "the model"
                )
            target.copy_(_distributed_as(target, given))


def _distributed_as(target: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """A whole tensor for one that is distributed over tensor-parallel ranks: each has all of it at hand."""
    if not hasattr(target, "placements"):
        return given
    from torch.distributed.tensor import distribute_tensor

    whole: Any = target
    return distribute_tensor(given, whole.device_mesh, whole.placements, src_data_rank=None)


def _near(name: str, weights: Mapping[str, torch.Tensor]) -> str:
    close = get_close_matches(name, list(weights), 1)
    return f"; is it {close[0]}?" if close else ""
