"""Rows of tokens that go from peer to peer, between the live workers that hold the same chunk.

    counts    every peer tells all others how many rows it has for each slot of each peer
    rows      one message for every pair of peers, to whoever has some for another

What every peer gives to every other is then known to all of them, so messages need no heads, and a pair
without rows has no message. The backward of a crossing goes the other way round, by the same numbers. While
rows travel, a worker may compute something else (`exchange.meanwhile`).

Where activation checkpointing computes a forward again, nothing travels: what has arrived in the first one is
kept beside the micro-batch. Peers that only serve know nothing of it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from recycle_runtime.experts.exchange import work_meanwhile
from recycle_runtime.experts.placement import Placement
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.second_forward import has_second_forward, is_second_forward
from recycle_runtime.transport.interface import PeerSum, Pending


class StartCopies(Protocol):
    """Starts copies among the holders of a chunk; None if they are done."""

    def __call__(self, sums: Sequence[PeerSum]) -> Pending | None: ...


Matrix = tuple[tuple[int, ...], ...]
"""By giver, by taker: rows."""


class _Told(NamedTuple):
    """Counts of the last crossing, for those that come back from it."""

    arriving: Tensor
    matrix: Matrix


class _Arrived(NamedTuple):
    """In a forward that the backward will compute again."""

    told: _Told
    rows: list[Tensor]
    """At the experts; and what experts have made of the rows of this worker."""


_THERE_AND_BACK = 2
"""Crossings of one call."""
Arrivals = dict[int, _Arrived]
"""By layer."""


class AmongPeers:
    """One worker's side, of one layer in one generation."""

    def __init__(self, layer: int, peer: int, start: StartCopies, placement: Placement) -> None:
        """`layer` is the number of this layer among those of its chunk that share experts."""
        self._layer, self.peer, self._start = layer, peer, start
        self.placement = placement
        self.go_on: Callable[[], None] = _go_on
        """Raises an error if the group is to be left: what has come may be what an abort has left."""
        self._told: _Told | None = None
        self.arrivals: Arrivals | None = None
        """Of the micro-batch that is computed, where its forward may be computed again."""
        self.bytes_given = 0
        """To other peers, counts left out."""

    @property
    def here(self) -> tuple[int, ...]:
        """The expert in every slot that is computed here."""
        return self.placement.peers[self.peer]

    def exchange(self, rows: Tensor, counts: Tensor, arriving: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See `exchange.Exchange`."""
        before = self._arrived_before() if is_second_forward() else None
        is_way_back = arriving is not None
        if arriving is None:
            told = self._told = _Told(*self._tell(counts)) if before is None else before.told
            arriving, matrix = told
        else:
            told, self._told = self._told, None
            assert told is not None and told.arriving is counts, "these rows have not come"
            matrix = _turned(told.matrix)
        crossing: Callable[..., Tensor] = _Crossing.apply  # pyright: ignore[reportUnknownMemberType]
        taken = crossing(self, matrix, rows, None if before is None else before.rows[is_way_back])
        if before is None and self.arrivals is not None and has_second_forward():
            self.arrivals.setdefault(self._layer, _Arrived(told, [])).rows.append(taken.detach())
        return taken, arriving

    def _arrived_before(self) -> _Arrived:
        if self.arrivals is None or self._layer not in self.arrivals:
            raise ProgramError(
                "experts that peers share are computed a second time in the backward, and what peers gave "
                "the first time was not kept",
                "torch.utils.checkpoint around a mixture, or around what lies before and after it",
            )
        arrived = self.arrivals[self._layer]
        if len(arrived.rows) > _THERE_AND_BACK:
            raise ProgramError(
                "experts that peers share are called several times in one forward, and computed a second "
                "time in the backward: which of the calls that is cannot be known",
                "call each mixture once in a forward, or without activation checkpointing around it",
            )
        return arrived

    def drop(self) -> None:
        """Let go of what a step holds."""
        self._told = None

    def _tell(self, counts: Tensor) -> tuple[Tensor, Matrix]:
        """Counts of all peers for this one, and the sums of all."""
        peers, slots = counts.shape
        table = torch.zeros(peers, 1 + peers * slots, dtype=torch.int64, device=counts.device)
        table[self.peer, 0] = self._layer
        table[self.peer, 1:] = counts.detach().reshape(-1)
        self._run([PeerSum(row, sources=(peer,)) for peer, row in enumerate(table)])
        told = table.cpu()
        self.go_on()
        layers = cast("list[int]", told[:, 0].tolist())  # pyright: ignore[reportUnknownMemberType]
        if any(layer != self._layer for layer in layers):
            raise RuntimeError(
                f"peers are in different layers of experts {layers}: each is called once in a forward, in "
                "the order in which modules are registered"
            )
        rows = told[:, 1:].reshape(peers, peers, slots).sum(2)
        matrix = tuple(map(tuple, cast("list[list[int]]", rows.tolist())))  # pyright: ignore
        return table[:, 1:].reshape(peers, peers, slots)[:, self.peer], matrix

    def move(self, rows: Tensor, matrix: Matrix) -> Tensor:
        """Rows for all peers, in their order, for rows from all peers."""
        peers = range(len(matrix))
        incoming = [matrix[giver][self.peer] for giver in peers]
        taken = rows.new_empty(sum(incoming), *rows.shape[1:])
        leaving = rows[: sum(matrix[self.peer])].split(list(matrix[self.peer]))
        places = taken.split(incoming)
        copies = list[PeerSum]()
        for giver in peers:
            for taker in peers:
                if giver == taker or not (count := matrix[giver][taker]):
                    continue
                if giver == self.peer:
                    tensor = leaving[taker].contiguous()
                    self.bytes_given += tensor.nbytes
                elif taker == self.peer:
                    tensor = places[giver]
                else:
                    tensor = rows.new_empty(count, *rows.shape[1:], device="meta")
                copies.append(PeerSum(tensor, (giver,), (taker,)))
        self._run(copies, work_meanwhile)
        places[self.peer].copy_(leaving[self.peer])
        return taken

    def _run(self, copies: Sequence[PeerSum], meanwhile: Callable[[], None] | None = None) -> None:
        pending = self._start(copies) if copies else None
        if meanwhile is not None:
            meanwhile()
        if pending is not None:
            pending.wait()


class _Crossing(torch.autograd.Function):
    """Rows there; gradients back."""

    @staticmethod
    def forward(
        ctx: Any, exchange: AmongPeers, matrix: Matrix, rows: Tensor, arrived: Tensor | None
    ) -> Tensor:
        """`arrived`: what has come before for these rows; then nothing travels."""
        ctx.exchange, ctx.matrix, ctx.size = exchange, matrix, len(rows)
        return exchange.move(rows.detach(), matrix) if arrived is None else arrived.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient = ctx.exchange.move(gradients[0].contiguous(), _turned(ctx.matrix))
        if len(gradient) < ctx.size:
            beyond = gradient.new_zeros(ctx.size - len(gradient), *gradient.shape[1:])
            gradient = torch.cat([gradient, beyond])
        return None, None, gradient, None


def _turned(matrix: Matrix) -> Matrix:
    return tuple(zip(*matrix, strict=True))


def _go_on() -> None:
    """Nobody asks to leave."""
