"""Owners of the shards of a chunk's optimizer state, among the live workers that hold the chunk.

    generation begins    all say which shards they hold; who answers for each, and who is to own it, follows
                         for all of them alike; weights go from owners to everybody
    step                 gradients are summed to the owners of their shard; each makes the same step with the
                         same numbers, so their states are equal to the last bit; weights go to everybody,
                         and each layer waits for its own before its next forward
    step stands          shards that lack an owner, or have one that owns too many, are copied, some in each
                         step, until they are where they should be

An owner that fails leaves another with the same state. Owners of a shard are on different hosts where the
chunk's holders are on several.
"""

import logging
import socket
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch

from recycle_runtime.execution.chunk import Answers, Chunk
from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.optimizer import (
    ExpertRow,
    LayerOptimizers,
    LayerUndo,
    OwnedPiece,
    StartPeerSums,
)
from recycle_runtime.execution.optimizer.by_layer import bytes_in
from recycle_runtime.execution.optimizer.gradient_part import BUCKET_BYTES
from recycle_runtime.execution.optimizer.shards import elements
from recycle_runtime.execution.optimizer.undo import Copies
from recycle_runtime.execution.session import Role
from recycle_runtime.execution.steps import OwnersLacking
from recycle_runtime.plan.shard_moves import wanted_owners
from recycle_runtime.state.expert_places import ExpertPlaces
from recycle_runtime.state.image import packed, read_image
from recycle_runtime.state.layer_state import optimizer_shard
from recycle_runtime.transport.interface import PeerSum, Pending, Transport
from recycle_runtime.transport.routes import Route, routed

_BYTES_A_STEP = 256 << 20
"""About how much of optimizer state may be copied between two steps."""
SENT_APART = 64 << 10
"""Bytes of weights that are sent from where they are to where they belong; fewer go together with others."""

_log = logging.getLogger(__name__)


class HolderStatus(NamedTuple):
    """Words of a holder of a chunk about itself when a generation begins."""

    host: int
    """A number for its host's name."""
    applied: int
    """Steps that its weights have seen."""
    has_read: bool
    """It can make any shard, since it has read all of them."""
    is_as_built: bool
    """It can do that as long as nothing has been stepped."""
    is_whole: bool
    """It works; one that waits to join owns nothing yet."""


class ShardCopy(NamedTuple):
    """One shard of one layer, from an owner to a holder that is to own it."""

    layer: int
    shard: int
    source: int
    target: int


