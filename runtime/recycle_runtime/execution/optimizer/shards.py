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

from collections.abc import Sequence
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
    """Where rows begin and end in the memory of a parameter, or of its gradient, in numbers."""
    width = parameter.numel() // max(1, rows_in(parameter))
    return rows.first * width, rows.last * width


def stepped_rows(parameter: torch.nn.Parameter, rows: Rows) -> torch.nn.Parameter:
    """A parameter that is these rows of another: the same memory, for an optimizer to step."""
    view = torch.nn.Parameter(rows.of(parameter.detach()))
    for name, value in vars(parameter).items():
        # What the program has written on a parameter counts for its optimizer too.
        setattr(view, name, value)
    if (dtype := getattr(parameter, "grad_dtype", parameter.dtype)) != parameter.dtype:
        # Its gradients are more precise than it is; torch before 2.10 knows no such thing.
        cast(Any, view).grad_dtype = dtype
    return view


def join_shards(shards: Sequence[tuple[Shard, State]], shapes: Sequence[torch.Size]) -> State:
    """State of the layer's optimizer, from that of all its shards; ValueError if rows are
    missing. `shapes` are those of the parameters."""
    states = [state for _, state in shards if state]
    joined: State = {**states[0], "optimizer": {**states[0]["optimizer"], "state": {}}}
    if "masters" in joined:
        joined["masters"] = []
    for number, shape in enumerate(shapes):
        pieces = sorted((rows[number], state) for rows, state in shards if rows[number] and state)
        ends = [0, *(rows.last for rows, _ in pieces)]
        is_whole = ends[-1] == (shape[0] if shape else 1) and all(
            rows.first == end for (rows, _), end in zip(pieces, ends, strict=False)
        )
        if shape.numel() and not is_whole:
            raise ValueError(f"rows of parameter {number} are in no shard")
        kept = [state["optimizer"]["state"].get(number) for _, state in pieces]
        if kept and all(each is not None for each in kept):
            joined["optimizer"]["state"][number] = {
                name: _joined([each[name] for each in kept], [rows for rows, _ in pieces], shape)
                for name in kept[0]
            }
        if "masters" in joined:
            copies = [state["masters"][number] for _, state in pieces or shards[:1]]
            joined["masters"].append(torch.cat(copies) if len(copies) > 1 else copies[0])
    return joined


def rows_of_state(state: State, rows: Shard, shapes: Sequence[torch.Size]) -> State:
    """Part of a layer's state that an owner of one shard keeps."""
    kept = {
        number: {name: _divided(value, rows[number], shapes[number]) for name, value in entry.items()}
        for number, entry in state["optimizer"]["state"].items()
        if rows[number]
    }
    found: State = {**state, "optimizer": {**state["optimizer"], "state": kept}}
    if "masters" in state:
        found["masters"] = [each.of(master) for each, master in zip(rows, state["masters"], strict=True)]
    return found


def _joined(values: list[Any], rows: Sequence[Rows], shape: torch.Size) -> Any:
    are_divided = all(
        isinstance(value, torch.Tensor) and value.shape == _shape(each, shape)
        for value, each in zip(values, rows, strict=True)
    )
    return torch.cat(values) if are_divided and len(values) > 1 else values[0]


def _divided(value: Any, rows: Rows, shape: torch.Size) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return (rows.of(value) if value.shape == shape else value).clone()


def _shape(rows: Rows, shape: torch.Size) -> torch.Size:
    return torch.Size([rows.last - rows.first, *shape[1:]]) if shape else shape
