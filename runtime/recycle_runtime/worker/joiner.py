"""How a worker that comes late catches up while the others train.

It takes part in sums and steps like any peer that watches, so it sees every gradient, but it has no state yet
to apply them to. It writes them down. When the state has arrived, as it was when the worker came, what was
written down is applied to it, step by step, as the peers did: the same numbers, so the same parameters.
"""

from collections.abc import Sequence
from typing import Any

import torch

from recycle_runtime.execution.optimizer import Stepper


class _Record:
    """Stands in for the optimizer: a step is written down instead of being made."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        self.steps: list[list[torch.Tensor | None] | None] = []
        """Gradients as the optimizer would have used them; None for a step that was left out."""
        self.state: dict[Any, Any] = {}
        self.param_groups: list[dict[str, Any]] = []

    def step(self) -> None:
        self.steps[-1] = [
            None if parameter.grad is None else parameter.grad.clone() for parameter in self._parameters
        ]


class _RecordUndo:
    """Stands in for the undo of steps; it is called before each, whether it is made or left out."""

    is_possible = True

    def __init__(self, record: _Record) -> None:
        self._record = record

    def save(self) -> None:
        self._record.steps.append(None)

    def undo(self) -> None:
        self._record.steps.pop()

    def forget(self, why: str) -> None:
        """Nothing to do: the record is what there is."""


class Learning:
    """Between the arrival of a worker and that of its state."""

    def __init__(self, stepper: Stepper, progress: dict[str, int]) -> None:
        self._stepper = stepper
        self._optimizer, self._undo = stepper.optimizer, stepper.undo
        stepper.load_state_dict(progress)
        record = _Record(stepper.gradients.parameters)
        self._record = record
        stand_in: Any = record
        stepper.optimizer = stand_in
        undo: Any = _RecordUndo(record)
        stepper.undo = undo

    @property
    def steps(self) -> int:
        """Written down so far."""
        return len(self._record.steps)

    def give_up(self) -> None:
        """The state will not come: be as before."""
        self._stepper.optimizer, self._stepper.undo = self._optimizer, self._undo

    def catch_up(self, model: torch.nn.Module, state: dict[str, Any]) -> None:
        """The state is there: apply what was written down. What the stepper is in the middle of goes on."""
        self.give_up()
        model.load_state_dict(state["model"])
        parameters = self._stepper.gradients.parameters
        if not parameters:
            return
        self._optimizer.load_state_dict(state["optimizer"])
        shown = [parameter.grad for parameter in parameters]
        for gradients in self._record.steps:
            left_out = gradients is None
            for parameter, gradient in zip(parameters, gradients or [None] * len(parameters), strict=True):
                parameter.grad = gradient
            # Only the last one can still be taken back, and each replaces what was kept before it.
            self._undo.save()
            if not left_out:
                self._optimizer.step()
        for parameter, gradient in zip(parameters, shown, strict=True):
            parameter.grad = gradient
        self._record.steps.clear()
