"""Least bytes to another layout, against all assignments of small cases; and when a re-cut pays."""

import random
from itertools import pairwise, permutations

import pytest

from recycle_runtime.plan.change import JobChange, Outlook
from recycle_runtime.plan.recut import (
    NOTHING,
    HoldersGoneError,
    LayerRange,
    Recut,
    Transfer,
    layout_text,
    least_bytes,
    missing,
    stage_ranges,
)
from recycle_runtime.plan.worker_ids import Worker


def test_ranges_follow_each_other():
    assert stage_ranges((3, 1, 4)) == ((0, 3), (3, 4), (4, 8))
    assert layout_text((8, 7), (4, 5)) == "8x4,7x5"


def test_what_is_missing_on_either_side():
    assert missing((2, 5), (0, 8)) == [(0, 2), (5, 8)]
    assert missing((0, 8), (2, 5)) == []
    assert missing(NOTHING, (2, 5)) == [(2, 5)]
    assert missing((5, 8), (2, 5)) == [(2, 5)]


def test_the_picture_of_the_module():
    held: dict[Worker, LayerRange] = {(p, 0): (0, 8) for p in range(2)} | {(p, 1): (8, 16) for p in range(3)}
    recut = least_bytes(held, (6, 10), (2, 3), [1] * 16)
    assert recut.stages == {worker: worker[1] for worker in held}
    assert recut.size == 6
    # Both holders of layers 6 and 7 have about as much to send.
    assert sorted(transfer.donor for transfer in recut.transfers) == [(0, 0), (0, 0), (1, 0)]
    assert recut.seconds(2.0) == 2.0


def test_a_needed_range_may_come_from_several_workers():
    held: dict[Worker, LayerRange] = {(0, 0): (0, 2), (0, 1): (2, 4), (1, 0): NOTHING}
    recut = least_bytes(held, (4,), (1,), [1, 1, 1, 1], last=[(0, 0), (0, 1)])
    assert recut == Recut({(0, 0): 0}, (Transfer((0, 1), (0, 0), (2, 4), 2),))


def test_a_layer_that_nobody_holds_cannot_travel():
    with pytest.raises(HoldersGoneError, match="layer 2"):
        least_bytes({(0, 0): (0, 2), (0, 1): NOTHING}, (2, 1), (1, 1), [1, 1, 1])


def test_fewer_workers_than_places_are_refused():
    with pytest.raises(ValueError, match="2 workers, there are 1"):
        least_bytes({(0, 0): (0, 2)}, (1, 1), (1, 1), [1, 1])


@pytest.mark.parametrize("seed", range(60))
def test_least_of_all_assignments(seed: int):
    dice = random.Random(seed)
    layers = dice.randint(2, 7)
    layer_bytes = [dice.randint(1, 9) for _ in range(layers)]
    held = _random_holdings(dice, layers)
    stages = dice.randint(1, min(3, layers, len(held)))
    cut = _random_cut(dice, layers, stages)
    places = [dice.randrange(stages) for _ in range(dice.randint(stages, len(held)))]
    workers = [max(1, places.count(stage)) for stage in range(stages)]
    if sum(workers) > len(held):
        workers = [1] * stages
    recut = least_bytes(held, cut, workers, layer_bytes)
    counts = [list(recut.stages.values()).count(stage) for stage in range(stages)]
    assert counts == workers
    seats = [stage for stage, count in enumerate(workers) for _ in range(count)]
    wanted = stage_ranges(cut)
    least = min(
        sum(
            _cost(held[worker], wanted[stage], layer_bytes)
            for worker, stage in zip(order, seats, strict=True)
        )
        for order in permutations(held, len(seats))
    )
    assert recut.size == least
    for worker, stage in recut.stages.items():
        here = set(range(*held[worker]))
        here |= {layer for to in recut.transfers if to.joiner == worker for layer in range(*to.layers)}
        assert here >= set(range(*wanted[stage]))
    assert all(
        held[to.donor][0] <= to.layers[0] < to.layers[1] <= held[to.donor][1] for to in recut.transfers
    )


def test_thousands_of_workers_keep_what_they_hold():
    held = {(p, s): (s, s + 1) for s in range(64) for p in range(32)}
    for s in range(0, 64, 3):
        del held[0, s]
    workers = [sum(stage == s for _, stage in held) for s in range(64)]
    assert least_bytes(held, [1] * 64, workers, [5] * 64).size == 0
    other = least_bytes(held, [2] * 32, [len(held) // 32] * 32, [5] * 64)
    assert other.size == 5 * 32 * (len(held) // 32)


def test_what_pays():
    enough = weighed(0.2, 100.0, 1000)
    assert enough.moving == 10.0
    assert enough.gain == pytest.approx(0.2 * 90 - 1)
    assert enough.pays
    assert "layout 1x1 saves 20.0 % of 2 s a step, 100 B travel in 10 s" in str(enough)


def weighed(saving: float, seconds_to_change: float, steps_left: int) -> JobChange:
    recut = Recut({}, (Transfer((0, 0), (0, 1), (0, 1), 100),))
    outlook = Outlook(2.0, seconds_to_change, steps_left)
    return JobChange("layout 1x1", "re-cut", outlook, saving, 1.0, recut.seconds(10.0), recut.size)


@pytest.mark.parametrize(
    ("saving", "seconds_to_change", "steps_left"),
    [
        pytest.param(0.0, 1000.0, 1000, id="saves-nothing"),
        pytest.param(0.2, 12.0, 1000, id="the-next-failure-is-near"),
        pytest.param(0.2, 1000.0, 7, id="the-end-is-near"),
    ],
)
def test_what_does_not(saving: float, seconds_to_change: float, steps_left: int):
    change = weighed(saving, seconds_to_change, steps_left)
    assert not change.pays
    assert str(change).endswith("not re-cut")


def _random_holdings(dice: random.Random, layers: int) -> dict[Worker, LayerRange]:
    """Every layer held by somebody, as contiguous ranges; some hold nothing."""
    stages = dice.randint(1, min(3, layers))
    ranges = stage_ranges(_random_cut(dice, layers, stages))
    held: dict[Worker, LayerRange] = {(0, stage): one for stage, one in enumerate(ranges)}
    for extra in range(dice.randint(0, 3)):
        held[1 + extra, 0] = dice.choice([*ranges, NOTHING])
    return held


def _random_cut(dice: random.Random, layers: int, stages: int) -> list[int]:
    ends = [0, *sorted(dice.sample(range(1, layers), stages - 1)), layers]
    return [b - a for a, b in pairwise(ends)]


def _cost(has: LayerRange, wanted: LayerRange, layer_bytes: list[int]) -> int:
    return sum(layer_bytes[layer] for layer in set(range(*wanted)) - set(range(*has)))
