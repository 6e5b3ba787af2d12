"""Gradients of parameters that every tensor-parallel rank of a worker has as a whole: all must get the same.

    q_proj.weight   in the plan of `parallelize_module`: each rank has its slice, and the gradient of that
    q_norm.weight   not in it, and used for the heads of this rank: each has a part of its gradient, which
                    nobody sums, and the ranks train different norms

They are compared once, after the first backward of a chunk.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.local_tensors import is_distributed
from recycle_runtime.program.errors import ProgramError

_SAMPLES = 4096
"""Numbers of each gradient that are compared."""
_APART = 0.05
"""Share of a gradient by which those of two ranks may differ: kernels need not round alike."""
_NOTHING = 1e-6
"""Share of the largest gradient of the chunk below which one is rounding."""


def refuse_partial(path: Path, layers: Sequence[Layer], group: Any) -> None:
    """ProgramError if ranks have different gradients of a parameter that is no slice; all ranks call it."""
    found = [
        (layer.title, name, parameter)
        for layer in layers
        for name, parameter in layer.computing.named_parameters()
        if parameter.requires_grad
        and not is_distributed(parameter)
        and not getattr(parameter, "tensor_parallel", False)
    ]
    if not found or group.size() == 1:
        return
    own = torch.stack([_sample(parameter) for _, _, parameter in found])
    every = [torch.empty_like(own) for _ in range(group.size())]
    group.allgather([every], [own]).wait()
    norms = torch.stack([each.norm(dim=1) for each in every]).amax(0)
    apart = torch.stack([(each - every[0]).norm(dim=1) for each in every]).amax(0)
    is_other = (apart > _APART * norms) & (norms > _NOTHING * norms.max())
    for (title, name, _), is_partial in zip(found, is_other.tolist(), strict=True):
        if is_partial:
            raise ProgramError(
                f"{path}: {name} of {title} has another gradient on each tensor-parallel rank, and nobody "
                "sums them: it is whole, and computes with slices of other parameters",
                "name it in the plan of parallelize: for a norm of each head that is "
                "SequenceParallel(sequence_dim=2, use_local_output=True); a slice that the program cuts "
                "itself is marked: parameter.tensor_parallel = True",
            )


def _sample(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Numbers of its gradient, as many of every parameter."""
    made = torch.zeros(_SAMPLES, dtype=torch.float64, device=parameter.device)
    if parameter.grad is not None and not parameter.grad.is_sparse:
        flat = parameter.grad.detach().flatten()
        found = flat[:: 1 + flat.numel() // _SAMPLES]
        made[: found.numel()] = found
    return made
