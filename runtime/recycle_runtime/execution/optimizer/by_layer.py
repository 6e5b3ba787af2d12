"""The optimizers of a chunk's layers, stepped and undone as one.

Every layer has an optimizer of its own: what it does to a layer then depends on nothing beside that layer,
and a layer takes its optimizer along when the model is cut elsewhere.
"""

from collections.abc import Sequence
from typing import Any

import torch

from recycle_runtime.execution.optimizer.undo import Undo, groups_of


class LayerOptimizers:
    """Steps the optimizer of every layer."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = tuple(optimizers)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Of all layers, the groups themselves."""
        return [group for optimizer in self._optimizers for group in groups_of(optimizer)]

    def step(self) -> None:
        for optimizer in self._optimizers:
            optimizer.step()


class LayerUndo:
    """Takes back the last step of every layer."""

    def __init__(self, undos: Sequence[Undo]) -> None:
        self._undos = tuple(undos)

    @property
    def bytes_held(self) -> int:
        return sum(undo.bytes_held for undo in self._undos)

    @property
    def is_possible(self) -> bool:
        return all(undo.is_possible for undo in self._undos)

    def save(self) -> None:
        """Take down what the coming step may change."""
        for undo in self._undos:
            undo.save()

    def undo(self) -> None:
        """Everything is as it was at the last `save`, or nothing has changed and UndoError says why."""
        for undo in self._undos:
            if not undo.is_possible:
                undo.undo()
        for undo in self._undos:
            undo.undo()

    def forget(self, why: str) -> None:
        """There is nothing to go back to."""
        for undo in self._undos:
            undo.forget(why)
