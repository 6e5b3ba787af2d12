"""Places of experts in the slots of workers, among the live workers that hold a chunk.

    generation begins    of each layer all take the popularity that the first of them knows who knows one;
                         placement follows from it
    step                 choices of experts are counted, and summed with the step's other sums
    step is made         every so many steps, experts are placed again by the popularity of this step

Popularity is the same on all peers, to the last count, so all of them find the same placement.
"""

import logging
from collections.abc import Callable, Sequence
from typing import cast

import torch

from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.execution.optimizer import StartPeerSums
from recycle_runtime.experts.among_peers import AmongPeers
from recycle_runtime.experts.placement import Placement, place_experts
from recycle_runtime.experts.shared import SharedExperts
from recycle_runtime.transport.interface import PeerSum

_log = logging.getLogger(__name__)


class ExpertPlaces:
    """One worker's side, for one chunk and one generation."""

    def __init__(
        self, chunk: Chunk, slots: int, every: int, me: int, peers: int, start_sums: StartPeerSums
    ) -> None:
        """`slots`: of each worker in each layer; `every`: steps between placements of experts, 0: never."""
        self._chunk, self._slots, self._every = chunk, slots, every
        self._me, self._peers, self._start = me, peers, start_sums
        self._exchanges: list[AmongPeers] = []

    @property
    def layers(self) -> list[SharedExperts]:
        return self._chunk.expert_counts.layers

    def agree(self, able: Sequence[int], go_on: Callable[[], None]) -> None:
        """All peers are here, and go on with what the first of those that work, and know it, says of the
        popularity in each layer: under another cut, layers that have travelled have taken none along."""
        if not self.layers:
            return
        told = torch.zeros(self._peers, len(self.layers), 1 + self._most, dtype=torch.float64)
        for row, layer in zip(told[self._me], self.layers, strict=True):
            if layer.popularity is not None:
                row[0] = 1
                row[1 : 1 + layer.experts] = torch.tensor(layer.popularity)
        told = told.to(self._chunk.setting.device)
        pending = self._start([PeerSum(rows, sources=(peer,)) for peer, rows in enumerate(told)])
        if pending is not None:
            pending.wait()
        told = told.cpu()
        go_on()
        known = torch.zeros_like(told[0])
        for peer in reversed(able):
            known = torch.where(told[peer, :, :1] > 0, told[peer], known)
        self._learn(known[:, 1:], go_on)
        self._chunk.expert_counts.popularity = None
        self._exchanges = []
        for number, (layer, placement) in enumerate(zip(self.layers, self._placed(), strict=True)):
            exchange = AmongPeers(number, self._me, self._start, placement)
            exchange.go_on = go_on
            layer.exchange = exchange
            self._move_in(layer)
            self._exchanges.append(exchange)

    def place_anew(self, go_on: Callable[[], None]) -> bool:
        """A step is made: experts are where its popularity wants them, if it is time for that: then True."""
        counts = self._chunk.expert_counts
        popularity, counts.popularity = counts.popularity, None
        if popularity is None or not self._every or self._chunk.applied % self._every:
            return False
        self._learn(popularity, go_on)
        for layer, exchange, placement in zip(self.layers, self._exchanges, self._placed(), strict=True):
            exchange.placement = placement
            self._move_in(layer)
        return True

    def _move_in(self, layer: SharedExperts) -> None:
        """The weights that owners send next are those of the experts that are in slots here now."""
        if layer.resident is not None:
            layer.resident = layer.exchange.here

    def _learn(self, popularity: torch.Tensor, go_on: Callable[[], None]) -> None:
        told = popularity.cpu()
        # What was read from a device may be what an abort has left there.
        go_on()
        rows = cast("list[list[float]]", told.tolist())  # pyright: ignore[reportUnknownMemberType]
        for layer, row in zip(self.layers, rows, strict=True):
            layer.popularity = tuple(map(int, row[: layer.experts]))

    def _placed(self) -> list[Placement]:
        room: Sequence[int] = [self._slots] * self._peers
        return [
            place_experts(layer.popularity if self._every and layer.popularity else [0] * layer.experts, room)
            for layer in self.layers
        ]

    @property
    def _most(self) -> int:
        return max(layer.experts for layer in self.layers)
