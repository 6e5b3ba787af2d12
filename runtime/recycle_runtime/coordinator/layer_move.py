"""Layers on their way to another cut, as the coordinator knows of them. Needs no torch.

    begin       donors and joiners get orders; training goes on under the current cut
    arrived     every joiner has its layers, and keeps them up to date
    switch      all workers stop between two steps and go on under the new cut
    given up    a worker failed or joined, or layers did not come: all go on under the cut there is

A move belongs to one generation. Whatever begins another one ends it, and if the cut should still change,
that is weighed again.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType

from recycle_runtime.plan.plan_book import PlanBook
from recycle_runtime.plan.recut import NOTHING, LayerRange, Recut
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.protocol.messages.generations import HeldState, LayerShards
from recycle_runtime.protocol.messages.layer_moves import LayersToMove, MoveLayers
from recycle_runtime.protocol.messages.members import Member

_LEAST_SECONDS = 60.0
_MOST_TIMES = 10.0
"""A move may take so many times as long as it should."""


@dataclass(slots=True)
class LayerMove:
    """From the layers that workers hold to another layout."""

    book: PlanBook
    """The plans of the new cut."""
    recut: Recut
    layout: str
    seconds: float
    """That it should take."""
    places: Mapping[Worker, Worker] = field(default_factory=dict[Worker, Worker])
    """Cells of workers for which the plan has some in mind."""
    cells: dict[Worker, Worker] = field(init=False)
    """Of each worker, after it."""
    missing: set[Member] = field(default_factory=set[Member])
    """Processes whose layers have not arrived."""
    number: int = 0
    """In the job; one that was given up is never confused with the next."""
    began: float = 0.0
    arrived: float = 0.0
    """Time at which the last layers had arrived; 0 until then."""
    received: int = 0
    """Bytes, as the processes count them."""

    def __post_init__(self) -> None:
        self.cells = cells_of(self.recut.stages, self.places)

    def begin(self, number: int, members: Collection[Member], now: float) -> None:
        """Every rank of a worker takes what the same rank of another has."""
        self.number, self.began = number, now
        self.missing = set(self.joiners(members))
        if not self.missing:
            self.arrived = now

    def arrive(self, member: Member, size: int, now: float) -> bool:
        """True if these were the last."""
        if member not in self.missing:
            return False
        self.received += size
        self.missing.remove(member)
        if not self.missing:
            self.arrived = now
        return not self.missing

    def is_late(self, now: float) -> bool:
        """True if it takes so long that nobody should wait for it any more."""
        return bool(self.missing) and now - self.began > max(_LEAST_SECONDS, _MOST_TIMES * self.seconds)

    def joiners(self, members: Collection[Member]) -> list[Member]:
        """Processes that take layers."""
        workers = self.recut.joiners
        return [member for member in members if member.worker in workers]

    def orders(self, generation: int, members: Collection[Member]) -> dict[Member, MoveLayers]:
        """Order for each process that gives or takes layers."""
        gives: dict[Worker, list[LayersToMove]] = {}
        takes: dict[Worker, list[LayersToMove]] = {}
        for donor, joiner, layers, shards in _ways(self.recut):
            gives.setdefault(donor, []).append(LayersToMove(joiner, *layers, shards))
            takes.setdefault(joiner, []).append(LayersToMove(donor, *layers, shards))
        return {
            member: MoveLayers(
                generation,
                self.number,
                tuple(gives.get(member.worker, ())),
                tuple(takes.get(member.worker, ())),
            )
            for member in members
            if member.worker in gives or member.worker in takes
        }

    def shards_for(self, worker: Worker) -> tuple[LayerShards, ...]:
        """Shards of optimizer state that it takes."""
        ways = _ways(self.recut)
        return tuple(each for _, joiner, _, shards in ways if joiner == worker for each in shards)

    def obstacle(self, reports: Mapping[Member, HeldState]) -> str | None:
        """Reason why the switch cannot be made with the reported state; None if it can."""
        if self.missing:
            return "not all layers have arrived"
        here = {member.worker for member in reports}
        if gone := sorted(self.cells.keys() - here):
            return f"{worker_text(gone[0])} is gone"
        # One that is fresh held no layers before.
        stands = {reports[member].applied for member in reports if not reports[member].is_fresh}
        if len(stands) != 1 or None in stands:
            return "the workers stand at different steps"
        late = [member for member in self.joiners(reports) if reports[member].layers_applied not in stands]
        if late:
            return f"layers of {worker_text(late[0].worker)} are not up to date"
        return None


def _ways(recut: Recut) -> list[tuple[Worker, Worker, LayerRange, tuple[LayerShards, ...]]]:
    """Donor, joiner, layers and shards; shards go with the first layers between the same two, or alone."""
    held: dict[tuple[Worker, Worker], dict[tuple[int, int], list[int]]] = {}
    for each in recut.shards:
        layers = held.setdefault((each.donor, each.joiner), {})
        layers.setdefault((each.layer, each.shards), []).append(each.shard)
    beside = {
        ends: tuple(LayerShards(*layer, tuple(sorted(here))) for layer, here in sorted(layers.items()))
        for ends, layers in held.items()
    }
    found = [
        (each.donor, each.joiner, each.layers, beside.pop((each.donor, each.joiner), ()))
        for each in recut.transfers
    ]
    return [*found, *((*ends, NOTHING, here) for ends, here in beside.items())]


def cells_of(
    stages: Mapping[Worker, int], places: Mapping[Worker, Worker] = MappingProxyType({})
) -> dict[Worker, Worker]:
    """The cells of a grid, each stage filled from its first pipeline on, in the order of workers.

    Some have their `places` already.
    """
    taken = set(places.values())
    cells = dict(places)
    for worker, stage in sorted(stages.items()):
        if worker not in places:
            cells[worker] = next((rank, stage) for rank in count() if (rank, stage) not in taken)
            taken.add(cells[worker])
    return cells
