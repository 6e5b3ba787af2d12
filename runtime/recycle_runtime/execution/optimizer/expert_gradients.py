"""Gradients of experts: of slots as backwards leave them, and of rows whose optimizer state is here.

    slots here      weight [slots, ...]      every worker has those of the experts that it computes
    rows owned      weight [experts, ...]    of those whose shards it owns: sums over all slots

Between the two a row goes to one of its owners from every peer that has the expert in a slot, and as a sum
from there to the other owners.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from recycle_runtime.execution.optimizer.gradient_part import GradientPart, sum_of_squares
from recycle_runtime.execution.optimizer.shards import Rows
from recycle_runtime.transport.interface import PeerSum, Pending
from recycle_runtime.transport.routes import Route, routed


class StartPeerSums(Protocol):
    """Starts sums among the holders of a chunk; None if they are done."""

    def __call__(
        self, sums: Sequence[PeerSum], *, goes_on: bool = False, after: Any = None
    ) -> Pending | None: ...


class ExpertRow(NamedTuple):
    """One expert of a stacked parameter, and which peers have what of it."""

    parameter: torch.Tensor
    """With a row for every slot."""
    expert: int
    owners: tuple[int, ...]
    """Of its optimizer state; the first answers for it."""
    holders: tuple[int, ...]
    """Peers that have it in a slot."""
    slots: tuple[int, ...]
    """Of this peer, those that have it."""

    @property
    def adder(self) -> int:
        """The owner that adds up its gradients: one that has some itself, where there is one."""
        return next((owner for owner in self.owners if owner in self.holders), self.owners[0])

    @property
    def size(self) -> int:
        return self.parameter.numel() // len(self.parameter)


class SlotGradients(GradientPart):
    """Those of stacked parameters of experts, of one dtype on one device."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        super().__init__(parameters)
        self._rows: list[ExpertRow] = []
        self._me = 0
        self._summed = torch.zeros(0, dtype=self.flat.dtype, device=self.flat.device)
        """Of rows that are owned here."""
        self._places: dict[tuple[torch.Tensor, int], int] = {}
        """Start of the gradient of each expert."""
        self._answers: list[ExpertRow] = []
        """Rows that this worker answers for in the norm."""
        self.bytes_given = 0
        """To other peers, flags left out."""

    def own_views(self) -> list[torch.Tensor]:
        return [self._summed]

    def place(self, rows: Sequence[ExpertRow], me: int, *, is_shared_out: bool) -> None:
        """Set the owners of experts' rows. Without `is_shared_out` the first peer answers for all."""
        self._rows = [row for row in rows if row.parameter in self.starts]
        self._me = me
        owned = [row for row in self._rows if me in row.owners]
        self._answers = [row for row in owned if row.owners[0] == me or not is_shared_out]
        places: dict[tuple[torch.Tensor, int], int] = {}
        size = 0
        for row in owned:
            places[row.parameter, row.expert] = size
            size += row.size
        if places != self._places:
            self._places, self._summed = places, self.flat.new_zeros(size)

    def sum_of_rows(self, parameter: torch.Tensor, rows: Rows) -> torch.Tensor:
        """The gradient of some rows that are owned here."""
        size = parameter.numel() // len(parameter) * (rows.last - rows.first)
        start = self._places[parameter, rows.first]
        return self._summed[start : start + size].view(rows.last - rows.first, *parameter.shape[1:])

    def sum_of_squares(self, tensor_parallel_rank: int) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64, device=self.flat.device)
        for row in self._answers:
            if tensor_parallel_rank == 0 or getattr(row.parameter, "tensor_parallel", False):
                total += sum_of_squares(self._sum(row))
        return total

    def sum_over_peers(self, start: StartPeerSums) -> None:
        """Gradients of all slots, for the owners of their experts; flags, for all."""
        for row in self._rows:
            for slot in row.slots[1:]:
                self._slot(row, row.slots[0]).add_(self._slot(row, slot))
        parts = [(row, source) for row in self._rows for source in row.holders if source != row.adder]
        arrived = self._send(
            start,
            [
                Route(source, row.adder, row.size, self._mine(row) if source == self._me else None)
                for row, source in parts
            ],
        )
        for row in self._rows:
            if row.adder == self._me:
                self._sum(row).zero_()
        # In order of peers, whichever of them adds up.
        others = {(row[:2], source): arrived.get(place) for place, (row, source) in enumerate(parts)}
        for row in self._rows:
            if row.adder != self._me:
                continue
            for source in row.holders:
                part = self._mine(row) if source == self._me else others[row[:2], source]
                assert part is not None
                self._sum(row).add_(part.view(-1))
        sums = [(row, owner) for row in self._rows for owner in row.owners if owner != row.adder]
        arrived = self._send(
            start,
            [
                Route(row.adder, owner, row.size, self._sum(row) if row.adder == self._me else None)
                for row, owner in sums
            ],
            [PeerSum(self.flat[self.values :])],
        )
        for place, values in arrived.items():
            self._sum(sums[place][0]).copy_(values)

    def _send(
        self, start: StartPeerSums, routes: Sequence[Route], more: Sequence[PeerSum] = ()
    ) -> dict[int, torch.Tensor]:
        """Pieces that come here, by the place of their route."""
        messages = routed(routes, self._me, self.flat.dtype, self.flat.device)
        self.bytes_given += messages.given
        if (copies := [*messages.copies, *more]) and (pending := start(copies, goes_on=True)) is not None:
            pending.wait()
        return messages.taken

    def _sum(self, row: ExpertRow) -> torch.Tensor:
        place = self._places[row.parameter, row.expert]
        return self._summed[place : place + row.size]

    def _mine(self, row: ExpertRow) -> torch.Tensor:
        return self._slot(row, row.slots[0])

    def _slot(self, row: ExpertRow, slot: int) -> torch.Tensor:
        start = self.starts[row.parameter] + slot * row.size
        return self.flat[start : start + row.size]
