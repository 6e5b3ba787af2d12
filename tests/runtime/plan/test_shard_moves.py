"""Who owns a shard: enough owners, on different hosts, no more work than must be, few copies."""

from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.state.names import are_whole, optimizer_shard_name, optimizers_of
from recycle_runtime.plan.shard_moves import wanted_owners


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
    assert max(loads) <= -(-len(held) * each // len(able)) + 1


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


def test_names_of_a_whole_model() -> None:
    bases = ["layer-0-part-0", "layer-1-part-0"]
    shards = [optimizer_shard_name(bases[0], shard, 3) for shard in range(3)]
    assert are_whole([*bases, *shards], bases) and are_whole(bases, bases)
    assert optimizers_of(bases[0], [*reversed(shards), *bases]) == shards
    for missing in (*shards, *bases):
        assert not are_whole([name for name in (*bases, *shards) if name != missing], bases)
    assert not are_whole([*bases, *shards, optimizer_shard_name("layer-7-part-0", 0, 1)], bases)
    assert not are_whole([*bases, *shards, optimizer_shard_name(bases[0], 0, 4)], bases)
