"""What is left of one micro-batch after its input gradient: the gradients of the weights."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from recycle_runtime.execution.split_backward.accumulate import Hooked, has_hooks, run_hooks
from recycle_runtime.execution.split_backward.deferred import Unit
from recycle_runtime.execution.split_backward.general import Call, GeneralUnit


class WeightWork:
    """Holds what the weights of one micro-batch need, from backward-input until `run`."""

    __slots__ = ("_calls", "_layers")

    def __init__(self) -> None:
        self._layers: list[tuple[Unit, Tensor | None, Tensor]] = []
        self._calls: dict[GeneralUnit, list[Call]] = {}

    def add(self, unit: Unit, value: Tensor | None, gradient: Tensor) -> None:
        """Keep the input of a layer, if its weights need it, and the gradient of its output."""
        self._layers.append((unit, value, gradient))

    def add_call(self, call: Call) -> None:
        """Keep one call of a module."""
        self._calls.setdefault(call.unit, []).append(call)

    @property
    def held_bytes(self) -> int:
        """Of the tensors that are kept; what the graph of a call has saved is not counted."""
        sizes: dict[int, int] = {}
        for tensor in self._tensors():
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        return sum(sizes.values())

    def run(self) -> None:
        """Accumulate every put-off gradient; what a layer needed is dropped as soon as it has run."""
        layers, self._layers = self._layers[::-1], []
        calls, self._calls = self._calls, {}
        hooked: Hooked = {}
        with torch.no_grad():
            while layers:
                unit, value, gradient = layers.pop()
                unit.accumulate(value, gradient, hooked)
        while calls:
            _run_calls(calls.pop(next(iter(calls))))
        run_hooks(hooked)

    def drop(self) -> None:
        """Forget everything."""
        self._layers.clear()
        self._calls.clear()

    def _tensors(self) -> Iterator[Tensor]:
        for _, value, gradient in self._layers:
            yield gradient
            if value is not None:
                yield value
        for calls in self._calls.values():
            for call in calls:
                yield from call.kept()


def _run_calls(calls: Sequence[Call]) -> None:
    """All calls of one module in one micro-batch."""
    for call in calls:
        call.check()
    parameters = list(dict.fromkeys(parameter for call in calls for parameter in call.parameters))
    # A walk that ends at a parameter calls its hooks, so there must be one walk for all.
    if not any(has_hooks(parameter) for parameter in parameters):
        for border in (border for call in calls for border in call.borders or ()):
            border.accumulate()
        calls = [call for call in calls if call.borders is None]
    outputs = [output for call in calls for output in call.outputs]
    gradients = [gradient for call in calls for gradient in call.gradients]
    if outputs:
        torch.autograd.backward(outputs, gradients, inputs=parameters)