class Ownership:
    """One worker's side, for one chunk and one generation."""

    def __init__(
        self,
        chunk: Chunk,
        owners: int,
        me: int,
        peers: int,
        start_sums: StartPeerSums,
        places: ExpertPlaces | None = None,
    ) -> None:
        """`me` is this worker's number among the `peers` that hold the chunk; `places` has their experts, if
        they share any."""
        self.chunk, self._owners, self._me, self._peers = chunk, owners, me, peers
        self._start, self._places = start_sums, places
        self._layers = [layer for layer in chunk.layers if layer.shards]
        self._first = 0
        """Peer that writes the state that all have."""
        self._held: dict[tuple[int, int], list[int]] = {}
        """Peers that hold the state of each shard of each layer, the one that answers for it first."""
        self._wanted: list[tuple[int, ...]] = []
        self._copies: list[ShardCopy] = []
        """Those that are still to be made."""
        self._rows: dict[ExpertRow, tuple[Layer, int, int]] = {}
        """Experts: see `_expert_rows`."""
        self._under_way: deque[_Gather] = deque()
        """Weights on their way to their peers, those of the first layers first."""
        self._when_here: list[Callable[[], None]] = []
        chunk.arrive = self.arrive
        self.bytes_given = 0
        """Of weights of experts, those that were sent to peers."""
        self._lacks_since: float | None = None
        self.on_change: Callable[[OwnersLacking | None], None] | None = None
        """Called when other shards are held here; also when owners are missing, or not any more."""
        self.go_on: Callable[[], None] = _go_on
        """Raises an error if the group is to be left: what has come may be what an abort has left."""

    def agree(self) -> None:
        """Agree on owners when a generation begins; all holders of the chunk are here."""
        for layer in () if self.chunk.is_whole else self._layers:
            layer.own_nothing()
        held, who = self._exchange()
        able = [number for number, each in enumerate(who) if each.is_whole]
        self._first = able[0]
        if self._places is not None:
            self._places.agree(able, self.go_on)
        if not self._layers:
            # All have the whole state, and one of them writes it.
            self.chunk.answers = Answers(self._me == self._first)
            self._tell_change()
            return
        begins = max(each.applied for each in who) == 0
        makers = [n for n, each in enumerate(who) if each.has_read or (begins and each.is_as_built)]
        shards = len(self._layers[0].shards)
        whole = [
            frozenset(
                peer
                for peer in range(self._peers)
                if peer in makers or all(held[peer, place, shard] for place in range(len(self._layers)))
            )
            for shard in range(shards)
        ]
        self._wanted = wanted_owners(whole, [each.host for each in who], able, self._owners)
        self._held, self._copies = {}, []
        for place, layer in enumerate(self._layers):
            for shard, wanted in enumerate(self._wanted):
                self._place(
                    layer, shard, wanted, [p for p in range(self._peers) if held[p, place, shard]], makers
                )
        for layer in self._layers:
            layer.forget_values()
        self._drop_others()
        self._share_out()
        self.gather()
        self.arrive()

    def _place(
        self, layer: Layer, shard: int, wanted: Sequence[int], holders: list[int], makers: Sequence[int]
    ) -> None:
        """Whoever can make a shard that it should own does so now; the rest is copied later. One that nobody
        holds, and none of them can make, is made for them."""
        there = [*holders, *(peer for peer in wanted if peer in makers and peer not in holders)]
        there = there or list(makers[:1])
        if not there:
            raise LostShardError(f"no live worker holds shard {shard} of {layer.title}")
        self._held[layer.number, shard] = sorted(
            there, key=lambda peer: (peer not in wanted, peer != wanted[0])
        )
        if self._me in there and self._me not in holders:
            layer.own(shard)
        source = self._held[layer.number, shard][0]
        self._copies += [ShardCopy(layer.number, shard, source, peer) for peer in wanted if peer not in there]

    def gather(self) -> None:
        """Weights begin to go from those who answer for their shards to peers that do not own them, in the
        precision in which they are used."""
        self.arrive()
        started = map(self._start_gather, self._together())
        self._under_way.extend(each for each in started if each is not None)
        if self._rows:
            # All layers of a round are computed together.
            self.arrive()

    def arrive(self, layer: int | None = None) -> bool:
        """Weights of all layers up to this one are here: before this returns, or before anything that the
        device does from now on. True if those of all layers are."""
        while self._under_way and (layer is None or self._under_way[0].layer <= layer):
            self._under_way.popleft().finish()
        while self._when_here and not self._under_way:
            self._when_here.pop(0)()
        return not self._under_way

    def when_here(self, call: Callable[[], None]) -> None:
        """Once all weights that are on their way are here."""
        self._when_here.append(call)
        self.arrive(-1)

    def drop(self) -> None:
        """Nothing arrives any more."""
        self._under_way.clear()
        self._when_here.clear()

    def stepped(self) -> None:
        """A step is made: weights go to where the next one wants them."""
        if self._places is not None and self._places.place_anew(self.go_on):
            self._rows = self._expert_rows()
            self.chunk.stepper.gradients.place_experts(list(self._rows), self._me)
        self.gather()

    def _expert_rows(self) -> dict[ExpertRow, tuple[Layer, int, int]]:
        """Every expert of every stacked parameter, in the order that all peers have: with its layer, and the
        number of the parameter and of the shard."""
        found: list[tuple[int, int, int, int, Layer]] = []
        for layer in self._layers:
            for shard, rows in enumerate(layer.shards):
                for number in layer.experts.stacked:
                    found += [
                        (layer.number, number, expert, shard, layer)
                        for expert in range(rows[number].first, rows[number].last)
                    ]
        found.sort(key=lambda each: each[:3])
        made: dict[ExpertRow, tuple[Layer, int, int]] = {}
        for _, number, expert, shard, layer in found:
            stacked = layer.experts.stacked[number]
            placement = stacked.experts.exchange.placement
            here = placement.peers[self._me]
            row = ExpertRow(
                stacked.parameter,
                expert,
                tuple(self._held[layer.number, shard]),
                placement.holders[expert],
                tuple(slot for slot, each in enumerate(here) if each == expert),
            )
            made[row] = layer, number, shard
        return made

    def _together(self) -> list[list[Layer]]:
        """Layers whose weights travel together."""
        found: list[list[Layer]] = []
        size = BUCKET_BYTES
        for layer in self._layers:
            if size >= BUCKET_BYTES:
                found.append([])
                size = 0
            found[-1].append(layer)
            size += sum(map(bytes_in, layer.parameters))
        return found

    def _start_gather(self, layers: Sequence[Layer]) -> "_Gather | None":
        own, others, sums = Copies(), Copies(), list[PeerSum]()
        taken = list[torch.Tensor]()
        for (owners, dtype), weights in self._packs(layers).items():
            source, takers = owners[0], self._takers(owners)
            is_here = not takers or self._me == source or self._me in takers
            # An owner has them: what an abort leaves of a gather must not take their place.
            takes = is_here and self._me not in owners
            few = list[torch.Tensor]()
            for weight in weights:
                if not weight.is_contiguous() or bytes_in(weight) < SENT_APART:
                    few.append(weight)
                    continue
                memory = weight if takes or self._me == source else self._spare(weight, is_here=is_here)
                sums.append(PeerSum(memory, (source,), takers))
                if takes:
                    taken.append(weight)
            if not few:
                continue
            sizes = [weight.numel() for weight in few]
            memory = torch.empty(sum(sizes), dtype=dtype, device=few[0].device if is_here else "meta")
            for piece, weight in zip(memory.split(sizes), few, strict=True):
                if self._me == source:
                    own.add(piece.view(weight.shape), weight)
                elif takes:
                    others.add(weight, piece.view(weight.shape))
            sums.append(PeerSum(memory, (source,), takers))
        sums += self._expert_copies(layers, own, others)
        own.run()
        return _Gather(layers[0].number, self._start(sums), others, taken) if sums else None

    @staticmethod
    def _spare(weight: torch.Tensor, *, is_here: bool) -> torch.Tensor:
        """Memory for weights that this worker takes no part in, or has already."""
        return torch.empty_like(weight, device=weight.device if is_here else "meta")

    def _expert_copies(self, layers: Sequence[Layer], own: Copies, others: Copies) -> list[PeerSum]:
        """Weights of experts, from an owner of each to those who have it in a slot and do not own it."""
        ways: dict[torch.dtype, list[tuple[ExpertRow, Route]]] = {}
        for row, (layer, number, shard) in self._rows.items():
            if layer not in layers:
                continue
            mine = None
            if self._me in row.owners:
                first = layer.shards[shard][number].first
                mine = layer.owned[shard].rows[number].detach()[row.expert - first]
                for slot in row.slots:
                    own.add(row.parameter.detach()[slot], mine)
            # Owners take turns: each has the same bits.
            source = row.owners[row.expert % len(row.owners)]
            routes = ways.setdefault(row.parameter.dtype, [])
            routes += [
                (row, Route(source, taker, row.size, mine if source == self._me else None))
                for taker in row.holders
                if taker not in row.owners
            ]
        copies = list[PeerSum]()
        for dtype, found in ways.items():
            messages = routed([route for _, route in found], self._me, dtype, self.chunk.setting.device)
            self.bytes_given += messages.given
            copies += messages.copies
            for place, values in messages.taken.items():
                row = found[place][0]
                for slot in row.slots:
                    weight = row.parameter.detach()[slot]
                    others.add(weight, values.view(weight.shape))
        return copies

    def _packs(
        self, layers: Sequence[Layer]
    ) -> dict[tuple[tuple[int, ...], torch.dtype], list[torch.Tensor]]:
        """Weights of some layers that not all peers own, by type and owners, of which the first sends."""
        found: dict[tuple[tuple[int, ...], torch.dtype], list[torch.Tensor]] = {}
        for layer in layers:
            for shard, rows in enumerate(layer.shards):
                owners = tuple(self._held[layer.number, shard])
                for number, (parameter, each) in enumerate(zip(layer.parameters, rows, strict=True)):
                    if each and len(owners) < self._peers and number not in layer.experts.stacked:
                        weights = found.setdefault((owners, parameter.dtype), [])
                        weights.append(each.of(parameter.detach()))
        return found

    def _takers(self, owners: Sequence[int]) -> tuple[int, ...]:
        """Peers that are sent weights one by one; empty where weights go to all from peer to peer, as there
        is little that other owners need not have."""
        others = tuple(peer for peer in range(self._peers) if peer not in owners)
        return others if 3 * len(others) <= 2 * (self._peers - 1) else ()

    @property
    def is_complete(self) -> bool:
        """True if no shard has to be copied."""
        return not self._copies

    def settled(self) -> None:
        """The last step stands: some of the shards that should be elsewhere are copied."""
        if not self._copies:
            return
        size, now = 0, list[ShardCopy]()
        while self._copies and (not now or size < _BYTES_A_STEP):
            now.append(self._copies.pop(0))
            size += self._bytes_of(now[-1])
        self._copy(now)
        self._drop_others()
        if not self._copies:
            _log.info("all shards of chunk %d are with their owners again", self.chunk.number)
        self._share_out()

    def _bytes_of(self, copy: ShardCopy) -> int:
        """About: three numbers for each that is stepped."""
        layer = self._layer(copy.layer)
        pairs = zip(layer.parameters, layer.shards[copy.shard], strict=True)
        ranges = (elements(parameter, rows) for parameter, rows in pairs)
        return sum(3 * 4 * (stop - start) for start, stop in ranges)

    def _copy(self, copies: Sequence[ShardCopy]) -> None:
        device = self.chunk.setting.device
        images = {
            copy: packed("shard", [optimizer_shard(self.chunk, self._layer(copy.layer), copy.shard)])
            for copy in copies
            if copy.source == self._me
        }
        sizes = torch.zeros(len(copies), dtype=torch.float64, device=device)
        for place, copy in enumerate(copies):
            if copy in images:
                sizes[place] = images[copy].numel()
        self._run([PeerSum(size, (copy.source,)) for copy, size in zip(copies, sizes, strict=True)])
        counts = [int(each) for each in cast("list[float]", sizes.tolist())]  # pyright: ignore[reportUnknownMemberType]
        self.go_on()
        sums, taken = list[PeerSum](), dict[ShardCopy, torch.Tensor]()
        for copy, count in zip(copies, counts, strict=True):
            if copy in images:
                memory = images[copy].to(device)
            elif copy.target == self._me:
                memory = taken[copy] = torch.empty(count, dtype=torch.uint8, device=device)
            else:
                memory = torch.empty(count, dtype=torch.uint8, device="meta")
            sums.append(PeerSum(memory, (copy.source,), (copy.target,)))
        self._run(sums)
        images_taken = {copy: memory.cpu() for copy, memory in taken.items()}
        self.go_on()
        for copy, memory in images_taken.items():
            image = read_image(memory)
            if image is None:
                raise RuntimeError("what was sent is no shard")
            self._layer(copy.layer).own(copy.shard, image.state(image.names[0], device=device))
        for copy in copies:
            self._held[copy.layer, copy.shard].append(copy.target)

    def _drop_others(self) -> None:
        """Shards that others own, who all have them."""
        for (number, shard), holders in self._held.items():
            wanted = self._wanted[shard]
            if not set(wanted) <= set(holders):
                continue
            if self._me in holders and self._me not in wanted:
                self._layer(number).disown(shard)
            self._held[number, shard] = [peer for peer in wanted if peer in holders]

    def _share_out(self) -> None:
        """Gradients are summed to the owners of today, and what is owned here is stepped here."""
        chunk, pieces = self.chunk, list[OwnedPiece]()
        for layer in chunk.layers:
            if not layer.shards:
                pieces += [OwnedPiece(parameter, 0, ()) for parameter in layer.parameters]
                continue
            for shard, rows in enumerate(layer.shards):
                owners = tuple(self._held[layer.number, shard])
                whole = () if len(owners) == self._peers else owners
                pieces += [
                    OwnedPiece(parameter, elements(parameter, each)[0], whole)
                    for number, (parameter, each) in enumerate(zip(layer.parameters, rows, strict=True))
                    if each and number not in layer.experts.stacked
                ]
        steppers = [each for layer in chunk.layers for each in layer.steppers]
        rows = [row for layer in self._layers for row in layer.stepped_rows()]
        self._rows = self._expert_rows()
        chunk.stepper.gradients.share_out(
            pieces,
            rows,
            self._me,
            list(self._rows),
            is_shared_out=any(len(row.owners) < self._peers for row in self._rows),
        )
        chunk.stepper.use(LayerOptimizers(steppers), LayerUndo(steppers))
        answers: dict[int, list[int]] = {}
        for (number, shard), holders in self._held.items():
            if holders[0] == self._me:
                answers.setdefault(number, []).append(shard)
        chunk.answers = Answers(self._me == self._first, answers)
        chunk.is_shared_out = not self._copies
        self._tell_change()

    def _tell_change(self) -> None:
        if self.on_change is not None:
            self.on_change(self._news_of_lack())

    def _news_of_lack(self) -> OwnersLacking | None:
        lacking = sum(len(held) < len(self._wanted[shard]) for (_, shard), held in self._held.items())
        if bool(lacking) == (self._lacks_since is not None):
            return None
        now = time.monotonic()
        seconds = 0.0 if self._lacks_since is None else now - self._lacks_since
        self._lacks_since = now if lacking else None
        return OwnersLacking(self.chunk.number, len(self._held), len(self._wanted[0]), lacking, seconds)

    def _exchange(self) -> tuple[torch.Tensor, list[HolderStatus]]:
        """Holdings of each peer: a table by peer, layer and shard; and what each says about itself."""
        layers, shards = len(self._layers), max((len(layer.shards) for layer in self._layers), default=0)
        told = torch.zeros(self._peers, layers * shards + len(HolderStatus._fields), dtype=torch.float64)
        chunk = self.chunk
        mine = HolderStatus(
            zlib.crc32(socket.gethostname().encode()),
            chunk.applied,
            all(layer.waiting is not None for layer in self._layers),
            all(layer.is_as_built for layer in self._layers),
            chunk.is_whole,
        )
        told[self._me, : len(mine)] = torch.tensor(mine, dtype=torch.float64)
        for place, layer in enumerate(self._layers):
            for shard in layer.held:
                told[self._me, len(mine) + place * shards + shard] = 1
        there = told.to(chunk.setting.device)
        # Copies, no sums: if they are cut off, no step has been made with them.
        self._run([PeerSum(row, sources=(peer,)) for peer, row in enumerate(there)])
        told = there.cpu()
        self.go_on()
        rows = cast("list[list[float]]", told[:, : len(mine)].tolist())  # pyright: ignore[reportUnknownMemberType]
        who = [HolderStatus(int(row[0]), int(row[1]), *map(bool, row[2:])) for row in rows]
        return told[:, len(mine) :].reshape(self._peers, layers, shards) > 0, who

    def _run(self, sums: Sequence[PeerSum]) -> None:
        pending = self._start(sums)
        if pending is not None:
            pending.wait()

    def _layer(self, number: int) -> Layer:
        return next(layer for layer in self._layers if layer.number == number)


