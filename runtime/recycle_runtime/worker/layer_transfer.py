"""Layers that travel to a worker of another stage, while both workers train.

    donor      state after step n, then the gradients of step n, n + 1, ... as each of them stands
    joiner     takes the state, then makes the same steps: the same numbers, so the same parameters

Where optimizer state is in shards, each shard travels so, from one of its owners to a worker that is to own
it, which may hold the layer already. Of the layers themselves a snapshot is enough: once all are in one
group, owners send weights to those who hold the layer.

A donor copies what it sends aside, between two steps or when its optimizer uses it, and a thread sends the
copies. A joiner builds the modules, and a thread does the rest, beside whatever chunk the process works on;
neither takes part in the other's sums. What has arrived stays up to date until the cut changes: only what the
last step adds is waited for then.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from recycle_runtime.execution.chunk import Setting
from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.optimizer import LayerOptimizer
from recycle_runtime.program.layers import build_layers
from recycle_runtime.protocol.messages.generations import Copied, LayerShards
from recycle_runtime.protocol.messages.layer_moves import LayersToMove
from recycle_runtime.protocol.surroundings import Surroundings
from recycle_runtime.state.image import Image
from recycle_runtime.state.layer_state import (
    Clones,
    LayerState,
    as_settled,
    copied_shards,
    copied_state,
    state_name,
)
from recycle_runtime.state.names import optimizer_shard_name
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


class _Piece(NamedTuple):
    """Part of a donor's state with an optimizer of its own: a layer, or a shard of its optimizer state."""

    name: str
    stepper: LayerOptimizer | None
    """None where nothing is stepped, or shards of the layer are pieces of their own."""
    weights: Sequence[torch.Tensor]
    """That it steps."""


def _pieces(chunks: HeldChunks, given: LayersToMove) -> Iterator[_Piece]:
    """All that is given and here: a shard may be owned by others by now."""
    layers = {layer.number: layer for layer in chunks.layers}
    for number in range(given.first, given.last):
        layer = layers[number]
        yield _Piece(state_name(chunks.setting, number), layer.stepped, layer.parameters)
    for number, count, shards in given.shards:
        layer, name = layers[number], state_name(chunks.setting, number)
        for shard in sorted(layer.held.intersection(shards)):
            stepper = layer.owned.get(shard)
            yield _Piece(
                optimizer_shard_name(name, shard, count), stepper, () if stepper is None else stepper.rows
            )


class LayerDonor:
    """Some layers and shards of a process, on their way to one joiner."""

    def __init__(
        self,
        chunks: HeldChunks,
        given: LayersToMove,
        surroundings: Surroundings,
        meet: Meet,
        name: str,
        meanwhile: Callable[[], None],
    ) -> None:
        """The joiner waits under this name."""
        self._chunks, self._given = chunks, given
        self._pieces = list(_pieces(chunks, given))
        self._sent: int | None = None
        """The last step whose outcome was handed to the thread."""
        self._gradients: dict[str, list[torch.Tensor | None]] = {}
        """As the optimizer of each piece has used them last."""
        self._is_over = False
        self._hooks = [
            piece.stepper.optimizer.register_step_pre_hook(self._watch(piece))
            for piece in self._pieces
            if piece.stepper is not None
        ]
        self._outgoing = Outgoing(surroundings, meet, name, meanwhile)

    def settled(self) -> None:
        """The last step of all chunks stands: what it has made of these layers is sent."""
        applied = self._chunks.applied
        if self._is_over or applied == self._sent:
            return
        if not self._owns_all:
            self.stop()
        elif self._sent is None:
            self._outgoing.put("state", self._snapshot(), {})
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

    @property
    def _owns_all(self) -> bool:
        """False once a shard is owned by others, or stepped by another optimizer."""
        given = self._given
        count = given.last - given.first + sum(len(each.held) for each in given.shards)
        here = [piece.stepper for piece in _pieces(self._chunks, given)]
        return len(here) == count and here == [piece.stepper for piece in self._pieces]

    def _snapshot(self) -> list[LayerState]:
        chunks, given = list(self._chunks.values()), self._given
        shards = {(layer, shard) for layer, _, shards in given.shards for shard in shards}
        return [
            *copied_state(chunks, Clones(), range(given.first, given.last)),
            *copied_shards(chunks, Clones(), shards),
        ]

    def _watch(self, piece: _Piece) -> Callable[..., None]:
        def before(*_: Any) -> None:
            self._gradients[piece.name] = [
                None if weight.grad is None else weight.grad.clone() for weight in piece.weights
            ]

        return before

    def _step(self) -> Iterator[LayerState]:
        """Inputs of the last step, layer by layer; a step that was left out has no gradients."""
        record, stepper = self._chunks.record, self._chunks.stepper_state
        is_left_out = record is not None and record.factor == 0.0
        with as_settled(list(self._chunks.values())):
            buffers = {
                state_name(self._chunks.setting, layer.number): {
                    name: value.clone() for name, value in layer.module.named_buffers()
                }
                for layer in self._chunks.layers
                if self._given.first <= layer.number < self._given.last
            }
        for piece in self._pieces:
            gradients = None if is_left_out else self._gradients.get(piece.name)
            made = {"gradients": gradients, "buffers": buffers.get(piece.name, {}), "stepper": stepper}
            yield LayerState(piece.name, {"step": self._chunks.applied}, *take_apart(made))


