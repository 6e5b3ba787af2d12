"""Experts of one layer that peers share: rows of tokens go to their experts, and come back.

    tokens, choices of the router
        rows by (peer, slot)   ->  exchange  ->  rows by slot  ->  experts  ->  exchange  ->  sum by weights

Parameters are stacked over experts: `[experts, ...]` for each parameter of one expert. Alone, a process has
all of them. A worker that shares them has the rows of its slots, and says so in `resident`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from recycle_runtime.experts.exchange import Exchange, everything_here
from recycle_runtime.experts.grouped import ExpertRows
from recycle_runtime.experts.placement import Placement
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.second_forward import is_second_forward

_MOST_TABLES = 16
"""That are kept of one placement: one for every size of a micro-batch."""


class Counted(NamedTuple):
    """Tokens of a layer since they were last asked for, on its device."""

    popularity: Tensor
    """Choices of every expert, those that were dropped included."""
    dropped: Tensor
    """Choices for which there was no room."""


class SharedExperts(nn.Module):
    """Base of what computes experts: subclasses say how rows of several experts are computed here."""

    def __init__(self, experts: int, width: int, capacity: float | None = None) -> None:
        """`capacity`: room for tokens, by what experts would get if all were asked for equally often; None:
        there is always room."""
        super().__init__()
        if capacity is not None and not capacity > 0:
            raise ProgramError(
                f"capacity must be above 0, got {capacity:g}: every token would be dropped",
                "1.25 is a quarter more room than tokens need that are spread evenly; None drops none",
            )
        self.experts, self.width, self.capacity = experts, width, capacity
        self.exchange: Exchange = everything_here(experts)
        """Peers that share the experts."""
        self.resident: tuple[int, ...] | None = None
        """Experts whose rows parameters have here, in this order; None: all, in order of their numbers."""
        self.router_sum: Tensor | None = None
        """Sum of the weights that the router gave in the last forward: not finite if one of them was not."""
        self._counted: Counted | None = None
        self.popularity: tuple[int, ...] | None = None
        """Choices of every expert by all peers, in the last step that they have added up."""
        self._tables = _Tables()

    def compute(self, rows: Tensor, groups: ExpertRows) -> Tensor:
        """Results of the experts for rows that are sorted by slot; anything for rows beyond all groups."""
        raise NotImplementedError

    def forward(self, tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Of every token [tokens, width] the sum of what its experts [tokens, k] make of it, by their
        weights."""
        if isinstance(tokens, FakeTensor):
            # Only what it looks like is asked for.
            return tokens * weights.sum(1, keepdim=True).to(tokens.dtype)
        active = chosen.shape[1]
        plan = self._plan(chosen)
        self.router_sum = weights.detach().sum(dtype=torch.float32)
        rows = _Taken.apply(tokens.to(self._wire_type()), plan.order, plan.back, active)
        rows = _only(rows, plan.is_sent)
        if not rows.requires_grad and torch.is_grad_enabled():
            # Peers call the backward of an exchange together, whoever of them needs it.
            rows = rows.requires_grad_()
        made = self._through_peers(rows, plan.counts)
        if len(made) < len(plan.order):
            made = torch.cat([made, made.new_zeros(len(plan.order) - len(made), *made.shape[1:])])
        made = _Permuted.apply(_only(made, plan.is_sent), plan.back, plan.order)
        each = made.view(*chosen.shape, -1) * weights.unsqueeze(-1).to(made.dtype)
        return each.sum(1).to(tokens.dtype)

    def serve(self) -> Tensor:
        """Take part with no tokens; the result has no rows, and a backward from it takes part in that of
        others."""
        parameter = next(self.parameters())
        rows = torch.zeros(0, self.width, dtype=self._wire_type(), device=parameter.device)
        if torch.is_grad_enabled():
            rows.requires_grad_()
        peers = self.exchange.placement.peers
        counts = torch.zeros(len(peers), len(peers[0]), dtype=torch.int64, device=parameter.device)
        return self._through_peers(rows, counts)

    def take_counts(self) -> Counted | None:
        """Tokens of forwards while training since the last call; None if there were no such forwards."""
        counted, self._counted = self._counted, None
        return counted

    def _through_peers(self, rows: Tensor, counts: Tensor) -> Tensor:
        """To the experts and back; rows by (peer, slot)."""
        there, arriving = self.exchange.exchange(rows, counts)
        peers, slots = arriving.shape
        if peers == 1:
            made = self._made(there, arriving[0])
        else:
            parts = torch.arange(slots, device=rows.device).repeat(peers)
            slot_of_row = parts.repeat_interleave(arriving.reshape(-1), output_size=len(there))
            order = slot_of_row.argsort(stable=True)
            back = _inverse(order)
            made = self._made(_Permuted.apply(there, order, back), arriving.sum(0))
            made = _Permuted.apply(made, back, order)
        if made.shape[1:] != there.shape[1:]:
            raise ProgramError(
                f"experts take rows of width {self.width}, and give rows of shape {tuple(made.shape[1:])}",
                "what an expert gives is as wide as what it takes",
            )
        return self.exchange.exchange(made.to(rows.dtype), arriving, counts)[0]

    def _made(self, rows: Tensor, counts: Tensor) -> Tensor:
        here = self.exchange.here
        resident = tuple(range(self.experts)) if self.resident is None else self.resident
        chosen = None
        if here != resident:
            places = {expert: row for row, expert in enumerate(resident)}
            chosen = torch.tensor([places[expert] for expert in here], device=rows.device)
        return self.compute(rows, ExpertRows(counts, chosen))

    def _wire_type(self) -> torch.dtype:
        """The precision of rows between peers: known to those too that have none."""
        parameter = next(self.parameters())
        device = parameter.device.type
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else parameter.dtype

    @torch.no_grad()
    def _plan(self, chosen: Tensor) -> "_Plan":
        """Place of every choice; computed on the device, without its host."""
        placement, peer = self.exchange.placement, self.exchange.peer
        slots, choices = self._near_slots(chosen.device)
        flat = chosen.reshape(-1)
        by_expert = flat.argsort(stable=True)
        popularity = _counts(flat, self.experts)
        starts = popularity.cumsum(0) - popularity
        place = torch.empty_like(flat)
        place[by_expert] = torch.arange(len(flat), device=flat.device)
        place -= starts[flat]
        slot = slots[flat, (place + peer) % choices[flat]]
        total = len(placement.slots)
        is_kept = None
        if self.capacity is not None and len(flat):
            is_kept = place < self._room(len(flat), chosen.device)[flat]
            slot = torch.where(is_kept, slot, total)
        order = slot.argsort(stable=True)
        counts = _counts(slot, total + 1)[:total].view(len(placement.peers), -1)
        dropped = counts.new_zeros(()) if is_kept is None else len(flat) - is_kept.sum()
        if self.training and not is_second_forward():
            self._count(popularity, dropped)
        return _Plan(order, _inverse(order), counts, None if is_kept is None else is_kept[order])

    def _count(self, popularity: Tensor, dropped: Tensor) -> None:
        if self._counted is not None:
            popularity, dropped = self._counted.popularity + popularity, self._counted.dropped + dropped
        self._counted = Counted(popularity, dropped)

    def _room(self, choices: int, device: torch.device) -> Tensor:
        """Choices of every expert for which there is room; in order of tokens, the first ones get it."""
        assert self.capacity is not None
        placement = self.exchange.placement
        slots = len(placement.slots)
        room = [int(self.capacity * choices * each / slots) for each in placement.replicas]
        if not any(room):
            raise ProgramError(
                f"capacity {self.capacity:g} drops every token: {choices} choices of experts in {slots} "
                "slots leave room for none",
                "a higher capacity, more tokens in a micro-batch, or None, which drops none",
            )
        return self._tables.of(
            placement, ("room", choices, device), lambda: torch.tensor(room, device=device)
        )

    def _near_slots(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Slots that each expert's tokens of this peer go to by turns, and how many: its own ones, or all."""
        placement, peer = self.exchange.placement, self.exchange.peer

        def made() -> tuple[Tensor, Tensor]:
            first = placement.first_slot(peer)
            own = range(first, first + len(placement.peers[peer]))
            slots: list[list[int]] = [[] for _ in range(self.experts)]
            for slot, expert in enumerate(placement.slots):
                slots[expert].append(slot)
            near = [[slot for slot in each if slot in own] or each for each in slots]
            most = max(map(len, near))
            rows = [[each[turn % len(each)] for turn in range(most)] for each in near]
            return torch.tensor(rows, device=device), torch.tensor(
                [len(each) for each in near], device=device
            )

        return self._tables.of(placement, ("slots", peer, device), made)


class _Plan(NamedTuple):
    """Places of the router's choices; a choice is one expert of one token."""

    order: Tensor
    """Choices sorted by slot, dropped ones last."""
    back: Tensor
    """The place of every choice in that order."""
    counts: Tensor
    """By peer, by slot."""
    is_sent: Tensor | None
    """Of every choice in that order; None if nothing is dropped."""


class _Tables:
    """Tensors that follow from a placement: copied to the device once."""

    def __init__(self) -> None:
        self._placement: Placement | None = None
        self._made: dict[Any, Any] = {}

    def of(self, placement: Placement, key: Any, make: Callable[[], Any]) -> Any:
        if self._placement is not placement or len(self._made) > _MOST_TABLES:
            self._placement, self._made = placement, {}
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


class _Permuted(torch.autograd.Function):
    """Rows in another order; gradients come back by a gather too, so their sum has one order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (back,) = ctx.saved_tensors
        return gradients[0].index_select(0, back), None, None


class _Taken(torch.autograd.Function):
    """Of every choice the row of its token, choices in this order."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Tensor, back: Tensor, active: int) -> Tensor:
        ctx.save_for_backward(back)
        ctx.active = active
        return tokens.index_select(0, order // active)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (back,) = ctx.saved_tensors
        by_choice = gradients[0].index_select(0, back)
        return by_choice.view(-1, ctx.active, by_choice.shape[-1]).sum(1), None, None, None


def _only(rows: Tensor, is_sent: Tensor | None) -> Tensor:
    """Zeros in place of rows that are dropped, which may be anything."""
    return rows if is_sent is None else torch.where(is_sent.unsqueeze(1), rows, 0)


def _inverse(order: Tensor) -> Tensor:
    made = torch.empty_like(order)
    made[order] = torch.arange(len(order), device=order.device)
    return made


def _counts(numbers: Tensor, most: int) -> Tensor:
    """Occurrences of each number below `most`; unlike `bincount`, without waiting for the device."""
    return numbers.new_zeros(most).scatter_add_(0, numbers, torch.ones_like(numbers))


def most_experts(module: nn.Module) -> int:
    """In the mixture of a module that has most of them; 0: in none."""
    return max((each.experts for each in module.modules() if isinstance(each, SharedExperts)), default=0)
