"""Assignment of layers to workers when the cut changes, and what has to travel.

    held now       0..8  0..8  8..16  8..16  8..16        layers of each live worker
    wanted         6x2, 10x3                              layers x workers of each stage
    least bytes    0..8  0..8  8..16  8..16  8..16
                    |     |      |      |      |          one stage takes a part of what it holds,
                   0..6  0..6  6..16  6..16  6..16        the other gets layers 6 and 7

A worker pays for the layers of its new stage that it does not hold. Workers that hold the same layers are
interchangeable, and so are the places of a stage: what is left is a transportation problem between kinds of
workers and stages, and its least-cost flow is the least number of bytes. Layers travel while training goes
on, so they cost a delay until the new plan saves anything; only the switch is a pause.

The simulator and the coordinator both decide by what is here. Standard library only.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from recycle_runtime.plan.worker_ids import Worker

LayerRange = tuple[int, int]
"""Layers from the first one up to the one before the second number."""
NOTHING: LayerRange = (0, 0)
"""Of a worker that holds no layers yet."""
Layout = TypeVar("Layout")
_ALIKE = 1.01
"""Plans whose steps differ by less than this are equal; then fewer bytes count."""
_NEARLY = 0.9
"""Share of what the quickest saves that all of these save: with less, going there might not pay at all."""
_MOST_COMPARED = 16


def stage_ranges(cut: Sequence[int]) -> tuple[LayerRange, ...]:
    """The layers of each stage; `cut` says how many each has."""
    return tuple(pairwise(accumulate(cut, initial=0)))


def layout_text(cut: Sequence[int], workers: Sequence[int], split: int = 1) -> str:
    """`8x4,8x4,7x5`: layers and workers of each stage; `8x4,7x5 in halves` with micro-batches in two."""
    stages = ",".join(f"{layers}x{count}" for layers, count in zip(cut, workers, strict=True))
    return f"{stages} in halves" if split == 2 else stages


class Transfer(NamedTuple):
    """Layers that a worker sends to another one."""

    donor: Worker
    joiner: Worker
    layers: LayerRange
    size: int
    """Bytes."""


class ShardTransfer(NamedTuple):
    """A shard of a layer's optimizer state that one of its owners sends to a worker that is to own it."""

    donor: Worker
    joiner: Worker
    layer: int
    shard: int
    shards: int
    """Of the layer."""
    size: int
    """Bytes."""


class Recut(NamedTuple):
    """The way from the layers that workers hold to another layout."""

    stages: dict[Worker, int]
    """The new stage of each worker that has a place in it."""
    transfers: tuple[Transfer, ...]
    shards: tuple[ShardTransfer, ...] = ()
    """Optimizer state that travels beside layers, where it is in shards."""

    @property
    def size(self) -> int:
        """Bytes that travel in all."""
        return sum(transfer.size for transfer in (*self.transfers, *self.shards))

    @property
    def joiners(self) -> set[Worker]:
        """Workers that take something."""
        return {transfer.joiner for transfer in (*self.transfers, *self.shards)}

    def seconds(self, rate: float) -> float:
        """Until the last layers have arrived, at so many bytes a second and worker in each direction."""
        sent: dict[Worker, int] = {}
        received: dict[Worker, int] = {}
        for transfer in (*self.transfers, *self.shards):
            sent[transfer.donor] = sent.get(transfer.donor, 0) + transfer.size
            received[transfer.joiner] = received.get(transfer.joiner, 0) + transfer.size
        return max((*sent.values(), *received.values()), default=0) / rate


class HoldersGoneError(ValueError):
    """No live worker holds a layer."""


def best_layout(
    layouts: Sequence[tuple[int, str, Layout]], period: float, way_to: Callable[[Layout], Recut]
) -> tuple[int, str, Layout, Recut] | None:
    """The quickest of layouts with their periods and names, all shorter than the period now; of equals, the
    one to which fewest bytes move."""
    quickest = min((each[0] for each in layouts), default=0)
    longest = min(_ALIKE * quickest, period - _NEARLY * (period - quickest))
    alike = sorted((each for each in layouts if each[0] <= longest), key=lambda each: each[:2])
    ways = ((*each, way_to(each[2])) for each in alike[:_MOST_COMPARED])
    return min(ways, key=lambda found: found[3].size, default=None)


def least_bytes(
    held: Mapping[Worker, LayerRange],
    cut: Sequence[int],
    workers: Sequence[int],
    layer_bytes: Sequence[int],
    last: Collection[Worker] = (),
    settled: Mapping[Worker, int] = MappingProxyType({}),
) -> Recut:
    """The way to the layout with so many layers and workers on each stage that moves the fewest bytes."""
    return least_bytes_to(held, stage_ranges(cut), workers, layer_bytes, last, settled)


