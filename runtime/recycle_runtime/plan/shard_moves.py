"""Owners of shards of optimizer state, and what has to travel to them when the cut changes.

    layer 3 before     workers of stage 1: 0 owns shards 0 and 1, 1 owns 1 and 2, 2 owns 2 and 0
    layer 3 after      0 and 2 are left on stage 1, and 3 has come: shard 1 is owned once, and 3 owns nothing
    travels            shard 1 and another one to 3, each from one of its owners

One function decides who owns what: when a generation begins (`state.ownership`), and before that, when shards
are sent ahead. Standard library only.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from recycle_runtime.plan.recut import HoldersGoneError, LayerRange, ShardTransfer
from recycle_runtime.plan.worker_ids import Worker

HeldShards = Mapping[tuple[int, int], int]
"""By layer and shard: the bytes of each that a worker owns."""


def wanted_owners(
    holders: Sequence[frozenset[int]], hosts: Sequence[int], able: Sequence[int], owners: int
) -> list[tuple[int, ...]]:
    """Owners for each shard: `holders` of each have its state now, `hosts` are those of all peers, and some
    of these are `able` to own any.

    Few copies, and no peer with more than its part; the first is among those that hold it now.
    """
    peers = len(hosts)
    each = min(owners, len(able))
    most = -(-len(holders) * each // len(able))
    load, answers = [0] * peers, [0] * peers
    found: list[list[int]] = []
    for shard, held in enumerate(holders):
        # Those on further hosts first, then those that own least.
        chosen: list[int] = []
        for _ in range(each):
            free = [peer for peer in able if peer in held and peer not in chosen and load[peer] < most]
            if not free:
                break
            away = {hosts[peer] for peer in chosen}
            best = min(free, key=lambda peer: (hosts[peer] in away, load[peer], (peer - shard) % peers))
            chosen.append(best)
            load[best] += 1
        found.append(chosen)
    for shard, chosen in enumerate(found):
        while len(chosen) < each:
            away = {hosts[peer] for peer in chosen}
            others = [peer for peer in able if peer not in chosen]
            # Memory first: plans count on it that nobody owns more than its part.
            best = min(
                others,
                key=lambda peer: (
                    load[peer] >= most,
                    hosts[peer] in away,
                    load[peer],
                    (peer - shard) % peers,
                ),
            )
            if load[best] >= most:
                _make_room(found, load, holders, best, [peer for peer in able if load[peer] < most])
            chosen.append(best)
            load[best] += 1
    for shard, chosen in enumerate(found):
        first = min(chosen, key=lambda peer: (peer not in holders[shard], answers[peer], chosen.index(peer)))
        answers[first] += 1
        chosen.remove(first)
        chosen.insert(0, first)
    return [tuple(chosen) for chosen in found]


def _make_room(
    found: list[list[int]],
    load: list[int],
    holders: Sequence[frozenset[int]],
    full: int,
    roomy: Sequence[int],
) -> None:
    """One that owns all it may gives a shard to one that owns fewer, and so lacks some of them. A shard whose
    state the first does not have costs nothing to give."""
    to = min(roomy, key=lambda peer: load[peer])
    given = [shard for shard, chosen in enumerate(found) if full in chosen and to not in chosen]
    shard = min(given, key=lambda each: full in holders[each])
    found[shard][found[shard].index(full)] = to
    load[full] -= 1
    load[to] += 1


def shard_transfers(
    held: Mapping[Worker, HeldShards],
    stages: Mapping[Worker, int],
    wanted: Sequence[LayerRange],
    owners: int,
    hosts: Mapping[Worker, str],
) -> tuple[ShardTransfer, ...]:
    """All that is missing once workers stand on these stages, which want these layers.

    HoldersGoneError if a shard that has to travel is held by none.
    """
    donors: dict[tuple[int, int], list[Worker]] = {}
    for worker, shards in sorted(held.items()):
        for place in shards:
            donors.setdefault(place, []).append(worker)
    shards_of: dict[int, int] = {}
    for layer, shard in donors:
        shards_of[layer] = max(shards_of.get(layer, 0), shard + 1)
    load = dict.fromkeys(held, 0)
    found: list[ShardTransfer] = []
    for first, past in pairwise(sorted({end for layers in wanted for end in layers})):
        # Those who hold the same layers, in one group of pipelines or several, share them out.
        peers = sorted(
            worker
            for worker, stage in stages.items()
            if wanted[stage][0] <= first and past <= wanted[stage][1]
        )
        sharded = [layer for layer in range(first, past) if layer in shards_of]
        for joiner, place in _missing(held, peers, sharded, shards_of, owners, hosts):
            if place not in donors:
                raise HoldersGoneError(f"no live worker holds shard {place[1]} of layer {place[0]}")
            donor = min(donors[place], key=lambda worker: (load[worker], worker))
            size = held[donor][place]
            load[donor] += size
            found.append(ShardTransfer(donor, joiner, *place, shards_of[place[0]], size))
    return tuple(found)


def _missing(
    held: Mapping[Worker, HeldShards],
    peers: Sequence[Worker],
    layers: Sequence[int],
    shards_of: Mapping[int, int],
    owners: int,
    hosts: Mapping[Worker, str],
) -> Iterator[tuple[Worker, tuple[int, int]]]:
    """Layer and shard that each of those who hold the same layers is to own, and does not."""
    if not peers or not layers:
        return
    has = [held.get(worker, {}) for worker in peers]
    holders = [
        frozenset(peer for peer, here in enumerate(has) if all((layer, shard) in here for layer in layers))
        for shard in range(max(shards_of[layer] for layer in layers))
    ]
    names = [hosts.get(worker, str(worker)) for worker in peers]
    numbers = [names.index(name) for name in names]
    for shard, chosen in enumerate(wanted_owners(holders, numbers, range(len(peers)), owners)):
        for peer in sorted(chosen):
            yield from ((peers[peer], (layer, shard)) for layer in layers if (layer, shard) not in has[peer])
