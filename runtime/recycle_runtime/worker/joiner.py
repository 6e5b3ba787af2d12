"""Joiner that catches up while the other workers train.

It is on standby: it takes part in sums and steps like any peer, so it sees every gradient, but it has no
state yet to apply them to. It writes them down. A thread receives the state, as it was when the worker came,
and puts it where it can be used at once; on a shared GPU that thread also rehearses the chunk (`warm_up`).
Then what was written down is applied to the state, step by step, as the peers did: the same numbers, so the
same parameters.

Where optimizer state is in shards, it owns none at first, and gets weights with every step from those who do.
Nothing has to be written down: what it waits for is buffers and the position of the data.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.execution.optimizer import Stepper
from recycle_runtime.protocol.surroundings import Surroundings
from recycle_runtime.state.image import Image
from recycle_runtime.transport.guarded import PeerError
from recycle_runtime.worker.state_stream import Incoming, load_sent, states_in
from recycle_runtime.worker.state_transfer import Meet, largest_of
from recycle_runtime.worker.warm_up import has_all_kernels, rehearse


class _Record:
    """Stands in for the optimizer: a step is written down instead of being made."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        self.steps: list[list[torch.Tensor | None] | None] = []
        """Gradients as the optimizer would have used them; None for a step that was left out."""
        self.state: dict[Any, Any] = {}
        self.param_groups: list[dict[str, Any]] = []

    def step(self) -> None:
        if not self.steps or self.steps[-1] is not None:
            # Nothing was saved for an undo: steps are not undone.
            self.steps.append(None)
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


class CatchUp:
    """Between the arrival of a worker and that of its state: steps are written down."""

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

    def catch_up(self, load: Callable[[], None]) -> None:
        """The state is there, and `load` puts it in place: apply what was written down to it.

        What the stepper is in the middle of goes on.
        """
        self.give_up()
        load()
        parameters = self._stepper.gradients.parameters
        if not parameters:
            return
        shown = [parameter.grad for parameter in parameters]
        for gradients in self._record.steps:
            left_out = gradients is None
            for parameter, gradient in zip(parameters, gradients or [None] * len(parameters), strict=True):
                parameter.grad = gradient
            # Only the last one can still be taken back, and each replaces what was kept before it.
            if self._stepper.options.keeps_undo:
                self._undo.save()
            if not left_out:
                self._optimizer.step()
        for parameter, gradient in zip(parameters, shown, strict=True):
            parameter.grad = gradient
        self._record.steps.clear()


class Joiner:
    """One chunk that joins: what it writes down, and the state that is on its way."""

    def __init__(self, chunk: Chunk, progress: dict[str, int], device: torch.device) -> None:
        """`progress` is that of its peers."""
        self._chunk, self._device = chunk, device
        self._catch_up = None if chunk.has_shards else CatchUp(chunk.stepper, progress)
        if self._catch_up is None:
            chunk.stepper.load_state_dict(progress)
        self._late = [counts.sum for counts in chunk.step_counts]
        for late in self._late:
            late.record()
        self._states: dict[str, Any] = {}
        """By name, once they are there."""
        self._incoming = Incoming(device, self._take)

    def begin(self, surroundings: Surroundings, meet: Meet, name: str, meanwhile: Callable[[], None]) -> None:
        """Wait for the state under this name, beside everything else."""
        self._incoming.begin(surroundings, meet, name, largest_of([self._chunk.module]), meanwhile)

    def finish_if_ready(self) -> bool:
        """Between two steps: whether the state has arrived, and the chunk is as its peers' from now on.

        PeerError if it will not come.
        """
        if not self._states:
            if self._incoming.error is not None:
                raise PeerError(self._incoming.error)
            return False
        load = partial(load_sent, self._chunk, self._states, is_stepping=True)
        if self._catch_up is None:
            load()
        else:
            self._catch_up.catch_up(load)
        self._catch_up_buffers()
        return True

    def _catch_up_buffers(self) -> None:
        """All may have to go back to where the last step began."""
        chunk = self._chunk
        if any(late.recorded for late in self._late):
            for late in self._late:
                late.catch_up(but=1)
            chunk.buffers.begin(chunk.applied - 1)
        for late in self._late:
            late.catch_up()

    def give_up(self) -> None:
        """The group is left before the state has come."""
        for late in self._late:
            late.forget()
        if self._catch_up is not None:
            self._catch_up.give_up()

    def _take(self, image: Image) -> None:
        states = states_in(image, self._chunk, self._device)
        if self._device.type == "cuda" and not has_all_kernels():
            rehearse(self._chunk, image.note["inputs"], self._device)
            torch.cuda.current_stream(self._device).synchronize()
        self._states = states
