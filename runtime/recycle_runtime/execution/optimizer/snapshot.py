"""Undo of the last optimizer step, exactly, for any optimizer.

Taken down before a step: the parameters that have a gradient and their state, since a step changes no others;
the options of the groups; plain numbers and tensors among the optimizer's own attributes. It costs as much
memory as these take (AdamW in float32: 12 bytes a parameter) and one copy of them a step, always into the
same memory.
"""

from typing import Any, cast

import torch

from recycle_runtime.execution.optimizer.group_options import groups_of, options_of
from recycle_runtime.execution.optimizer.kept_values import Copies, bytes_of, give_back, keep


class UndoError(RuntimeError):
    """Only the last step can be undone, and only once."""


class Undo:
    """Call `save` before each step of the optimizer; `undo` takes back what happened since."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters: dict[torch.Tensor, Any] = {}
        self._state: dict[Any, Any] = {}
        self._groups: list[Any] = []
        self._attributes: dict[str, Any] = {}
        self._changing: list[torch.Tensor] = []
        self._changing_state: list[Any] = []
        self._had_state: frozenset[Any] = frozenset()
        self._why_not = "no step has been made yet"

    @property
    def bytes_held(self) -> int:
        return bytes_of(
            [list(self._parameters.values()), list(self._state.values()), self._groups, self._attributes]
        )

    @property
    def is_possible(self) -> bool:
        return not self._why_not

    @torch.no_grad()
    def save(self) -> None:
        """Take down what the coming step may change, in place of what the last one did."""
        copies = Copies()
        parameters = self._all_parameters()
        idle = {parameter for parameter in parameters if parameter.grad is None}
        state = cast("dict[Any, Any]", self._optimizer.state)
        self._changing = [parameter for parameter in parameters if parameter not in idle]
        self._changing_state = [key for key in state if key not in idle]
        self._had_state = frozenset(state)
        self._parameters = {key: kept for key, kept in self._parameters.items() if key in set(parameters)}
        self._state = {key: kept for key, kept in self._state.items() if key in self._had_state}
        for parameter in self._changing:
            self._parameters[parameter] = keep(parameter, self._parameters.get(parameter), copies)
        for key in self._changing_state:
            self._state[key] = keep(state[key], self._state.get(key), copies)
        self._groups = keep([options_of(group) for group in groups_of(self._optimizer)], self._groups, copies)
        self._attributes = keep(self._own_attributes(), self._attributes, copies)
        copies.run()
        self._why_not = ""

    @torch.no_grad()
    def undo(self) -> None:
        """Everything is as it was at the last `save`."""
        if self._why_not:
            raise UndoError(f"cannot undo: {self._why_not}")
        if len(self._groups) != len(groups_of(self._optimizer)):
            raise UndoError("cannot undo: the optimizer's groups have changed since the step")
        copies = Copies()
        for parameter in self._changing:
            copies.add(parameter, self._parameters[parameter].copy)
        self._undo_state(copies)
        for group, kept in zip(groups_of(self._optimizer), self._groups, strict=True):
            _replace(group, options_of(group), kept, copies)
        _replace(vars(self._optimizer), self._own_attributes(), self._attributes, copies)
        copies.run()
        self._why_not = "the last step has been undone already, and only that one is kept"

    def forget(self, why: str) -> None:
        """There is nothing to go back to; memory stays, for the next step."""
        self._why_not = why

    def _undo_state(self, copies: Copies) -> None:
        state = cast("dict[Any, Any]", self._optimizer.state)
        for key in [key for key in state if key not in self._had_state]:
            del state[key]
        for key in self._changing_state:
            current = state.get(key)
            restored = give_back(self._state[key], current, copies)
            if type(current) is dict and type(restored) is dict:
                entries = cast("dict[Any, Any]", current)
                entries.clear()
                entries.update(cast("dict[Any, Any]", restored))
            else:
                state[key] = restored

    def _all_parameters(self) -> list[torch.Tensor]:
        return [parameter for group in groups_of(self._optimizer) for parameter in group["params"]]

    def _own_attributes(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(self._optimizer).items()
            if isinstance(value, int | float | torch.Tensor) and not isinstance(value, bool)
        }


def _replace(target: dict[str, Any], current: dict[str, Any], kept: dict[str, Any], copies: Copies) -> None:
    """Make the named entries of the target what they were, and remove those that were not there."""
    for name in current.keys() - kept.keys():
        del target[name]
    for name, item in kept.items():
        target[name] = give_back(item, target.get(name), copies)
