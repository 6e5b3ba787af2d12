"""The optimizers of a chunk's layers, stepped and undone as one.

Every layer has an optimizer of its own: what it does to a layer then depends on nothing beside that layer,
and a layer takes its optimizer along when the model is cut elsewhere.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from recycle_runtime.execution.optimizer.masters import Masters
from recycle_runtime.execution.optimizer.moving import Moving
from recycle_runtime.execution.optimizer.plain_state import plain
from recycle_runtime.execution.optimizer.undo import Copies, Undo, option_groups


class LayerOptimizer:
    """The optimizer of one layer, or of one shard of it, and everything that moves with its steps, stepped
    and undone as one."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        moving: Moving,
        masters: Masters | None = None,
        rows: Sequence[torch.nn.Parameter] = (),
        *,
        undo_on_host: bool = False,
    ) -> None:
        """With `masters` the optimizer steps these, and the weights follow. `rows` are what it trains
        of each parameter of a layer that is in shards.

        `undo_on_host`: what undoes a step is in memory of the host, twice, so that what the next step changes
        can be copied while that step is computed and the last one can still be undone.
        """
        self.optimizer, self.moving, self.masters = optimizer, moving, masters
        self.rows = tuple(rows)
        beside = None if moving.is_empty else moving
        self.undo_on_host = undo_on_host
        self._undo = Undo(optimizer, beside, on_host=undo_on_host)
        self._next = Undo(optimizer, beside, on_host=True) if undo_on_host else self._undo

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return option_groups(self.optimizer)

    @property
    def bytes_held(self) -> int:
        """Bytes held for undoing a step."""
        return self._undo.bytes_held + (self._next.bytes_held if self._next is not self._undo else 0)

    @property
    def is_possible(self) -> bool:
        """True if the last step can be undone."""
        return self._undo.is_possible

    @property
    def state_bytes(self) -> int:
        """Of what the optimizer keeps, about."""
        kept = (value for state in self.optimizer.state.values() for value in state.values())
        tensors = [value for value in kept if isinstance(value, torch.Tensor)]
        tensors += [] if self.masters is None else self.masters.parameters
        if not self.moving.is_empty:
            tensors += _tensors(self.moving.state_dict())
        return sum(map(bytes_in, tensors))

    def state(self) -> dict[str, Any]:
        """Nothing is copied."""
        state: dict[str, Any] = {"optimizer": _plain_groups(self.optimizer.state_dict())}
        if not self.moving.is_empty:
            state["moving"] = self.moving.state_dict()
        if self.masters is not None:
            state["masters"] = [master.detach() for master in self.masters.parameters]
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that another had."""
        self.optimizer.load_state_dict(state["optimizer"])
        if not self.moving.is_empty:
            self.moving.load_state_dict(state.get("moving", {}))
        if self.masters is not None:
            self.masters.load(state["masters"])
            self.masters.give_values()

    def step(self) -> None:
        """With the gradients that the layer's weights have now."""
        if self.masters is not None and not self.masters.has_gradients:
            self.masters.take_gradients()
        self.optimizer.step()
        if self.masters is not None:
            self.masters.drop_gradients()
            self.masters.give_values()
        self.moving.step()

    def save(self, copies: Copies) -> None:
        """Take down what the coming step may change, once the caller has run the copies."""
        if self.masters is not None:
            self.masters.take_gradients()
        self._undo, self._next = self._next, self._undo
        self._undo.save(copies)

    def save_ahead(self, copies: Copies) -> None:
        """Take down what the step after this one may change; this one can still be undone."""
        assert self._next is not self._undo, "there is memory for one step"
        self._next.save_ahead(copies)

    def undo(self) -> None:
        """Everything is as it was at the last `save`; UndoError if it cannot be."""
        self._undo.undo()
        if self._next is not self._undo:
            self._next.forget("the step before it was undone")
        if self.masters is not None:
            self.masters.drop_gradients()
            self.masters.give_values()

    def forget(self, why: str) -> None:
        """There is nothing to go back to."""
        self._undo.forget(why)
        self._next.forget(why)


def bytes_in(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _plain_groups(state: dict[str, Any]) -> dict[str, Any]:
    """Rates that a schedule has computed with numpy are numbers."""
    groups = cast("list[dict[str, Any]]", state["param_groups"])
    return {**state, "param_groups": [plain(group, "param_groups") for group in groups]}


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [found for item in cast("Mapping[Any, Any]", value).values() for found in _tensors(item)]
    if isinstance(value, list | tuple):
        return [found for item in cast("list[Any]", value) for found in _tensors(item)]
    return []


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
        self._on_host = any(undo.undo_on_host for undo in self._undos)
        self._aside: Any = None
        """The stream on which memory of the host is written, on a GPU."""

    @property
    def bytes_held(self) -> int:
        return sum(undo.bytes_held for undo in self._undos)

    @property
    def is_possible(self) -> bool:
        return all(undo.is_possible for undo in self._undos)

    def save(self) -> None:
        """Take down what the coming step may change."""
        self._wait()
        copies = Copies(on_host=self._on_host)
        for undo in self._undos:
            undo.save(copies)
        copies.run()

    def save_ahead(self) -> None:
        """A step is made: copy what the next one changes while that is computed, where there is memory."""
        if not self._on_host:
            return
        copies = Copies(on_host=True)
        for undo in self._undos:
            undo.save_ahead(copies)
        if not copies.on_cuda:
            copies.run()
            return
        if self._aside is None:
            self._aside = torch.cuda.Stream()
        self._aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._aside):
            copies.run()

    def undo(self) -> None:
        """Everything is as it was at the last `save`, or nothing has changed and UndoError says why."""
        for undo in self._undos:
            if not undo.is_possible:
                undo.undo()
        self._wait()
        for undo in self._undos:
            undo.undo()

    def forget(self, why: str) -> None:
        """There is nothing to go back to."""
        for undo in self._undos:
            undo.forget(why)

    def _wait(self) -> None:
        """Wait for the copies under way: tensors must not change meanwhile."""
        if self._aside is not None:
            torch.cuda.current_stream().wait_stream(self._aside)