class LayerJoiner:
    """All layers and shards that a process takes for another cut, from one donor or several."""

    def __init__(
        self,
        setting: Setting,
        takes: Sequence[LayersToMove],
        surroundings: Surroundings,
        build: BuildLayers | None = None,
        here: Sequence[Layer] = (),
    ) -> None:
        """Their modules are built at once: what they are filled with is replaced. Those that are `here` may
        be in use."""
        self.layers: list[Layer] = []
        self._sources: list[_Source] = []
        known = {layer.number: layer for layer in here}
        for taken in takes:
            layers = (build or built_layers)(setting, taken.first, taken.last)
            self._sources.append(_Source(taken, layers, known, setting, surroundings))
            self.layers += layers
            known |= {layer.number: layer for layer in layers}
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
        """Error because of which a donor will not send its layers, or not go on."""
        return next((source.error for source in self._sources if source.error is not None), None)

    @property
    def stepper_state(self) -> dict[str, int]:
        """State of a stepper after the last step that was made."""
        return next((source.stepper_state for source in self._sources if source.stepper_state), {})

    def give_shards(self, layers: Sequence[Layer]) -> None:
        """To these, which have just become what this process works on."""
        there = {layer.number: layer for layer in layers}
        for source in self._sources:
            for (number, shard), stepper in source.shards.items():
                if number in there:
                    there[number].go_on_with(shard, stepper)
            source.shards.clear()

    @property
    def data(self) -> dict[str, Any] | None:
        """Position of the data when the state was copied, if a donor draws any."""
        return next((source.data for source in self._sources if source.data is not None), None)

    def copied(self) -> Copied:
        """Size and time of the transfer, once all states have arrived."""
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
    """Layers and shards that come from one donor."""

    def __init__(
        self,
        taken: LayersToMove,
        layers: list[Layer],
        known: Mapping[int, Layer],
        setting: Setting,
        surroundings: Surroundings,
    ) -> None:
        """`known` are layers that others bring, or that are here."""
        self.taken, self._layers, self._setting, self._surroundings = taken, layers, setting, surroundings
        self._known = known
        self.shards: dict[tuple[int, int], LayerOptimizer | None] = {}
        """By layer and shard: what steps them, beside the layer; None for those with nothing to step."""
        self._incoming: Incoming | None = None
        self.applied: int | None = None
        self.stepper_state: dict[str, int] = {}
        self.data: dict[str, Any] | None = None
        """Position of the donor's data, if it draws any."""
        self.size = 0
        """Bytes of the state."""
        self.arrived = 0.0

    @property
    def error(self) -> str | None:
        """Error because of which no more will come."""
        return None if self._incoming is None else self._incoming.error

    def begin(
        self, meet: Meet, name: str, meanwhile: Callable[[], None], changed: Callable[[], None]
    ) -> None:
        self._incoming = Incoming(self._setting.device, self._use, changed)
        there = [*self._layers, *(self._layer(each) for each in self.taken.shards)]
        largest = largest_of(layer.module for layer in there)
        self._incoming.begin(self._surroundings, meet, name, largest, meanwhile)

    def _use(self, image: Image) -> None:
        """The state, or what a step is made of."""
        step = int(image.about(image.names[0])["step"])
        assert self.applied is None or step == self.applied + 1, "a step is missing"
        for layer in self._layers:
            state = self._state(image, state_name(self._setting, layer.number))
            if self.applied is None:
                layer.load(state)
                self.data = self.data or state.get("data")
            else:
                _make_step(layer.stepped, layer.parameters, state["gradients"])
                for buffer, value in layer.module.named_buffers():
                    value.copy_(state["buffers"][buffer])
            self.stepper_state = state["stepper"]
        for each in self.taken.shards:
            for shard in each.held:
                self._use_shard(image, each, shard)
        if self.applied is None:
            self.size, self.arrived = image.data.numel(), self._surroundings.now()
        # Last: whoever sees it may use the layers.
        self.applied = step

    def _use_shard(self, image: Image, each: LayerShards, shard: int) -> None:
        layer, place = self._layer(each), (each.layer, shard)
        name = optimizer_shard_name(state_name(self._setting, each.layer), shard, each.shards)
        state = self._state(image, name)
        if self.applied is None:
            self.shards[place] = layer.beside(shard, state)
        elif (stepper := self.shards[place]) is not None:
            _make_step(stepper, stepper.rows, state["gradients"])

    def _layer(self, each: LayerShards) -> Layer:
        layer = self._known[each.layer]
        assert len(layer.shards) == each.shards, f"{layer.title} has {len(layer.shards)} shards"
        return layer

    def _state(self, image: Image, name: str) -> Any:
        return image.state(name, device=self._setting.device)


def _make_step(
    stepper: LayerOptimizer | None,
    weights: Sequence[torch.Tensor],
    gradients: list[torch.Tensor | None] | None,
) -> None:
    if stepper is None or gradients is None:
        return
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    stepper.step()
    for weight in weights:
        weight.grad = None
