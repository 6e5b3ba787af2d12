"""Autograd's backward without what its front does for every call.

`torch.autograd.backward` looks at the shapes of all gradients before the engine does the same, and hands a
context on to threads of devices. On a CPU, with small layers, that takes longer than to run the graph.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_engine: Any = getattr(torch.autograd.Variable, "_execution_engine", None)
_run: Callable[..., Any] | None = getattr(_engine, "run_backward", None)
_transforms_are_active: Callable[[], bool] = torch._C._are_functorch_transforms_active  # pyright: ignore[reportPrivateUsage]


def run_backward(outputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """As torch.autograd.backward: the gradients of everything that the outputs were computed from."""
    if _run is None or _transforms_are_active() or not _are_plain(outputs, gradients):
        torch.autograd.backward(outputs, gradients)
        return
    _run(tuple(outputs), tuple(gradients), False, False, (), allow_unreachable=True, accumulate_grad=True)


def _are_plain(outputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> bool:
    """Tensors on the CPU, each with a gradient."""
    return all(type(output) is Tensor and output.is_cpu for output in outputs) and all(
        gradient is not None for gradient in gradients
    )
