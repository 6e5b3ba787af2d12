"""Owners of shards: enough of them, on different hosts, no more work than must be, few copies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.plan.recut import HoldersGoneError, LayerRange, ShardTransfer
from recycle_runtime.plan.shard_moves import shard_transfers, wanted_owners
from recycle_runtime.plan.worker_ids import Worker


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[frozenset[int]], list[int], list[int], int]:
    peers, shards = draw(st.integers(1, 7)), draw(st.integers(1, 8))
    hosts = draw(st.lists(st.integers(0, 3), min_size=peers, max_size=peers))
    able = draw(st.lists(st.sampled_from(range(peers)), min_size=1, unique=True).map(sorted))
    held = [
        draw(st.frozensets(st.sampled_from(able), min_size=1, max_size=draw(st.integers(1, 3))))
        for _ in range(shards)
    ]
    return held, hosts, able, draw(st.integers(1, 3))


@given(situations())
def test_owners(situation: tuple[list[frozenset[int]], list[int], list[int], int]) -> None:
    held, hosts, able, owners = situation
    wanted = wanted_owners(held, hosts, able, owners)
    each = min(owners, len(able))
    for shard, chosen in enumerate(wanted):
        assert len(set(chosen)) == len(chosen) == each and set(chosen) <= set(able)
        if set(chosen) & held[shard]:
            assert chosen[0] in held[shard]
    loads = [sum(peer in chosen for chosen in wanted) for peer in able]
    assert max(loads) <= -(-len(held) * each // len(able))


def test_nothing_moves_where_all_is_as_it_should_be() -> None:
    hosts = [0, 0, 1, 1]
    everybody = frozenset(range(4))
    first = wanted_owners([everybody] * 4, hosts, range(4), 2)
    assert all({hosts[peer] for peer in chosen} == {0, 1} for chosen in first)
    assert sorted(chosen[0] for chosen in first) == [0, 1, 2, 3]
    again = wanted_owners([frozenset(chosen) for chosen in first], hosts, range(4), 2)
    assert [set(chosen) for chosen in again] == [set(chosen) for chosen in first]


def test_one_that_fails_costs_its_shards_alone() -> None:
    first = wanted_owners([frozenset(range(8))] * 8, list(range(8)), range(8), 2)
    left = [frozenset(peer for peer in chosen if peer != 3) for chosen in first]
    able = [peer for peer in range(8) if peer != 3]
    after = wanted_owners(left, list(range(8)), able, 2)
    copies = sum(len(set(chosen) - held) for chosen, held in zip(after, left, strict=True))
    assert copies == 2


WORKERS = [(pipeline, stage) for stage in range(3) for pipeline in range(3)]


@st.composite
def recuts(
    draw: st.DrawFn,
) -> tuple[dict[Worker, dict[tuple[int, int], int]], dict[Worker, int], list[LayerRange], int]:
    """Owners of six layers in three shards each, and where workers stand afterwards: in a row of stages, or
    beside others that hold all layers."""
    owners = draw(st.integers(1, 3))
    held: dict[Worker, dict[tuple[int, int], int]] = {worker: {} for worker in WORKERS}
    for layer in range(6):
        peers = WORKERS[3 * (layer // 2) : 3 * (layer // 2) + 3]
        for shard in range(3):
            for worker in draw(st.permutations(peers))[:owners]:
                held[worker][layer, shard] = 100
    past = draw(st.integers(1, 5))
    ranges = [(0, past), (past, 6), *draw(st.sampled_from([[], [(0, 6)]]))]
    live = draw(st.permutations(WORKERS))[: draw(st.integers(len(ranges), 9))]
    stages = {
        worker: number if number < len(ranges) else draw(st.integers(0, len(ranges) - 1))
        for number, worker in enumerate(live)
    }
    return held, stages, ranges, owners


@given(recuts())
def test_every_shard_has_its_owners_after_a_re_cut(
    found: tuple[dict[Worker, dict[tuple[int, int], int]], dict[Worker, int], list[LayerRange], int],
) -> None:
    held, stages, ranges, owners = found
    transfers = shard_transfers(held, stages, ranges, owners, {})
    after = {
        worker: {place for place in held[worker] if ranges[stage][0] <= place[0] < ranges[stage][1]}
        for worker, stage in stages.items()
    }
    for each in transfers:
        place = each.layer, each.shard
        assert place in held[each.donor] and place not in after[each.joiner]
        assert (each.shards, each.size) == (3, 100)
        after[each.joiner].add(place)
    for layer in range(6):
        peers = [worker for worker, stage in stages.items() if ranges[stage][0] <= layer < ranges[stage][1]]
        for shard in range(3):
            has = [worker for worker in peers if (layer, shard) in after[worker]]
            assert len(has) >= min(owners, len(peers))


def test_nothing_travels_to_where_workers_stand() -> None:
    held = {(0, 0): {(0, 0): 8, (0, 1): 8}, (1, 0): {(0, 0): 8, (0, 1): 8}, (0, 1): {(1, 0): 8, (1, 1): 8}}
    stages = {(0, 0): 0, (1, 0): 0, (0, 1): 1}
    assert shard_transfers(held, stages, [(0, 1), (1, 2)], 2, {}) == ()
    moved = shard_transfers(held, {**stages, (1, 0): 1}, [(0, 1), (1, 2)], 2, {})
    assert moved == (
        ShardTransfer((0, 1), (1, 0), 1, 0, 2, 8),
        ShardTransfer((0, 1), (1, 0), 1, 1, 2, 8),
    )


def test_a_shard_that_nobody_has() -> None:
    with pytest.raises(HoldersGoneError, match="no live worker holds shard 0 of layer 0"):
        shard_transfers({(0, 0): {(0, 1): 8}}, {(0, 0): 0}, [(0, 1)], 1, {})
