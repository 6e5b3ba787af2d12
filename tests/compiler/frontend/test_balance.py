"""The most even cut: no other cut has a smaller largest stage, whatever memory allows."""

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.frontend.balance import balanced_cut, fewest_stages
from recycle_compiler.ir.layers import LayerCosts


def layers(times: list[int], memory: list[int] | None = None, capacity: int | None = None) -> LayerCosts:
    """Layers of these times, in F alone as far as possible, that hold so much."""
    count = len(times)
    ones, nothing = (1,) * count, (0,) * count
    return LayerCosts(
        forward=tuple(times),
        backward_input=ones,
        backward_weight=ones,
        optimizer=nothing,
        reduce=nothing,
        transfer=(0,) * (count - 1),
        activation=tuple(memory or nothing),
        kept_for_weight=nothing,
        parameters=nothing,
        resident=nothing,
        capacity=capacity,
    )


def all_cuts(count: int, stages: int) -> list[tuple[int, ...]]:
    return [
        tuple(end - first for first, end in pairwise((0, *borders, count)))
        for borders in combinations(range(1, count), stages - 1)
    ]


def sums(values: tuple[int, ...], cut: tuple[int, ...]) -> list[int]:
    found: list[int] = []
    first = 0
    for size in cut:
        found.append(sum(values[first : first + size]))
        first += size
    return found


def largest(costs: LayerCosts, cut: tuple[int, ...]) -> int:
    whole = tuple(forward + 2 for forward in costs.forward)
    return max(sums(whole, cut))


def fits(costs: LayerCosts, cut: tuple[int, ...]) -> bool:
    return costs.capacity is None or max(sums(costs.activation, cut)) <= costs.capacity


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5)), min_size=1, max_size=8),
    st.integers(1, 9),
    st.none() | st.integers(0, 15),
)
def test_no_cut_that_fits_has_a_smaller_largest_stage(
    rows: list[tuple[int, int]], stages: int, capacity: int | None
) -> None:
    costs = layers([time for time, _ in rows], [amount for _, amount in rows], capacity)
    others = [cut for cut in all_cuts(costs.count, stages) if fits(costs, cut)]
    found = balanced_cut(costs, stages)
    if found is None:
        assert not others
        return
    assert len(found) == stages
    assert sum(found) == costs.count
    assert min(found) >= 1
    assert fits(costs, found)
    assert largest(costs, found) == min(largest(costs, cut) for cut in others)
    fewest = fewest_stages(costs)
    assert fewest is not None
    assert fewest <= stages


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(0, 20))
def test_memory_needs_as_many_stages_as_the_first_cut_that_fits(memory: list[int], capacity: int) -> None:
    costs = layers([1] * len(memory), memory, capacity)
    fitting = [
        stages
        for stages in range(1, len(memory) + 1)
        if any(fits(costs, cut) for cut in all_cuts(len(memory), stages))
    ]
    assert fewest_stages(costs) == (fitting[0] if fitting else None)


def test_stages_are_about_alike_beside_the_largest() -> None:
    assert balanced_cut(layers([1] * 97), 4) == (24, 24, 24, 25)
    assert balanced_cut(layers([10, *[1] * 9]), 4) == (1, 3, 3, 3)
    assert balanced_cut(layers([1] * 3), 4) is None
