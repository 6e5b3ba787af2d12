"""Parameters that a chunk computes with and that are none of its own: nobody would train them.

A loss may have some, or use those of a module that the program holds elsewhere. Torch adds up their gradients
like any others, so nothing would be wrong but the result. They are seen in the graph of a first micro-batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.program.errors import ProgramError


def refuse_foreign(chunk: Chunk, outputs: Sequence[torch.Tensor]) -> None:
    """ProgramError if what was computed depends on a parameter that the chunk does not have."""
    own = set(chunk.module.parameters())
    found = next((parameter for parameter in _parameters(outputs) if parameter not in own), None)
    if found is None:
        return
    what = "the loss, or the last layers," if chunk.is_last else f"chunk {chunk.number} of the model"
    raise ProgramError(
        f"{chunk.program.path}: {what} computes with a parameter of shape {tuple(found.shape)} that is in "
        "none of its layers, and would not be trained",
        "what is trained belongs to a layer, which may hand it on as a further output; what is not is frozen "
        "by requires_grad_(False), or used detached",
    )


def _parameters(outputs: Sequence[torch.Tensor]) -> Iterator[nn.Parameter]:
    """Those below the outputs."""
    waiting: list[Any] = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if isinstance(found := getattr(node, "variable", None), nn.Parameter):
            yield found
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)
