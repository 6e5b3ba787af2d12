"""Forwards that are computed a second time, in the backward, as activation checkpointing does."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_autograd: Any = getattr(torch._C, "_autograd", None)  # pyright: ignore[reportPrivateUsage]
_top_hooks: Callable[[bool], Any] | None = getattr(_autograd, "_top_saved_tensors_default_hooks", None)


def is_second_forward() -> bool:
    """True in a forward that the backward computes."""
    return torch._C._current_graph_task_id() != -1  # pyright: ignore[reportPrivateUsage]


def has_second_forward() -> bool:
    """True in a forward that a backward may compute again: autograd keeps no tensors of it."""
    return not torch.is_grad_enabled() or saving_hook() is not None


def saving_hook() -> Callable[[Tensor], Any] | None:
    """The hook that keeps tensors for backward instead of autograd, as checkpointing does; None without."""
    if _top_hooks is not None:
        hooks = _top_hooks(False)
        return None if hooks is None else hooks[0]
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks("saved tensors are hooked"):
            return None
    except RuntimeError:
        return _unknown


def _unknown(tensor: Tensor) -> Any:
    """A hook that torch does not show."""
    raise NotImplementedError
