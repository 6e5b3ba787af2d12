"""The gradients of some parameters in one long tensor, and which of its numbers are summed where.

sharded over tensor-parallel ranks | the same on all of them | one flag per parameter
"""

from collections.abc import Iterable
from typing import NamedTuple, cast

import torch

from recycle_runtime.execution.device_copies import Readback
from recycle_runtime.execution.local_tensors import WholeGradient
from recycle_runtime.execution.rank_pieces import GradientPiece
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
        """Start of the gradient of each parameter."""
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
        self._parts_of = [
            (whole, parameter, view)
            for parameter, view in zip(self.parameters, self.views, strict=True)
            if (whole := whole_gradient(parameter)) is not None
        ]
        """Of the parameters that are parts of DTensors: the whole gradient, and the view."""
        self._clean = [_version(view) for view in self.views]
        self.present = [False] * len(self.parameters)
        """True for parameters with a gradient on some peer, once the flags are read."""
        self._flagged: set[int] = set()
        """Indices of parameters whose flags are raised if they have a gradient."""
        self._must_read = False
        self._readback = Readback()
        self._replayed: set[int] = set()
        """Indices of gradients written by replayed graphs, which do not change version counters."""
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
        for whole, _, view in self._parts_of:
            whole.show(view)

    def hide(self, everything: bool) -> None:
        """Take away the gradients of parameters that have none in this step."""
        for parameter, is_present in zip(self.parameters, self.present, strict=True):
            if everything or not is_present:
                parameter.grad = None

    def repair(self) -> None:
        """Take over gradients that were replaced: their value counts."""
        for whole, parameter, _ in self._parts_of:
            parameter.grad = whole.take()
        for index, (parameter, view) in enumerate(zip(self.parameters, self.views, strict=True)):
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
        """True if a parameter has a gradient here."""
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
            total += sum_of_squares(self.flat[start : max(start, min(stop, limit))])
        return total

    def own_views(self) -> list[torch.Tensor]:
        return [self.flat[start:stop] for start, stop in self.owned]

    def keep_whole(self) -> None:
        """Every peer owns all numbers from now on."""
        self._ranges = [(0, self.values + len(self.parameters), ())]
        self.owned = self.answered = [(0, self.values)]

    def share_out(self, pieces: Iterable["OwnedPiece"], me: int) -> None:
        """Set the owners of each range of numbers."""
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


def gradient_dtype(parameter: torch.Tensor) -> torch.dtype:
    """Of its gradient, which may be more precise than it is; torch before 2.10 knows no such thing."""
    dtype: torch.dtype | None = getattr(parameter, "grad_dtype", None)
    return parameter.dtype if dtype is None else dtype


def whole_gradient(parameter: torch.Tensor) -> WholeGradient | GradientPiece | None:
    """Of the DTensor that a parameter is a part of."""
    return getattr(parameter, "whole_gradient", None)


def is_piece(parameter: torch.Tensor) -> bool:
    """True for one whose gradient is computed elsewhere, with those of other ranks."""
    return isinstance(whole_gradient(parameter), GradientPiece)


def _is_shard(parameter: torch.Tensor) -> bool:
    return bool(getattr(parameter, "tensor_parallel", False))


def _version(tensor: torch.Tensor) -> int:
    return tensor._version  # pyright: ignore[reportPrivateUsage]


def _view(flat: torch.Tensor, start: int, parameter: torch.Tensor) -> torch.Tensor:
    """Laid out as the parameter is, which optimizers reward."""
    layout = torch.empty_like(parameter, device="meta").stride()
    return flat.as_strided(parameter.shape, layout, start)


def sum_of_squares(values: torch.Tensor) -> torch.Tensor:
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
