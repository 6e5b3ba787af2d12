"""The optimizers of a chunk's layers, stepped and undone as one.

Every layer has an optimizer of its own: what it does to a layer then depends on nothing beside that layer,
and a layer takes its optimizer along when the model is cut elsewhere.
"""

from collections.abc import Sequence
from typing import Any

import torch

from recycle_runtime.execution.optimizer.masters import Masters
from recycle_runtime.execution.optimizer.moving import Moving
from recycle_runtime.execution.optimizer.undo import Undo, groups_of


class LayerOptimizer:
    """The optimizer of one layer and everything that moves with its steps, stepped and undone as one."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, moving: Moving, masters: Masters | None = None
    ) -> None:
        """With `masters` the optimizer steps these, and the weights follow."""
        self.optimizer, self.moving, self.masters = optimizer, moving, masters
        self._undo = Undo(optimizer, None if moving.is_empty else moving)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return groups_of(self.optimizer)

    @property
    def bytes_held(self) -> int:
        """What taking a step back costs."""
        return self._undo.bytes_held

    @property
    def is_possible(self) -> bool:
        """Whether the last step can be undone."""
        return self._undo.is_possible

    def step(self) -> None:
        """With the gradients that the layer's weights have now."""
        if self.masters is not None:
            self.masters.take_gradients()
        self.optimizer.step()
        if self.masters is not None:
            self.masters.drop_gradients()
            self.masters.give_values()
        self.moving.step()

    def save(self) -> None:
        """Take down what the coming step may change."""
        if self.masters is not None:
            self.masters.take_gradients()
        self._undo.save()

    def undo(self) -> None:
        """Everything is as it was at the last `save`; UndoError if it cannot be."""
        self._undo.undo()
        if self.masters is not None:
            self.masters.give_values()

    def forget(self, why: str) -> None:
        """There is nothing to go back to."""
        self._undo.forget(why)


class LayerOptimizers:
    """Steps the optimizer of every layer."""

    def __init__(self, optimizers: Sequence[LayerOptimizer]) -> None:
        self._optimizers = tuple(optimizers)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Of all layers, the groups themselves."""
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def step(self) -> None:
        for optimizer in self._optimizers:
            optimizer.step()


class LayerUndo:
    """Takes back the last step of every layer."""

    def __init__(self, undos: Sequence[LayerOptimizer]) -> None:
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
