"""Shards of a layer: rows of its parameters, whose optimizer state only some of the peers hold.

    layer      weight 6 x 4     bias 6          three shards of ten numbers, as evenly as rows allow
    shard 0    weight[0:3]      bias[0:0]
    shard 1    weight[3:5]      bias[0:0]
    shard 2    weight[5:6]      bias[0:6]

A shard has an optimizer of its own, made of these rows as the layer's would be of its parameters: it has the
same groups and numbers, and nothing to step where there are no rows. Shards follow from shapes and from how
many there are, so all peers have the same ones. What works on whole parameters (Muon) has shards of whole
parameters.

What the optimizer of a shard keeps has the form of what the layer's keeps. A tensor with the shape of its
rows is divided as they are; anything else, such as a count of steps, belongs to all rows of the parameter.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch

State = dict[str, Any]


class Rows(NamedTuple):
    """Rows first .. last - 1 of a parameter."""

    first: int
    last: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """These of a tensor that has the parameter's shape: the same memory."""
        if tensor.dim():
            return tensor[self.first : self.last]
        return tensor if self else tensor.reshape(1)[:0]

    def __bool__(self) -> bool:
        return self.last > self.first


Shard = tuple[Rows, ...]
"""Of each parameter of a layer."""


def cut_into_shards(
    parameters: Sequence[torch.Tensor], shards: int, *, by_rows: bool = True, turn: int = 0
) -> tuple[Shard, ...]:
    """So many of about the same size; some may be empty. `turn`: which of them has the first rows."""
    total = sum(parameter.numel() for parameter in parameters)
    found = [[Rows(0, 0)] * len(parameters) for _ in range(shards)]
    before = 0
    for number, parameter in enumerate(parameters):
        rows = rows_in(parameter) if by_rows and _has_rows(parameter) else 1
        width, first = parameter.numel() // rows if rows else 0, 0
        while first < rows and width:
            shard = (before + first * width) * shards // total
            end = (shard + 1) * total - before * shards
            last = min(rows, -(-end // (width * shards)))
            whole = Rows(first, rows_in(parameter) if last == rows else last)
            found[(shard + turn) % shards][number] = whole
            first = last
        before += parameter.numel()
    return tuple(map(tuple, found))


def rows_in(parameter: torch.Tensor) -> int:
    return parameter.shape[0] if parameter.dim() else 1


def _has_rows(parameter: torch.Tensor) -> bool:
    """True if each row is a piece of memory of its own."""
    layout = torch.empty_like(parameter, device="meta").stride()
    return bool(layout) and layout[0] * parameter.shape[0] == parameter.numel()


def elements(parameter: torch.Tensor, rows: Rows) -> tuple[int, int]:
    """Range of rows in the memory of a parameter, or of its gradient, in numbers."""
    width = parameter.numel() // max(1, rows_in(parameter))
    return rows.first * width, rows.last * width


def stepped_rows(parameter: torch.nn.Parameter, rows: Rows, *, is_apart: bool = False) -> torch.nn.Parameter:
    """A parameter that is these rows of another, for an optimizer to step: the same memory, or a copy."""
    values = rows.of(parameter.detach())
    view = torch.nn.Parameter(values.clone() if is_apart else values)
    for name, value in vars(parameter).items():
        # What the program has written on a parameter counts for its optimizer too.
        setattr(view, name, value)
    if (dtype := getattr(parameter, "grad_dtype", parameter.dtype)) != parameter.dtype:
        # Its gradients are more precise than it is; torch before 2.10 knows no such thing.
        cast(Any, view).grad_dtype = dtype
    return view


class StoredShard(NamedTuple):
    """Optimizer state of some rows, with a function that reads it."""

    rows: Shard
    read: Callable[[], State]
    """Nothing where nothing was stepped."""


def stored_shard(state: State) -> StoredShard:
    """State of an owner of a shard that is in memory."""
    return StoredShard(tuple(Rows(*each) for each in state["rows"]), lambda: state["state"])


def stored_whole(state: State, shapes: Sequence[torch.Size]) -> StoredShard:
    """State of a layer's optimizer in one piece, in memory."""
    return StoredShard(all_rows(shapes), lambda: state)


def all_rows(shapes: Sequence[torch.Size]) -> Shard:
    return tuple(Rows(0, shape[0] if shape else 1) for shape in shapes)


def rows_of_shards(
    stored: Sequence[StoredShard], rows: Shard, shapes: Sequence[torch.Size], order: Sequence[int]
) -> State:
    """State of an optimizer of these rows, from that of shards which have them; ValueError if some are
    missing. Only shards that share rows with it are read.

    `order`: numbers of the layer's parameters as the optimizer's groups have them, one after the other; it
    counts them in that order.
    """
    wanted = [each for each in stored if any(map(_meets, each.rows, rows))]
    shards = [(each.rows, state) for each in wanted if (state := each.read())]
    if not shards:
        raise ValueError("no shard has any of these rows")
    first = shards[0][1]
    found: State = {**first, "optimizer": {**first["optimizer"], "state": {}}}
    if "masters" in found:
        found["masters"] = []
    places = {number: place for place, number in enumerate(order)}
    for number, (wants, shape) in enumerate(zip(rows, shapes, strict=True)):
        pieces = sorted(
            ((each[number], state) for each, state in shards if _meets(each[number], wants)),
            key=lambda piece: piece[0],
        )
        has = [each for each, _ in pieces]
        if shape.numel():
            _check(number, has, wants)
        place = places.get(number)
        kept = [state["optimizer"]["state"].get(place) for _, state in pieces]
        if kept and all(each is not None for each in kept):
            found["optimizer"]["state"][place] = {
                name: _joined([each[name] for each in kept], has, wants, shape) for name in kept[0]
            }
        if "masters" in found:
            copies = [state["masters"][number] for _, state in pieces]
            found["masters"].append(_joined(copies, has, wants, shape) if copies else _nothing(wants, shape))
    return found


def check_whole(stored: Sequence[StoredShard], shapes: Sequence[torch.Size]) -> None:
    """ValueError if some rows are in none of them."""
    for number, (wants, shape) in enumerate(zip(all_rows(shapes), shapes, strict=True)):
        if shape.numel():
            _check(number, sorted(each.rows[number] for each in stored if each.rows[number]), wants)


def _check(number: int, pieces: Sequence[Rows], wanted: Rows) -> None:
    if wanted and not _covers(pieces, wanted):
        raise ValueError(f"rows of parameter {number} are in no shard")


def _meets(one: Rows, other: Rows) -> bool:
    return max(one.first, other.first) < min(one.last, other.last)


def _covers(pieces: Sequence[Rows], wanted: Rows) -> bool:
    """True if these, in order, are all of the wanted rows without a gap."""
    is_whole = bool(pieces) and pieces[0].first <= wanted.first and wanted.last <= pieces[-1].last
    return is_whole and all(one.last == other.first for one, other in pairwise(pieces))


def _joined(values: list[Any], rows: Sequence[Rows], wanted: Rows, shape: torch.Size) -> Any:
    """Of the wanted rows: a tensor with the shape of its rows is divided as they are."""
    first = values[0]
    if not isinstance(first, torch.Tensor):
        return first
    are_divided = all(
        isinstance(value, torch.Tensor) and value.shape == _shape(each, shape)
        for value, each in zip(values, rows, strict=True)
    )
    if not are_divided:
        return first.clone()
    parts = [
        Rows(max(each.first, wanted.first) - each.first, min(each.last, wanted.last) - each.first).of(value)
        for value, each in zip(values, rows, strict=True)
    ]
    return torch.cat(parts) if len(parts) > 1 else parts[0].clone()


def _nothing(rows: Rows, shape: torch.Size) -> torch.Tensor:
    """Rows without a number in them."""
    return torch.empty([rows.last - rows.first, *shape[1:]])


def _shape(rows: Rows, shape: torch.Size) -> torch.Size:
    return torch.Size([rows.last - rows.first, *shape[1:]]) if shape else shape
