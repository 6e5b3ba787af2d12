"""The gradients of a chunk in a few long tensors, one for each dtype and device.

    sharded over tensor-parallel ranks | the same on all of them | one flag per parameter

Reducing, clearing, scaling and measuring are then one operation each. A flag says whether the parameter has a
gradient in this step at all. Flags travel with the gradients, so peers agree on what the optimizer may touch.

Sums over peers are made in buckets, the last layers first: the sum of a bucket can begin while gradients of
the layers before it are still computed. Flags go with the last bucket. Where optimizer state is in shards, a
sum leaves each shard's gradients with its owners, and all peers have the flags. What follows is done for the
shards that are owned here.

Parameters that are tied to some of other chunks have a long tensor of their own, which is summed over the
holders of all of these chunks. Of several copies in one chunk the first takes in the gradients of the others
before the sum, and gives them the whole after it.
"""

import math
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import NamedTuple

import torch

from recycle_runtime.execution.optimizer.expert_gradients import ExpertRow, SlotGradients, StartPeerSums
from recycle_runtime.execution.optimizer.gradient_part import (
    Bucket,
    GradientPart,
    OwnedPiece,
    gradient_dtype,
    is_piece,
    whole_gradient,
)
from recycle_runtime.execution.optimizer.shards import Rows
from recycle_runtime.program.copies import has_hooks

Written = list[list[int]]
"""Numbers of gradients in each long tensor."""


class _Place(NamedTuple):
    """Place of a parameter's gradient."""

    part: GradientPart
    place: int

    @property
    def view(self) -> torch.Tensor:
        return self.part.views[self.place]

    @property
    def is_written(self) -> bool:
        return self.part.is_written(self.place)


def _parts(parameters: Iterable[torch.Tensor]) -> list[GradientPart]:
    return [GradientPart(members) for members in _by_kind(parameters)]


