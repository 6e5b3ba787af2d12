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
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import NamedTuple, cast

import torch

from recycle_runtime.execution.device_copies import Readback
from recycle_runtime.execution.local_tensors import WholeGradient
from recycle_runtime.execution.optimizer.shards import Rows
from recycle_runtime.program.copies import has_hooks
from recycle_runtime.transport.interface import PeerSum

BUCKET_BYTES = 25 << 20
"""Gradients of as many parameters as it takes are summed over peers together."""
_ALIGNMENT = 128
"""Bytes; what a vector instruction or a memory transaction of a device likes."""
_ROW = 1024
"""Elements added up in float32 before float64 takes over."""


class GradientPart:
    """The gradients of one dtype on one device, as views into one long tensor.

    Sharded parameters first, then those that are the same on all tensor-parallel ranks, then flags.
    """

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.parameters = sorted(parameters, key=lambda parameter: not _is_shard(parameter))
        first = self.parameters[0]
        spacing = max(1, _ALIGNMENT // gradient_dtype(first).itemsize)
        starts: list[int] = []
        self.owned: list[tuple[int, int]] = []
        """Ranges of the long tensor that are summed here after a sum over peers."""
        self.answered: list[tuple[int, int]] = []
        """Those of them that are in this worker's part of the norm."""
        self.sharded = self.values = 0
        for parameter in self.parameters:
            starts.append(self.values)
            self.values += -(-parameter.numel() // spacing) * spacing
            if _is_shard(parameter):
                self.sharded = self.values
        self.starts = dict(zip(self.parameters, starts, strict=True))
        """Where the gradient of each begins."""
        size = self.values + len(self.parameters)
        self._ranges: list[tuple[int, int, tuple[int, ...]]] = []
        """From where to where numbers belong to the same owners."""
        self.keep_whole()
        self.flat = torch.zeros(size, dtype=gradient_dtype(first), device=first.device)
        self._flags = self.flat[self.values :]
        # `.data` gives each view a version counter of its own: it moves when this gradient is written to.
        self.views = [
            _view(self.flat, start, parameter).data
            for start, parameter in zip(starts, self.parameters, strict=True)
        ]
        self._clean = [_version(view) for view in self.views]
        self.present = [False] * len(self.parameters)
        """Which parameters have a gradient on some peer, once the flags are read."""
        self._flagged: set[int] = set()
        """Whose flags are raised, if they have a gradient."""
        self._must_read = False
        self._readback = Readback()
        self._replayed: set[int] = set()
        """Which were written by replayed graphs: these move no counter."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
        self.attach()

    def zero(self) -> None:
        self.flat.zero_()
        self._replayed.clear()
        self._flagged.clear()
        self._clean = self.versions()
        self.attach()

    def versions(self) -> list[int]:
        """Of every gradient: it moves when that is written to."""
        return [_version(view) for view in self.views]

    def touch(self, indices: Iterable[int]) -> None:
        """A replayed graph has written to these."""
        self._replayed.update(indices)

    def attach(self) -> None:
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is not view:
                parameter.grad = view
            if (whole := _whole_gradient(parameter)) is not None:
                whole.show(view)

    def hide(self, everything: bool) -> None:
        """Take away the gradients of parameters that have none in this step."""
        for parameter, is_present in zip(self.parameters, self.present, strict=True):
            if everything or not is_present:
                parameter.grad = None

    def repair(self) -> None:
        """Take over gradients that were replaced: their value counts."""
        for index, (parameter, view) in enumerate(zip(self.parameters, self.views, strict=True)):
            if (whole := _whole_gradient(parameter)) is not None:
                parameter.grad = whole.take()
            gradient = parameter.grad
            if gradient is view:
                continue
            if gradient is None:
                view.zero_()
                self._clean[index] = _version(view)
            else:
                view.copy_(gradient.to_dense() if gradient.is_sparse else gradient.detach())
            parameter.grad = view

    def raise_flags(self, places: Iterable[int]) -> None:
        """Of gradients that are complete, and not summed yet: once in a step."""
        if not self._flagged:
            self._flags.fill_(1)
            self._must_read = False
        for index in places:
            if index in self._flagged:
                continue
            self._flagged.add(index)
            if _version(self.views[index]) == self._clean[index] and index not in self._replayed:
                self._flags[index] = self.views[index].ne(0).any()
                self._must_read = True

    def is_written(self, index: int) -> bool:
        """Whether a parameter has a gradient here."""
        view = self.views[index]
        is_known = _version(view) != self._clean[index] or index in self._replayed
        return is_known or bool(view.ne(0).any())

    def read_flags(self) -> None:
        """Reading means waiting for the device, so it is done only where the answer is open."""
        self._flagged.clear()
        if not self._must_read:
            self.present = [True] * len(self.views)
            return
        self._readback.take(self._flags)
        self.present = [flag != 0 for flag in self._readback.read()]

    def sum_of_squares(self, tensor_parallel_rank: int) -> torch.Tensor:
        """Of what this worker answers for."""
        limit = self.values if tensor_parallel_rank == 0 else self.sharded
        total = torch.zeros((), dtype=torch.float64, device=self.flat.device)
        for start, stop in self.answered:
            total += _sum_of_squares(self.flat[start : max(start, min(stop, limit))])
        return total

    def own_views(self) -> list[torch.Tensor]:
        return [self.flat[start:stop] for start, stop in self.owned]

    def keep_whole(self) -> None:
        """Every peer owns all numbers from now on."""
        self._ranges = [(0, self.values + len(self.parameters), ())]
        self.owned = self.answered = [(0, self.values)]

    def share_out(self, pieces: Iterable["OwnedPiece"], me: int) -> None:
        """Who owns which numbers from now on."""
        found = [
            (self.starts[piece.parameter] + piece.start, piece.owners)
            for piece in pieces
            if piece.parameter in self.starts
        ]
        # What lies between the numbers of two parameters goes with those before; all peers want the flags.
        ordered = [*sorted(found), (self.values, ())]
        merged = [
            each
            for each, before in zip(ordered, [None, *ordered], strict=False)
            if before is None or each[1] != before[1]
        ]
        ends = [*(start for start, _ in merged[1:]), self.flat.numel()]
        self._ranges = [(start, end, owners) for (start, owners), end in zip(merged, ends, strict=True)]
        self.owned = [
            (start, min(end, self.values))
            for start, end, owners in self._ranges
            if start < self.values and (not owners or me in owners)
        ]
        self.answered = [
            (start, min(end, self.values))
            for start, end, owners in self._ranges
            if start < self.values and (owners[0] if owners else 0) == me
        ]

    def buckets(self) -> list["Bucket"]:
        """Sums over peers, by parameters that lie next to each other; those of the last parameters first."""
        found: list[Bucket] = []
        last = len(self.parameters)
        for place in reversed(range(len(self.parameters))):
            first = self.starts[self.parameters[place]]
            end = self.values if last == len(self.parameters) else self.starts[self.parameters[last]]
            if place and (end - first) * self.flat.element_size() < BUCKET_BYTES:
                continue
            found.append(Bucket(self, range(place, last), self._sums(first, end), has_flags=False))
            last = place
        return found

    def with_flags(self, bucket: "Bucket") -> "Bucket":
        """The same, and the sum of the flags."""
        end = self.starts[self.parameters[bucket.places.stop]] if self._is_inner(bucket) else self.values
        first = self.starts[self.parameters[bucket.places.start]]
        sums = self._sums(first, end) + self._sums(self.values, self.flat.numel())
        if end == self.values:
            sums = self._sums(first, self.flat.numel())
        return bucket._replace(sums=sums, has_flags=True)

    def _is_inner(self, bucket: "Bucket") -> bool:
        return bucket.places.stop < len(self.parameters)

    def _sums(self, first: int, last: int) -> list[PeerSum]:
        """Of numbers from one to another, by their owners."""
        return [
            PeerSum(self.flat[max(start, first) : min(end, last)], takers=owners)
            for start, end, owners in self._ranges
            if start < last and end > first
        ]


class Bucket(NamedTuple):
    """Gradients that are summed over peers together."""

    part: GradientPart
    places: range
    """Numbers of their parameters in it."""
    sums: list[PeerSum]
    has_flags: bool
    """True if flags are summed with them: then all gradients of the step must be complete."""

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [self.part.parameters[place] for place in self.places]

    def raise_flags(self) -> None:
        """Before the sum: see which parameters have a gradient here."""
        self.part.raise_flags(self.places)

    @property
    def is_in_place(self) -> bool:
        """False if a gradient was replaced: its value is taken in before it can be summed."""
        return all(self.part.parameters[place].grad is self.part.views[place] for place in self.places)


class OwnedPiece(NamedTuple):
    """Numbers of a parameter from one on, up to the next piece, and who owns their optimizer state."""

    parameter: torch.Tensor
    start: int
    owners: tuple[int, ...]
    """Numbers of peers; the first answers for them in the norm. None is named where all own them."""


Written = list[list[int]]
"""Numbers of gradients in each long tensor."""


class _Place(NamedTuple):
    """Where the gradient of a parameter is."""

    part: GradientPart
    place: int

    @property
    def view(self) -> torch.Tensor:
        return self.part.views[self.place]

    @property
    def is_written(self) -> bool:
        return self.part.is_written(self.place)


def _parts(parameters: Iterable[torch.Tensor]) -> list[GradientPart]:
    """Those that are trained, by dtype and device."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            kinds.setdefault((gradient_dtype(parameter), parameter.device), []).append(parameter)
    return [GradientPart(members) for members in kinds.values()]


def gradient_dtype(parameter: torch.Tensor) -> torch.dtype:
    """Of its gradient, which may be more precise than it is; torch before 2.10 knows no such thing."""
    dtype: torch.dtype | None = getattr(parameter, "grad_dtype", None)
    return parameter.dtype if dtype is None else dtype


def _whole_gradient(parameter: torch.Tensor) -> WholeGradient | None:
    """Of the DTensor that a parameter is a part of."""
    return getattr(parameter, "whole_gradient", None)


def _is_shard(parameter: torch.Tensor) -> bool:
    return bool(getattr(parameter, "tensor_parallel", False))


def _version(tensor: torch.Tensor) -> int:
    return tensor._version  # pyright: ignore[reportPrivateUsage]


def _view(flat: torch.Tensor, start: int, parameter: torch.Tensor) -> torch.Tensor:
    """Laid out as the parameter is, which optimizers reward."""
    layout = torch.empty_like(parameter, device="meta").stride()
    return flat.as_strided(parameter.shape, layout, start)


def _sum_of_squares(values: torch.Tensor) -> torch.Tensor:
    """In two levels: as fast as one, and good to nine digits where a long float32 sum has lost one in a
    hundred."""
    whole = values.numel() // _ROW * _ROW
    rows = _norms(values[:whole].view(whole // _ROW, _ROW)).to(torch.float64)
    rest = values[whole:].abs().to(torch.float64)
    return rows.square().sum() + rest.square().sum()


def _norms(rows: torch.Tensor) -> torch.Tensor:
    dtype = torch.float32 if rows.dtype in (torch.float16, torch.bfloat16) else None
    return cast(
        "torch.Tensor",
        torch.linalg.vector_norm(rows, dim=1, dtype=dtype),  # pyright: ignore[reportUnknownMemberType]
    )


class Tied(NamedTuple):
    """Parameters of a chunk that are one with others, in the order that all workers have."""

    copies: tuple[tuple[torch.Tensor, ...], ...] = ()
    """Of each its copies in this chunk."""
    crosses: bool = False
    """Whether other chunks have copies too."""
    counts: bool = True
    """Whether this chunk answers for them in the norm."""


class FlatGradients:
    """Makes the `.grad` of every trainable parameter a view into a flat buffer, and keeps it so.

    A parameter with the attribute `tensor_parallel = True` is a shard; any other is the same on all ranks.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], tied: Tied | None = None) -> None:
        tied = tied or Tied()
        everything = list(dict.fromkeys(parameters))
        self._frozen = [parameter for parameter in everything if not parameter.requires_grad]
        self._first_of = {copy: first for first, *more in tied.copies for copy in more}
        """Of each further copy the one that takes in its gradient."""
        firsts = [copies[0] for copies in tied.copies] if tied.crosses else []
        apart = {*firsts, *self._first_of}
        self._own = _parts(parameter for parameter in everything if parameter not in apart)
        self._tied = _parts(firsts)
        self._copies = _parts(self._first_of)
        self._tied_counts = tied.counts
        self.device = everything[0].device if everything else torch.device("cpu")
        self._kept: list[tuple[list[torch.Tensor], list[bool]]] = []
        self.is_shared_out = False
        """True if a sum over peers leaves gradients with their owners, and nobody has all of them."""
        self._number = {parameter: number for number, parameter in enumerate(everything)}
        self.buckets = self._in_turn()
        """What is summed over peers, in the order in which all of them do so."""
        self._rows: list[tuple[torch.Tensor, torch.Tensor, Rows]] = []
        """Parameters that are rows of others, and have rows of their gradients in a step."""

    def share_out(
        self, pieces: Sequence[OwnedPiece], rows: Iterable[tuple[torch.Tensor, torch.Tensor, Rows]], me: int
    ) -> None:
        """Owners of all numbers, by pieces, and the rows that are stepped here; `me` is this peer."""
        shared = {first for first in self._first_of.values()}
        # Copies of a parameter take its whole gradient.
        owned = [piece._replace(owners=()) if piece.parameter in shared else piece for piece in pieces]
        self.is_shared_out = any(piece.owners for piece in owned)
        for part in self._parts:
            part.keep_whole()
        if self.is_shared_out:
            for part in self._own:
                part.share_out(owned, me)
            for part in (*self._tied, *self._copies):
                part.answered = [(0, part.values)] if me == 0 else []
        self.buckets = self._in_turn()
        self._rows = list(rows)
        self._kept.clear()

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
        if self._tied or self._copies or any(map(has_hooks, self.parameters)):
            # Their gradients are complete when those of others are, or when a hook has seen the sum.
            return []
        early = takewhile(lambda each: not each.has_flags, self.buckets)
        return [bucket.parameters for bucket in early]

    @property
    def buffers(self) -> list[torch.Tensor]:
        """What to sum over peers."""
        return [part.flat for part in self._own]

    @property
    def tied_buffers(self) -> list[torch.Tensor]:
        """What to sum over the holders of all tied chunks."""
        return [part.flat for part in self._tied]

    @property
    def _parts(self) -> list["GradientPart"]:
        return [*self._own, *self._tied, *self._copies]

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
        """Which gradients have been written to since then."""
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
            if (whole := _whole_gradient(parameter)) is not None:
                whole.drop()
        for parts in (self._own, self._tied, self._copies, self.buckets):
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
        for part in (*self._own, *self._tied):
            part.raise_flags(range(len(part.parameters)))

    def look(self) -> None:
        """After the sum over peers: see which parameters have a gradient on any of them."""
        for part in (*self._own, *self._tied):
            part.read_flags()
        for copy, first in self._views_of_copies():
            copy.view.copy_(first.view)
            copy.part.present[copy.place] = first.part.present[first.place]

    def sum_of_squares(self, tensor_parallel_rank: int = 0) -> torch.Tensor:
        """Over what this rank answers for, in float64, on the device; not finite if a gradient is not.

        In float32 and below, gradients beyond about 1e18 count as not finite.
        """
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for part in (*self._own, *(self._tied if self._tied_counts else ())):
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
            rows.grad = None if parameter.grad is None else which.of(parameter.grad)
        try:
            yield
        finally:
            for rows, _, _ in self._rows:
                rows.grad = None
            for part in self._parts:
                part.attach()