def least_bytes_to(
    held: Mapping[Worker, LayerRange],
    wanted: Sequence[LayerRange],
    workers: Sequence[int],
    layer_bytes: Sequence[int],
    last: Collection[Worker] = (),
    settled: Mapping[Worker, int] = MappingProxyType({}),
) -> Recut:
    """The way to so many workers on each stage, which want these layers, that moves the fewest bytes.

    Of workers that hold the same, those in `last` get a place only when all others have one; for those who
    are `settled` it is known which stage they take. HoldersGoneError if a layer that has to travel is held by
    none, ValueError if there are fewer workers than places.
    """
    if sum(workers) > len(held):
        raise ValueError(f"the layout is for {sum(workers)} workers, there are {len(held)}")
    left = list(workers)
    for stage in settled.values():
        left[stage] -= 1
    if min(left) < 0:
        raise ValueError("more workers are settled on a stage than it has places")
    before = list(accumulate(layer_bytes, initial=0))
    kinds: dict[LayerRange, list[Worker]] = {}
    for worker in sorted(held.keys() - settled.keys(), key=lambda worker: (worker in last, worker)):
        kinds.setdefault(held[worker], []).append(worker)
    has = sorted(kinds)
    costs = [[_missing_bytes(one, stage, before) for stage in wanted] for one in has]
    flow = _least_cost_flow([len(kinds[one]) for one in has], left, costs)
    stages: dict[Worker, int] = dict(settled)
    for one, row in zip(has, flow, strict=True):
        queue = iter(kinds[one])
        for stage, count in enumerate(row):
            stages.update((next(queue), stage) for _ in range(count))
    return Recut(stages, _transfers(held, stages, wanted, before))


def _missing_bytes(has: LayerRange, wanted: LayerRange, before: Sequence[int]) -> int:
    return sum(before[past] - before[first] for first, past in missing(has, wanted))


def missing(has: LayerRange, wanted: LayerRange) -> list[LayerRange]:
    """Layers that are wanted and not there."""
    first, past = max(has[0], wanted[0]), min(has[1], wanted[1])
    if first >= past:
        return [wanted] if wanted[0] < wanted[1] else []
    return [(a, b) for a, b in ((wanted[0], first), (past, wanted[1])) if a < b]


def _transfers(
    held: Mapping[Worker, LayerRange],
    stages: Mapping[Worker, int],
    wanted: Sequence[LayerRange],
    before: Sequence[int],
) -> tuple[Transfer, ...]:
    """Every missing layer from one that holds it, the load spread over those who do."""
    load = dict.fromkeys(held, 0)
    kinds: dict[LayerRange, list[Worker]] = {}
    for worker in sorted(held):
        kinds.setdefault(held[worker], []).append(worker)
    found: list[Transfer] = []
    for joiner, stage in sorted(stages.items()):
        for first, past in missing(held[joiner], wanted[stage]):
            while first < past:
                here = [one for one in kinds if one[0] <= first < one[1]]
                if not here:
                    raise HoldersGoneError(f"no live worker holds layer {first}")
                donor = min((kinds[one][0] for one in here), key=lambda worker: (load[worker], worker))
                kind = held[donor]
                until = min(past, kind[1])
                size = before[until] - before[first]
                load[donor] += size
                # The first of each kind is the one with the least to send.
                kinds[kind].sort(key=lambda worker: (load[worker], worker))
                found.append(Transfer(donor, joiner, (first, until), size))
                first = until
    return tuple(found)


def _least_cost_flow(supply: list[int], demand: list[int], costs: list[list[int]]) -> list[list[int]]:
    """Flow from each source to each sink that meets all demand at the least cost."""
    flow = [[0] * len(demand) for _ in supply]
    supply = list(supply)
    for sink, wanted in enumerate(demand):
        while wanted:
            # No way costs less than nothing, so one that costs nothing need not be searched for.
            free = (source for source, left in enumerate(supply) if left and not costs[source][sink])
            source = next(free, None)
            path = _shortest_path(sink, supply, flow, costs) if source is None else [sink, source]
            # The path alternates: sink, source, sink that gives up one of its own, another source, ...
            bottleneck = min(wanted, supply[path[-1]])
            for giver, given_up in zip(path[1::2], path[2::2], strict=False):
                bottleneck = min(bottleneck, flow[giver][given_up])
            for taker, giver in zip(path[::2], path[1::2], strict=True):
                flow[giver][taker] += bottleneck
            for giver, given_up in zip(path[1::2], path[2::2], strict=False):
                flow[giver][given_up] -= bottleneck
            supply[path[-1]] -= bottleneck
            wanted -= bottleneck
    return flow


def _shortest_path(
    sink: int, supply: Sequence[int], flow: Sequence[Sequence[int]], costs: Sequence[Sequence[int]]
) -> list[int]:
    """From a sink that wants more to a source that has some left, over what was given before."""
    sources = range(len(supply))
    reached: dict[int, int] = {}
    """Of each source, at which cost."""
    through: dict[int, tuple[int, int | None]] = {}
    """Of each source: the sink that would take from it, and the source that this sink had before."""
    waiting: deque[int] = deque()

    def relax(taker: int, cost: int, before: int | None) -> None:
        for source in sources:
            reach = cost + costs[source][taker]
            if source not in reached or reach < reached[source]:
                reached[source], through[source] = reach, (taker, before)
                if source not in waiting:
                    waiting.append(source)

    relax(sink, 0, None)
    while waiting:
        source = waiting.popleft()
        for taker, count in enumerate(flow[source]):
            if count:
                relax(taker, reached[source] - costs[source][taker], source)
    end = min((source for source in sources if supply[source]), key=lambda source: (reached[source], source))
    path: list[int] = []
    at: int | None = end
    while at is not None:
        taker, before = through[at]
        path += [at, taker]
        at = before
    return path[::-1]


def size_text(size: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
