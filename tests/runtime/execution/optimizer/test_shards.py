"""Shards of a layer: all rows once, about evenly; what is kept of them becomes a whole, and back."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.execution.optimizer.separable import Division, division_of
from recycle_runtime.execution.optimizer.shards import (
    Shard,
    State,
    StoredShard,
    all_rows,
    cut_into_shards,
    elements,
    rows_of_shards,
    stepped_rows,
    stored_whole,
)

SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=5).filter(
    lambda shapes: any(torch.Size(shape).numel() for shape in shapes)
)


@given(shapes=SHAPES, shards=st.integers(1, 6), by_rows=st.booleans(), turn=st.integers(0, 7))
def test_every_number_is_in_one_shard(
    shapes: Sequence[tuple[int, ...]], shards: int, by_rows: bool, turn: int
) -> None:
    parameters = [torch.zeros(shape) for shape in shapes]
    cut = cut_into_shards(parameters, shards, by_rows=by_rows, turn=turn)
    assert len(cut) == shards
    for number, parameter in enumerate(parameters):
        pieces = sorted(elements(parameter, shard[number]) for shard in cut if shard[number])
        ends = [0, *(stop for _, stop in pieces)]
        assert [start for start, _ in pieces] == ends[:-1] and ends[-1] == parameter.numel()
        assert by_rows or len(pieces) <= 1
    if by_rows:
        total = sum(parameter.numel() for parameter in parameters)
        row = max(parameter.numel() // max([1, *parameter.shape[:1]]) for parameter in parameters)
        sizes = [sum(stop - start for start, stop in map(elements, parameters, shard)) for shard in cut]
        assert max(sizes) <= -(-total // shards) + row


def test_a_transposed_weight_stays_in_one_piece() -> None:
    weight = torch.zeros(4, 6).t()
    cut = cut_into_shards([weight, torch.zeros(6)], 3)
    assert sum(bool(shard[0]) for shard in cut) == 1


def in_groups(parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Counts the last two first."""
    first, *others = parameters
    return torch.optim.AdamW([{"params": others, "lr": 0.2}, {"params": [first], "weight_decay": 0.3}])


@pytest.mark.parametrize(
    ("make", "order"),
    [
        (partial(torch.optim.AdamW, lr=0.1, amsgrad=True), (0, 1, 2)),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9), (0, 1, 2)),
        (partial(torch.optim.Adagrad, lr=0.1), (0, 1, 2)),
        (in_groups, (1, 2, 0)),
    ],
)
def test_steps_of_shards_are_those_of_the_whole(
    make: Callable[[Any], torch.optim.Optimizer], order: Sequence[int]
) -> None:
    """And what they keep joins to what the whole keeps, divides again, and goes on from there."""
    torch.manual_seed(0)
    start = [torch.randn(5, 3), torch.randn(7), torch.randn(())]
    whole = [torch.nn.Parameter(value.clone()) for value in start]
    apart = [torch.nn.Parameter(value.clone()) for value in start]
    cut = cut_into_shards(whole, 3)

    def of_shards() -> list[tuple[list[torch.nn.Parameter], torch.optim.Optimizer]]:
        rows = [[stepped_rows(*each) for each in zip(apart, shard, strict=True)] for shard in cut]
        return [(each, make(each)) for each in rows]

    one, several = make(whole), of_shards()
    shapes = [value.shape for value in start]
    for step in range(4):
        gradients = [torch.randn(shape) for shape in shapes]
        if step == 2:
            states = [{"optimizer": optimizer.state_dict()} for _, optimizer in several]
            joined = rows_of_shards(_stored(cut, states), all_rows(shapes), shapes, order)
            kept = one.state_dict()["state"]
            torch.testing.assert_close(joined["optimizer"]["state"], kept, rtol=0, atol=0)
            several = of_shards()
            for (_, optimizer), shard in zip(several, cut, strict=True):
                again = rows_of_shards([stored_whole(joined, shapes)], shard, shapes, order)
                optimizer.load_state_dict(again["optimizer"])
        for parameter, gradient in zip(whole, gradients, strict=True):
            parameter.grad = gradient.clone()
        one.step()
        for (rows, optimizer), shard in zip(several, cut, strict=True):
            for row, which, gradient in zip(rows, shard, gradients, strict=True):
                row.grad = which.of(gradient).clone() if which else None
            optimizer.step()
        for some, others in zip(whole, apart, strict=True):
            assert torch.equal(some, others)


def _stored(cut: Sequence[Shard], states: Sequence[State]) -> list[StoredShard]:
    return [
        StoredShard(rows, partial(dict[str, Any], state)) for rows, state in zip(cut, states, strict=True)
    ]


@given(shapes=SHAPES, before=st.integers(1, 6), after=st.integers(1, 6), by_rows=st.booleans())
def test_another_number_of_shards(
    shapes: Sequence[tuple[int, ...]], before: int, after: int, by_rows: bool
) -> None:
    """Of what is stored in one number of shards, those of another one read what they share rows with."""
    sizes = [torch.Size(shape) for shape in shapes]
    whole = [torch.arange(size.numel()).reshape(size) for size in sizes]
    read: list[int] = []

    def stored(number: int, rows: Shard) -> StoredShard:
        kept = {at: {"kept": each.of(whole[at]), "step": 3} for at, each in enumerate(rows) if each}
        state: State = {"optimizer": {"state": kept, "param_groups": []}} if kept else {}

        def open_it() -> State:
            read.append(number)
            return state

        return StoredShard(rows, open_it)

    parts = [stored(*each) for each in enumerate(cut_into_shards(whole, before, by_rows=by_rows))]
    for rows in cut_into_shards(whole, after, by_rows=by_rows, turn=1):
        if not any(rows):
            continue
        read.clear()
        found = rows_of_shards(parts, rows, sizes, range(len(sizes)))["optimizer"]["state"]
        assert found.keys() == {at for at, each in enumerate(rows) if each}
        for at, kept in found.items():
            assert torch.equal(kept["kept"], rows[at].of(whole[at])) and kept["step"] == 3
        assert len(read) == len(set(read))
        if before == after and by_rows:
            assert len(read) == 1


class Together(torch.optim.SGD):
    """Divides by the norm over all its parameters."""

    def step(self, closure: Any = None) -> None:
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for gradient in gradients:
            gradient.div_(norm)
        super().step(closure)


class ByMatrix(torch.optim.SGD):
    """Divides by the norm of each parameter."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.div_(parameter.grad.norm())
        super().step(closure)


class Noisy(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.add_(torch.randn_like(parameter.grad))
        super().step(closure)


@pytest.mark.parametrize(
    ("kind", "division"),
    [
        (torch.optim.AdamW, Division.ROWS),
        (torch.optim.RMSprop, Division.ROWS),
        (torch.optim.Adafactor, Division.PARAMETERS),
        (ByMatrix, Division.PARAMETERS),
        (Together, Division.TOGETHER),
        (Noisy, Division.UNKNOWN),
    ],
)
def test_how_finely_a_step_can_be_divided(kind: Any, division: Division) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((8, 6), (8,), ())]
    before = torch.get_rng_state()
    found = division_of(lambda given, _: kind(given, lr=0.1), parameters, ["a", "b", "c"])
    assert found is division
    assert torch.equal(before, torch.get_rng_state())


def test_parameters_that_are_chosen_by_their_place() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(4, 4)) for _ in range(3)]
    found = division_of(lambda given, _: torch.optim.Adam([given[1]], lr=0.1), parameters, ["a", "b", "c"])
    assert found is Division.ROWS
