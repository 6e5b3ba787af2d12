"""Names of the shards of a checkpoint."""

from recycle_runtime.state.names import are_whole, optimizer_shard_name, optimizers_of


def test_names_of_a_whole_model() -> None:
    bases = ["layer-0-part-0", "layer-1-part-0"]
    shards = [optimizer_shard_name(bases[0], shard, 3) for shard in range(3)]
    assert are_whole([*bases, *shards], bases) and are_whole(bases, bases)
    assert optimizers_of(bases[0], [*reversed(shards), *bases]) == shards
    for missing in (*shards, *bases):
        assert not are_whole([name for name in (*bases, *shards) if name != missing], bases)
    assert not are_whole([*bases, *shards, optimizer_shard_name("layer-7-part-0", 0, 1)], bases)
    assert not are_whole([*bases, *shards, optimizer_shard_name(bases[0], 0, 4)], bases)
