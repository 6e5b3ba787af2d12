"""Whether all gradients of a module pass through its arguments and its results."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recycle_runtime.execution.split_backward.nested import UnknownKindError, tensors_of


def saved_tensors_are_hooked() -> bool:
    """Whether checkpointing, or something like it, decides what is saved for backward now."""
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks("saved tensors are hooked"):
            return False
    except RuntimeError:
        return True


class Trial:
    """Watches one ordinary call of a module, made on aliases of its inputs."""

    def __init__(self, module: nn.Module, inputs: Sequence[Tensor]) -> None:
        self._module = module
        self._aliases = {id(tensor): tensor.view_as(tensor) for tensor in inputs}
        self._versions = self._changes()
        # Not only their numbers: those are given out again.
        self._remembered = _remembered(module)

    def alias(self, tensor: Tensor) -> Tensor:
        """What to call the module with in place of an input."""
        return self._aliases.get(id(tensor), tensor)

    def shows_closed(self, result: Any) -> bool:
        """Whether it takes gradients from its results alone, to its inputs and parameters alone."""
        try:
            outputs = [tensor for tensor in tensors_of(result) if tensor.requires_grad]
        except UnknownKindError:
            return False
        if any(output.grad_fn is None for output in outputs) or self._changes() != self._versions:
            return False
        known = {id(tensor) for tensor in self._remembered}
        if any(id(tensor) not in known for tensor in _remembered(self._module)):
            return False
        starts: set[Any] = {alias.grad_fn for alias in self._aliases.values()}
        own = {id(parameter) for parameter in self._module.parameters()}
        return all(id(leaf) in own for leaf in _leaves(outputs, starts))

    def _changes(self) -> list[int]:
        return [alias._version for alias in self._aliases.values()]  # pyright: ignore[reportPrivateUsage]


def _leaves(outputs: Iterable[Tensor], starts: set[Any]) -> Iterable[Tensor]:
    """Every leaf that gets a gradient from the outputs, except through the given nodes."""
    waiting: list[Any] = [output.grad_fn for output in outputs]
    seen = set(starts)
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting.extend(each for each, _ in node.next_functions)


def _remembered(module: nn.Module) -> list[Tensor]:
    """Computed tensors in the attributes of the module and what is in it."""
    found: list[Tensor] = []
    for each in module.modules():
        for value in vars(each).values():
            try:
                found += tensors_of(value)
            except UnknownKindError:
                continue
    return [tensor for tensor in found if tensor.grad_fn is not None]