def _go_on() -> None:
    """Nobody asks to leave."""


class LostShardError(RuntimeError):
    """Optimizer state that no live worker holds."""


class _Gather(NamedTuple):
    """Weights of some layers, on their way."""

    layer: int
    """The first of them."""
    pending: Pending | None
    copies: Copies
    """From the memory that some of them come in."""
    taken: Sequence[torch.Tensor]
    """Those that come to where they belong."""

    def finish(self) -> None:
        if self.pending is not None:
            self.pending.wait()
        self.copies.run()
        for weight in self.taken:
            torch.autograd.graph.increment_version(weight)


def ownership_of(role: Role, chunks: Mapping[int, Chunk], transport: Transport) -> dict[int, Ownership]:
    """Of each chunk of a worker, among the live workers that hold it; nothing where state is in one piece."""
    found: dict[int, Ownership] = {}
    bundle = role.bundle
    for number, chunk in chunks.items() if bundle.owners else ():
        holders = role.grid.holders(number)
        start, me = partial(transport.start_peer_sums, number), holders.index(role.worker)
        places = None
        if bundle.slots:
            places = ExpertPlaces(chunk, bundle.slots, bundle.placed_every, me, len(holders), start)
        found[number] = Ownership(chunk, bundle.owners, me, len(holders), start, places)
    return found
