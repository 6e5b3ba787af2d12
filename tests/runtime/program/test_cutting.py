"""Cutting a model into stages: balanced, nothing missing, nothing shared."""

from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from recycle_runtime.program.cutting import balance, cut, measure_layers


def every_cut(layers: int, stages: int) -> list[list[range]]:
    inner = combinations(range(1, layers), stages - 1)
    return [[range(*pair) for pair in pairwise([0, *borders, layers])] for borders in inner]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 8))
def test_the_largest_stage_is_smallest_and_the_stages_most_alike(costs: list[int], stages: int) -> None:
    if stages > len(costs):
        with pytest.raises(ValueError, match="cannot be cut into"):
            balance(costs, stages)
        return

    def worth(parts: list[range]) -> tuple[int, int]:
        sizes = [sum(costs[layer] for layer in part) for part in parts]
        return max(sizes), sum(size**2 for size in sizes)

    found = balance(costs, stages)
    assert [layer for part in found for layer in part] == list(range(len(costs)))
    assert worth(found) == min(map(worth, every_cut(len(costs), stages)))


def test_costs_must_be_numbers() -> None:
    for cost in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="costs must be numbers from 0"):
            balance([1.0, cost], 1)


@pytest.mark.parametrize("stages", [1, 2, 3, 7])
def test_a_sequential_chains_and_keeps_its_names(stages: int) -> None:
    act = nn.ReLU()
    model = nn.Sequential(
        nn.Linear(3, 8), act, nn.Linear(8, 8), act, nn.Linear(8, 4), nn.LayerNorm(4), nn.Linear(4, 2)
    )
    parts = cut(model, stages)
    value = example = torch.randn(5, 3)
    for part in parts:
        value = part(value)
    assert len(parts) == stages
    assert torch.equal(value, model(example))
    names = [name for part in parts for name, _ in part.named_parameters()]
    assert names == [name for name, _ in model.named_parameters()]


def test_given_weights_decide() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    sizes = [
        [len(list(part.children())) for part in cut(model, 2, weights)]
        for weights in ([3, 1, 1, 1], [1, 1, 1, 3])
    ]
    assert sizes == [[1, 3], [3, 1]]
    with pytest.raises(ValueError, match="there are 4 layers, so there must be as many costs, got 3"):
        cut(model, 2, [1, 1, 1])


def test_layers_of_a_sequential_hand_tuples_on_as_they_are() -> None:
    class Fork(nn.Module):
        def forward(self, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return value, value + 1

    class Join(nn.Module):
        def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return pair[0] * pair[1]

    model = nn.Sequential(nn.Identity(), Fork(), nn.Identity(), Join())
    first, second = cut(model, 2)
    pair: Any = first(torch.tensor(3.0))
    assert second(*pair) == model(torch.tensor(3.0)) == 12.0


def test_a_parameter_in_two_stages_is_refused() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), nn.Linear(4, 4), shared)
    assert len(cut(model, 1)) == 1
    with pytest.raises(ValueError, match=r"parameter 3.weight is shared by stages 0 and 1"):
        cut(model, 2)


def test_measured_costs_are_one_for_each_layer() -> None:
    layers = [nn.Embedding(10, 8), nn.Linear(8, 8), nn.Flatten()]
    costs = measure_layers(layers, torch.tensor([[1, 2]]), repeat=2)
    assert len(costs) == 3
    assert all(cost > 0 for cost in costs)
