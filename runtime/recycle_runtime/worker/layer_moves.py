"""Layers that a worker process gives and takes for another cut, from the order to do so to the switch."""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from recycle_runtime.execution.chunk import Chunk, chunks_of, convert
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.program.layers import layers_of
from recycle_runtime.protocol.messages.layer_moves import (
    DropLayers,
    LayersArrived,
    LayersLost,
    LayersToMove,
    MoveLayers,
)
from recycle_runtime.worker.engine import GroupResources
from recycle_runtime.worker.generation import Equipment
from recycle_runtime.worker.held_chunks import HeldChunks
from recycle_runtime.worker.layer_transfer import LayerDonor, LayerJoiner
from recycle_runtime.worker.state_transfer import StatePair

_LONGEST = 500
"""Characters of an error that are sent; the rest is cut off."""

_log = logging.getLogger(__name__)


class LayerTransfers:
    """Donors end with the generation that they began in; what has been taken stays until it is used or not
    wanted any more."""

    def __init__(self, equipment: Equipment) -> None:
        self._equipment = equipment
        self._donors: list[LayerDonor] = []
        self._joiner: LayerJoiner | None = None
        self._generation = self._move = 0
        self._has_arrived = False
        self._lock = threading.Lock()

    @property
    def applied(self) -> int | None:
        """Steps that the layers have seen that were taken; None if none were, or not all are there."""
        return None if self._joiner is None else self._joiner.applied

    def obey(
        self,
        order: MoveLayers | DropLayers,
        worker: Worker,
        chunks: HeldChunks,
        connections: GroupResources,
    ) -> None:
        """Begin or end, between two steps; what is opened for it belongs to these connections."""
        self.drop()
        if isinstance(order, DropLayers):
            return
        self._generation, self._move = order.generation, order.move
        connections.opens_more()
        for given in order.gives:
            name = self._name(order, worker, given.worker, given)
            donor = LayerDonor(
                chunks, given, self._equipment.surroundings, self._meet, name, self._hook("give")
            )
            self._donors.append(donor)
            _log.info("gives %s to %s", _words(given), worker_text(given.worker))
        if order.takes:
            joiner = self._joiner = LayerJoiner(
                chunks.setting,
                order.takes,
                self._equipment.surroundings,
                self._equipment.engine.layers,
                chunks.layers,
            )
            joiner.begin(
                self._meet,
                lambda taken: self._name(order, taken.worker, worker, taken),
                self._hook("take"),
                partial(self._tell, joiner),
            )
            _log.info("takes %s", ", ".join(map(_words, order.takes)))

    def settled(self) -> None:
        """The last step of all chunks stands."""
        for donor in self._donors:
            donor.settled()

    async def wait(self, step: int, goes_on: Callable[[], bool]) -> bool:
        """At a boundary: until layers that have arrived are as new as everything else."""
        joiner = self._joiner
        if joiner is None or not self._has_arrived:
            return joiner is None
        with self._equipment.heartbeat.waiting():
            return await joiner.wait(step, goes_on)

    def stop(self) -> None:
        """The group is left: nothing more is given, and nothing arrives."""
        for donor in self._donors:
            donor.stop()
        self._donors.clear()

    def drop(self) -> None:
        """Drop layers that were received: they are not wanted, or have been used."""
        self.stop()
        with self._lock:
            self._joiner, self._has_arrived = None, False

    def kept(self, chunks: HeldChunks, step: int) -> None:
        """This process holds the same layers as before: of what was taken only shards are of use."""
        if self._joiner is not None and self._joiner.applied == step == chunks.applied:
            self._joiner.give_shards(chunks.layers)
        self.drop()

    def converted(self, chunks: HeldChunks, bundle: Bundle, stage: int, step: int) -> HeldChunks:
        """The chunks of a stage under the cut of a bundle, made of what is here; all of it stands at `step`.

        LayersMissingError if that is not enough.
        """
        joiner = None if self._joiner is None or self._joiner.applied != step else self._joiner
        if chunks.is_fresh and joiner is not None:
            made = _begun(chunks, bundle, stage, joiner)
        else:
            made = convert(chunks.values(), bundle, stage, [] if joiner is None else joiner.layers)
        held = HeldChunks(made)
        if joiner is not None:
            joiner.give_shards(held.layers)
        self.drop()
        return held

    def _tell(self, joiner: LayerJoiner) -> None:
        """By a thread that takes layers: once when all are there, and if they will not come."""
        with self._lock:
            if joiner is not self._joiner or self._has_arrived:
                return
            equipment, least = self._equipment, joiner.least_applied
            if joiner.error is not None:
                self._has_arrived = True
                equipment.link.say(LayersLost(self._generation, self._move, joiner.error[:_LONGEST]))
            elif least is not None and least >= equipment.link.step - 1:
                self._has_arrived = True
                equipment.link.say(LayersArrived(self._generation, self._move, joiner.copied()))

    async def _meet(self, name: str, rank: int) -> StatePair:
        # A connection of its own: a wait at the store blocks other requests on its connection.
        return await self._equipment.engine.pair(await self._equipment.engine.meeting_place(), name, rank)

    def _name(self, order: MoveLayers, donor: Worker, joiner: Worker, layers: LayersToMove) -> str:
        """Name in the store where the two ends meet; entries of another move have another name."""
        ends = f"{worker_text(donor)}/{worker_text(joiner)}"
        return f"g{order.generation}/layers/{order.move}/{ends}/{layers.first}/{self._equipment.tp_rank}"

    def _hook(self, moment: Any) -> Callable[[], None]:
        return lambda: self._equipment.hooks.at(moment, self._equipment.link.step)


def _words(moved: LayersToMove) -> str:
    shards = sum(len(each.held) for each in moved.shards)
    layers = f"layers {moved.first} to {moved.last - 1}" if moved.first < moved.last else ""
    return " and ".join(filter(None, (layers, f"{shards} shards" if shards else "")))


def _begun(fresh: HeldChunks, bundle: Bundle, stage: int, joiner: LayerJoiner) -> dict[int, Chunk]:
    """The chunks of a process that held nothing of use before."""
    layers = {layer.number: layer for layer in joiner.layers}
    ranges = layers_of(bundle.cut)
    made: dict[int, Chunk] = {}
    for number in chunks_of(bundle, stage):
        here = [layers[layer] for layer in ranges[number]]
        made[number] = chunk = fresh.kind(fresh.setting, bundle, number, here, fresh.data)
        chunk.stepper.load_state_dict(joiner.stepper_state)
        chunk.take_data_position(joiner.data if chunk.is_first or chunk.is_last else None)
        chunk.is_fresh = False
    return made