def _by_kind(parameters: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Those that are trained, by dtype and device."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            kinds.setdefault((gradient_dtype(parameter), parameter.device), []).append(parameter)
    return list(kinds.values())


class Tied(NamedTuple):
    """Parameters of a chunk that are one with others, in the order that all workers have."""

    copies: tuple[tuple[torch.Tensor, ...], ...] = ()
    """Of each its copies in this chunk."""
    crosses: bool = False
    """True if other chunks have copies too."""
    counts: bool = True
    """True if this chunk answers for them in the norm."""


class FlatGradients:
    """Makes the `.grad` of every trainable parameter a view into a flat buffer, and keeps it so.

    A parameter with the attribute `tensor_parallel = True` is a shard; any other is the same on all ranks.
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        tied: Tied | None = None,
        stacked: Collection[torch.Tensor] = (),
    ) -> None:
        """`stacked` are those of them that have rows of experts by slot, and are summed by expert."""
        tied = tied or Tied()
        everything = list(dict.fromkeys(parameters))
        self._frozen = [parameter for parameter in everything if not parameter.requires_grad]
        self._first_of = {copy: first for first, *more in tied.copies for copy in more}
        """Of each further copy the one that takes in its gradient."""
        firsts = [copies[0] for copies in tied.copies] if tied.crosses else []
        apart = {*firsts, *self._first_of, *stacked}
        self._own = _parts(parameter for parameter in everything if parameter not in apart)
        self._tied = _parts(firsts)
        self._copies = _parts(self._first_of)
        self._slots = [SlotGradients(members) for members in _by_kind(stacked)]
        self._tied_counts = tied.counts
        self.device = everything[0].device if everything else torch.device("cpu")
        self._kept: list[tuple[list[torch.Tensor], list[bool]]] = []
        self.is_shared_out = False
        """True if a sum over peers leaves gradients with their owners, and nobody has all of them."""
        self._number = {parameter: number for number, parameter in enumerate(everything)}
        self.buckets = self._in_turn()
        """Buckets to sum over peers, in the order in which all peers sum them."""
        self._rows: list[tuple[torch.Tensor, torch.Tensor, Rows]] = []
        """Parameters that are rows of others, and have rows of their gradients in a step."""

    def share_out(
        self,
        pieces: Sequence[OwnedPiece],
        rows: Iterable[tuple[torch.Tensor, torch.Tensor, Rows]],
        me: int,
        experts: Sequence[ExpertRow] = (),
        *,
        is_shared_out: bool = False,
    ) -> None:
        """Owners of all numbers, by pieces, and the rows that are stepped here; `me` is this peer. `experts`:
        who has rows of them; `is_shared_out`: some of these are not owned by all peers."""
        shared = {first for first in self._first_of.values()}
        # Copies of a parameter take its whole gradient.
        owned = [piece._replace(owners=()) if piece.parameter in shared else piece for piece in pieces]
        self.is_shared_out = is_shared_out or any(piece.owners for piece in owned)
        for part in self._parts:
            part.keep_whole()
        if self.is_shared_out:
            for part in self._own:
                part.share_out(owned, me)
            for part in (*self._tied, *self._copies):
                part.answered = [(0, part.values)] if me == 0 else []
        self.place_experts(experts, me)
        self.buckets = self._in_turn()
        self._rows = list(rows)
        self._kept.clear()

    def place_experts(self, rows: Sequence[ExpertRow], me: int) -> None:
        """Set the slots of experts, which keep their owners."""
        for part in self._slots:
            part.place(rows, me, is_shared_out=self.is_shared_out)

    @property
    def expert_bytes(self) -> int:
        """Of gradients of experts, those that were sent to peers."""
        return sum(part.bytes_given for part in self._slots)

    def sum_experts(self, start_sums: StartPeerSums | None) -> None:
        """Over peers: gradients by expert, for the owners of their optimizer state."""
        for part in self._slots:
            assert start_sums is not None, "nobody to sum experts with"
            part.sum_over_peers(start_sums)

    def _in_turn(self) -> list[Bucket]:
        """Last layers first: their gradients are complete first."""
        found = sorted(
            (bucket for part in self._own for bucket in part.buckets()),
            key=lambda bucket: min(map(self._number.__getitem__, bucket.parameters)),
            reverse=True,
        )
        last = {bucket.part: number for number, bucket in enumerate(found)}
        return [
            bucket.part.with_flags(bucket) if number == last[bucket.part] else bucket
            for number, bucket in enumerate(found)
        ]

    @property
    def early_groups(self) -> list[list[torch.Tensor]]:
        """Parameters of each of the first buckets that can be summed before all gradients are complete."""
        if self._slots:
            # Peers that serve others compute together until the last of them is done.
            return []
        if self._tied or self._copies or any(map(has_hooks, self.parameters)):
            # Their gradients are complete when those of others are, or when a hook has seen the sum.
            return []
        if any(is_piece(each) for each in self.parameters):
            # They are put together when all are complete.
            return []
        early = takewhile(lambda each: not each.has_flags, self.buckets)
        return [bucket.parameters for bucket in early]

    @property
    def buffers(self) -> list[torch.Tensor]:
        """Buffers to sum over peers."""
        return [part.flat for part in self._own]

    @property
    def tied_buffers(self) -> list[torch.Tensor]:
        """Buffers to sum over the holders of all tied chunks."""
        return [part.flat for part in self._tied]

    @property
    def _parts(self) -> list["GradientPart"]:
        return [*self._own, *self._slots, *self._tied, *self._copies]

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [parameter for part in self._parts for parameter in part.parameters]

    @property
    def absent(self) -> set[torch.Tensor]:
        """Parameters that had no gradient on any peer when gradients were summed last."""
        return {
            parameter
            for part in self._parts
            for parameter, is_present in zip(part.parameters, part.present, strict=True)
            if not is_present
        }

    @property
    def bytes_held(self) -> int:
        tensors = [part.flat for part in self._parts] + [copy for each, _ in self._kept for copy in each]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def zero(self) -> None:
        """No parameter has a gradient."""
        for part in self._parts:
            part.zero()

    def versions(self) -> list[list[int]]:
        """Of every gradient, for `written_since`."""
        return [part.versions() for part in self._parts]

    def written_since(self, versions: list[list[int]]) -> Written:
        """Gradients that have been written to since these versions were read."""
        return [
            [index for index, (old, new) in enumerate(zip(before, now, strict=True)) if old != new]
            for before, now in zip(versions, self.versions(), strict=True)
        ]

    def touch(self, written: Written) -> None:
        """A replayed graph has written to these."""
        for part, indices in zip(self._parts, written, strict=True):
            part.touch(indices)

    def release(self) -> None:
        """Give the memory back, and the parameters up: they have no gradients, and another may own them."""
        for parameter in self.parameters:
            parameter.grad = None
            if (whole := whole_gradient(parameter)) is not None:
                whole.drop()
        for parts in (self._own, self._slots, self._tied, self._copies, self.buckets):
            parts.clear()
        self._first_of.clear()
        self._kept.clear()

    def gather(self) -> None:
        """Before the sum over peers: take in gradients that were put elsewhere, and raise the flags."""
        if any(parameter.requires_grad for parameter in self._frozen):
            raise ValueError(
                "a parameter that was frozen when training began requires a gradient now; "
                "let it require one from the start, and keep it out of the loss until then"
            )
        for part in self._parts:
            part.repair()
        for copy, first in self._views_of_copies():
            if copy.is_written:
                first.view.add_(copy.view)
        for part in (*self._own, *self._slots, *self._tied):
            part.raise_flags(range(len(part.parameters)))

    def look(self) -> None:
        """After the sum over peers: see which parameters have a gradient on any of them."""
        for part in (*self._own, *self._slots, *self._tied):
            part.read_flags()
        for copy, first in self._views_of_copies():
            copy.view.copy_(first.view)
            copy.part.present[copy.place] = first.part.present[first.place]

    def sum_of_squares(self, tensor_parallel_rank: int = 0) -> torch.Tensor:
        """Over what this rank answers for, in float64, on the device; not finite if a gradient is not.

        In float32 and below, gradients beyond about 1e18 count as not finite.
        """
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for part in (*self._own, *self._slots, *(self._tied if self._tied_counts else ())):
            total += part.sum_of_squares(tensor_parallel_rank).to(self.device)
        return total

    def _views_of_copies(self) -> list[tuple["_Place", "_Place"]]:
        """Of each further copy its gradient, and that of the first one."""
        if not self._first_of:
            return []
        places = {
            parameter: _Place(part, index)
            for part in self._parts
            for index, parameter in enumerate(part.parameters)
        }
        return [(places[copy], places[first]) for copy, first in self._first_of.items() if copy in places]

    def _gradient_of(self, parameter: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Of some rows, as it was summed here."""
        for part in self._slots:
            if parameter in part.starts:
                return part.sum_of_rows(parameter, rows)
        assert parameter.grad is not None
        return rows.of(parameter.grad)

    def scale(self, factor: float) -> None:
        for part in self._parts:
            for values in part.own_views():
                values.mul_(factor)

    def clamp(self, limit: float) -> None:
        """No number is larger than the limit; gradients that are not finite stay so, to be seen."""
        for values in (values for part in self._parts for values in part.own_views()):
            finite = torch.isfinite(values).all()
            values.clamp_(-limit, limit)
            values[:1].masked_fill_(~finite, math.nan)

    def keep(self) -> None:
        """Copy the gradients of this step aside; from then on that costs as much memory as they do."""
        if not self._kept:
            self._kept = [(list(map(torch.empty_like, part.own_views())), []) for part in self._parts]
        for part, (copies, present) in zip(self._parts, self._kept, strict=True):
            for copy, values in zip(copies, part.own_views(), strict=True):
                copy.copy_(values)
            present[:] = part.present

    def bring_back(self) -> None:
        """Put what `keep` has copied in the place of what has been accumulated since."""
        for part, (copies, present) in zip(self._parts, self._kept, strict=True):
            for copy, values in zip(copies, part.own_views(), strict=True):
                values.copy_(copy)
            part.present = list(present)

    @contextmanager
    def shown(self, nothing: bool = False) -> Generator[None]:
        """Inside, a parameter without gradient has None, as torch's optimizers expect."""
        for part in self._parts:
            part.hide(nothing)
        for rows, parameter, which in self._rows:
            rows.grad = None if parameter.grad is None else self._gradient_of(parameter, which)
        try:
            yield
        finally:
            for rows, _, _ in self._rows:
                rows.grad = None
            for part in self._parts:
                part.attach()
