"""Layers that travel to a worker of another stage, while both workers train.

    donor      state after step n, then the gradients of step n, n + 1, ... as each of them stands
    joiner     takes the state, then makes the same steps: the same numbers, so the same parameters

A donor copies what it sends aside, between two steps or when its optimizer uses it, and a thread sends the
copies. A joiner builds the modules, and a thread does the rest, beside whatever chunk the process works on;
neither takes part in the other's sums. What has arrived stays up to date until the cut changes: only what the
last step adds is waited for then.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from recycle_runtime.execution.chunk import Setting
from recycle_runtime.execution.layer import Layer
from recycle_runtime.program.layers import build_layers
from recycle_runtime.protocol.messages.generations import Copied
from recycle_runtime.protocol.messages.layer_moves import LayersToMove
from recycle_runtime.protocol.surroundings import Surroundings
from recycle_runtime.state.image import Image
from recycle_runtime.state.layer_state import Clones, LayerState, as_settled, copied, state_name
from recycle_runtime.state.tree import take_apart
from recycle_runtime.worker.held_chunks import HeldChunks
from recycle_runtime.worker.state_stream import Incoming, Outgoing
from recycle_runtime.worker.state_transfer import Meet, largest_of

_MOST_WAITING = 64
"""Steps that wait to be sent; a joiner that is further behind will never catch up."""
_LOOK_EVERY = 0.01
"""Seconds, for whoever waits for the last of them."""

_log = logging.getLogger(__name__)


BuildLayers = Callable[[Setting, int, int], list[Layer]]
"""Layers first .. last - 1 of a model, as a seed fills them."""


def built_layers(setting: Setting, first: int, last: int) -> list[Layer]:
    """The real ones."""
    named = build_layers(setting.program, setting.seed, first, last, setting.group)
    return [
        setting.layer(number, name, module)
        for number, (name, module) in zip(range(first, last), named, strict=True)
    ]


class LayerDonor:
    """Some layers of a process, on their way to one joiner."""

    def __init__(
        self,
        chunks: HeldChunks,
        numbers: range,
        surroundings: Surroundings,
        meet: Meet,
        name: str,
        meanwhile: Callable[[], None],
    ) -> None:
        """The joiner waits under this name."""
        self._chunks = chunks
        self._layers = [layer for layer in chunks.layers if layer.number in numbers]
        self._sent: int | None = None
        """The last step whose outcome was handed to the thread."""
        self._gradients: dict[int, list[torch.Tensor | None]] = {}
        """As the optimizer of each layer has used them last."""
        self._is_over = False
        self._hooks = [
            layer.optimizer.register_step_pre_hook(self._watch(layer))
            for layer in self._layers
            if layer.optimizer is not None
        ]
        self._outgoing = Outgoing(surroundings, meet, name, meanwhile)

    def settled(self) -> None:
        """The last step of all chunks stands: what it has made of these layers is sent."""
        applied = self._chunks.applied
        if self._is_over or applied == self._sent:
            return
        if self._sent is None:
            numbers = {layer.number for layer in self._layers}
            self._outgoing.put("state", copied(list(self._chunks.values()), Clones(), numbers), {})
        elif applied == self._sent + 1 and self._outgoing.waiting < _MOST_WAITING:
            self._outgoing.put("step", list(self._step()), {})
        else:
            self.stop()
        self._sent = applied
        self._gradients.clear()

    def stop(self) -> None:
        """Nothing more is sent."""
        if not self._is_over:
            self._is_over = True
            for hook in self._hooks:
                hook.remove()
            self._outgoing.end()

    def _watch(self, layer: Layer) -> Callable[..., None]:
        def before(*_: Any) -> None:
            self._gradients[layer.number] = [
                None if parameter.grad is None else parameter.grad.clone() for parameter in layer.parameters
            ]

        return before

    def _step(self) -> Iterator[LayerState]:
        """What the last step was made of; a step that was left out has no gradients."""
        record, stepper = self._chunks.record, self._chunks.stepper_state
        is_left_out = record is not None and record.factor == 0.0
        with as_settled(list(self._chunks.values())):
            buffers = {
                layer.number: {name: value.clone() for name, value in layer.module.named_buffers()}
                for layer in self._layers
            }
        for layer in self._layers:
            gradients = None if is_left_out else self._gradients.get(layer.number)
            made = {"gradients": gradients, "buffers": buffers[layer.number], "stepper": stepper}
            name = state_name(self._chunks.setting, layer.number)
            yield LayerState(name, {"step": self._chunks.applied}, *take_apart(made))


class LayerJoiner:
    """All layers that a process takes for another cut, from one donor or several."""

    def __init__(
        self,
        setting: Setting,
        takes: Sequence[LayersToMove],
        surroundings: Surroundings,
        build: BuildLayers | None = None,
    ) -> None:
        """Their modules are built at once: what they are filled with is replaced."""
        self.layers: list[Layer] = []
        self._sources: list[_Source] = []
        for taken in takes:
            layers = (build or built_layers)(setting, taken.first, taken.last)
            self._sources.append(_Source(taken, layers, setting, surroundings))
            self.layers += layers
        self._began = surroundings.now()
        self._changed = surroundings.signal()

    def begin(
        self,
        meet: Meet,
        name: Callable[[LayersToMove], str],
        meanwhile: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        """Receive them, in threads of their own, which call `changed` after every step and at the end."""

        def note() -> None:
            changed()
            self._changed.give()

        for source in self._sources:
            source.begin(meet, name(source.taken), meanwhile, note)

    @property
    def applied(self) -> int | None:
        """Steps that all these layers have seen; None while a state is missing, or they have seen different
        ones."""
        steps = {source.applied for source in self._sources}
        return steps.pop() if len(steps) == 1 else None

    @property
    def least_applied(self) -> int | None:
        """Steps that the last of them have seen; None while a state is missing."""
        steps = [source.applied for source in self._sources if source.applied is not None]
        return min(steps) if len(steps) == len(self._sources) else None

    @property
    def error(self) -> str | None:
        """Why some of them will not come, or not go on."""
        return next((source.error for source in self._sources if source.error is not None), None)

    @property
    def stepper_state(self) -> dict[str, int]:
        """What a stepper knows after the last step that was made."""
        return self._sources[0].stepper_state

    @property
    def data(self) -> dict[str, Any] | None:
        """Where the data stood when the state was copied, if a donor draws any."""
        return next((source.data for source in self._sources if source.data is not None), None)

    def copied(self) -> Copied:
        """What has been received, once all states are there."""
        arrived = max(source.arrived for source in self._sources)
        return Copied(sum(source.size for source in self._sources), arrived - self._began)

    async def wait(self, step: int, goes_on: Callable[[], bool]) -> bool:
        """Until all layers have seen so many steps; False if that will not be, or goes on no more."""
        while self.applied != step:
            if self.error is not None or not goes_on():
                return False
            await self._changed.wait(_LOOK_EVERY)
        return True


class _Source:
    """Layers that come from one donor."""

    def __init__(
        self, taken: LayersToMove, layers: list[Layer], setting: Setting, surroundings: Surroundings
    ) -> None:
        self.taken, self._layers, self._setting, self._surroundings = taken, layers, setting, surroundings
        self._incoming: Incoming | None = None
        self.applied: int | None = None
        self.stepper_state: dict[str, int] = {}
        self.data: dict[str, Any] | None = None
        """Where the donor's data stood, if it draws any."""
        self.size = 0
        """Bytes of the state."""
        self.arrived = 0.0

    @property
    def error(self) -> str | None:
        """Why no more will come."""
        return None if self._incoming is None else self._incoming.error

    def begin(
        self, meet: Meet, name: str, meanwhile: Callable[[], None], changed: Callable[[], None]
    ) -> None:
        self._incoming = Incoming(self._setting.device, self._use, changed)
        largest = largest_of(layer.module for layer in self._layers)
        self._incoming.begin(self._surroundings, meet, name, largest, meanwhile)

    def _use(self, image: Image) -> None:
        """The state, or what a step is made of."""
        step = self.applied
        for layer in self._layers:
            name = state_name(self._setting, layer.number)
            step = int(image.about(name)["step"])
            state = image.state(name, device=self._setting.device)
            if self.applied is None:
                layer.load(state)
                self.data = self.data or state.get("data")
            else:
                assert step == self.applied + 1, "a step is missing"
                _make_step(layer, state["gradients"])
                for buffer, value in layer.module.named_buffers():
                    value.copy_(state["buffers"][buffer])
            self.stepper_state = state["stepper"]
        if self.applied is None:
            self.size, self.arrived = image.data.numel(), self._surroundings.now()
        # Last: whoever sees it may use the layers.
        self.applied = step


def _make_step(layer: Layer, gradients: list[torch.Tensor | None] | None) -> None:
    if layer.stepped is None or gradients is None:
        return
    for parameter, gradient in zip(layer.parameters, gradients, strict=True):
        parameter.grad = gradient
    layer.stepped.step()
    for parameter in layer.parameters:
        parameter.grad = None
