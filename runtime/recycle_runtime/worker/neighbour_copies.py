"""A worker process's part in copies of state in the memory of nodes: it keeps its own, gives and holds
others', and begins with them after every worker of a stage has failed.

Memory belongs to the node (see `node_memory`), so a copy is there when the process that made it is gone. A
worker reads what its own node has, and is sent the rest by a worker of a node that has it: all of them tell
at the store what they have and need, and come to the same conclusion.
"""

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from math import lcm
from typing import NamedTuple

import torch

from recycle_runtime.checkpoint.checkpoint_folder import is_copy
from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.execution.optimizer.shards import stored_shard
from recycle_runtime.files import sentence
from recycle_runtime.plan.worker_ids import Worker, worker_text, workers_in
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.messages.generations import Go
from recycle_runtime.protocol.messages.neighbour_copies import (
    CopyFailed,
    CopyHeld,
    CopyKept,
    CopyMissed,
    GiveCopy,
    HoldCopy,
    KeepCopy,
)
from recycle_runtime.protocol.node_memory import SLOTS, NodeMemory, kept_from_others
from recycle_runtime.protocol.remote_store import StoreError
from recycle_runtime.protocol.surroundings import Queue
from recycle_runtime.state.image import Image, MemoryImage, free_others, images_in, read_image, write_image
from recycle_runtime.state.layer_state import (
    SHARDS,
    apply_states,
    needed,
    needed_shards,
    together,
    written_copies,
    written_states,
)
from recycle_runtime.state.names import CheckpointError
from recycle_runtime.transport.guarded import guarded_wait
from recycle_runtime.worker.engine import GroupResources, MeetingPlace
from recycle_runtime.worker.generation import Equipment, Interrupted
from recycle_runtime.worker.state_transfer import StatePair, receive_bytes, send_bytes

_log = logging.getLogger(__name__)
_LONGEST = 500
"""Characters of an error that are sent; the rest is cut off."""


_Process = tuple[Worker, int]
"""By the role of its worker, and the first of the tensor-parallel ranks that it stands for."""


class CopiesGoneError(CheckpointError):
    """The memory that had a part of a copy is gone."""


class _Offer(NamedTuple):
    """An image of a copy that a worker's node has."""

    size: int
    shards: tuple[str, ...]


class WorkerCopies:
    """Of one worker process; `line` says which files of the node's memory are its own to write."""

    def __init__(self, equipment: Equipment) -> None:
        self._equipment, self._link = equipment, equipment.link
        self._memory: NodeMemory | None = equipment.options.memory
        self._line = equipment.options.line
        self._prepared: KeepCopy | None = None
        """The copy that is to come, once there is memory for it."""
        self._places: dict[int, MemoryImage] = {}
        """Images that copies are written to, by slot."""
        self._is_busy = False

    # The copy of one's own state.

    def settled(self, chunks: Collection[Chunk]) -> None:
        """The last step of all these chunks stands: copy them, if it is time."""
        asked = self._link.copy
        applied = min(chunk.applied for chunk in chunks)
        if asked is None or applied == 0:
            return
        if applied < asked.step:
            self._prepare(asked, chunks)
            return
        self._link.copy = None
        if applied > asked.step or any(chunk.applied != applied for chunk in chunks) or self._is_busy:
            self._link.say(CopyMissed(asked.name))
            return
        self._keep(asked, chunks)

    def _prepare(self, asked: KeepCopy, chunks: Collection[Chunk]) -> None:
        if self._is_busy or self._prepared == asked:
            return
        self._prepared = asked
        with suppress(CheckpointError):
            tensors = together(written_states(chunks))
            self._memory_for(asked).prepare(tensors)

    def _memory_for(self, asked: KeepCopy) -> MemoryImage:
        slot = asked.slot % SLOTS
        if self._memory is None:
            raise CheckpointError("the agent of this worker has no memory for copies")
        if slot not in self._places:
            self._places[slot] = MemoryImage(self._memory.file(self._line, "own", slot))
        return self._places[slot]

    def _keep(self, asked: KeepCopy, chunks: Collection[Chunk]) -> None:
        """Training stops for the copy alone."""
        now = self._equipment.surroundings.now
        began = now()
        try:
            memory = self._memory_for(asked)
            shards = written_copies(chunks, memory)
        except (CheckpointError, OSError) as error:
            self._link.say(CopyFailed(asked.name, _words(error)))
            return
        self._is_busy = True
        pause = now() - began

        async def finish() -> None:
            try:
                self._equipment.hooks.at("copy", asked.step)
                size = memory.finish(asked.name, shards)
                names = tuple(shard.name for shard in shards)
                self._free_others((asked.name, *asked.keeps))
                assert self._memory is not None
                kept = CopyKept(asked.name, self._memory.number, names, size, pause, now() - began - pause)
                self._link.say(kept)
            except Exception as error:
                # Whatever it was, training goes on.
                self._link.say(CopyFailed(asked.name, _words(error)))
            finally:
                shards.clear()
                self._is_busy = False

        self._equipment.surroundings.start(finish, "copy")

    def _free_others(self, names: Collection[str]) -> None:
        """Free copies of other processes of this node that nobody needs, such as those of one that failed."""
        assert self._memory is not None
        own = {self._memory.file(self._line, kind, slot) for kind in ("own", "held") for slot in range(SLOTS)}
        free_others([file for file in self._memory.files if file not in own], names)

    # Copies of others.

    def obey(self, generation: int, worker: Worker, connections: GroupResources) -> None:
        """Between two steps: begin to give or to hold what was asked for."""
        while self._link.copies:
            order = self._link.copies.popleft()
            if order.generation == generation:
                connections.opens_more()
                self._pass_on(order, worker)

    def _pass_on(self, order: GiveCopy | HoldCopy, worker: Worker) -> None:
        ends = (worker, order.worker) if isinstance(order, GiveCopy) else (order.worker, worker)
        rank = self._equipment.tp_rank
        name = f"g{order.generation}/copy/{order.name}/{'/'.join(map(worker_text, ends))}/{rank}"

        async def work() -> None:
            try:
                if isinstance(order, GiveCopy):
                    await self._give(order, name)
                else:
                    await self._hold(order, name)
            except (RuntimeError, OSError, WireError) as error:
                # The other end may be gone; whoever asked deals with that.
                self._link.say(CopyFailed(order.name, _words(error)))

        self._equipment.surroundings.start(work, "copy")

    async def _give(self, order: GiveCopy, name: str) -> None:
        assert self._memory is not None
        file = self._memory.file(self._line, "own", order.slot % SLOTS)
        with kept_from_others(file):
            for image in images_in([file], order.name):
                await send_bytes(image.data, self._meet, name)

    async def _hold(self, order: HoldCopy, name: str) -> None:
        if self._memory is None:
            raise CheckpointError("the agent of this worker has no memory for copies")
        now = self._equipment.surroundings.now
        began = now()
        data = await receive_bytes(self._meet, name, order.size)
        image = read_image(data)
        if image is None or image.name != order.name:
            raise CheckpointError(f"{order.name}: what was sent is no part of it")
        write_image(self._memory.file(self._line, "held", order.slot % SLOTS), data)
        self._link.say(CopyHeld(order.name, self._memory.number, data.numel(), now() - began))

    async def _meet(self, name: str, rank: int) -> StatePair:
        # A connection of its own: a wait at the store blocks other requests on its connection.
        return await self._equipment.engine.pair(await self._equipment.engine.meeting_place(), name, rank)

    # The beginning.

    async def restore(self, chunks: Collection[Chunk], order: Go) -> None:
        """In the first generations after a stage was lost, chunks as built take over what the copy holds."""
        if order.restore is None or not is_copy(order.restore):
            return
        has_donor = order.copy_from is not None or order.donor is not None
        fresh = [] if has_donor else [chunk for chunk in chunks if chunk.is_fresh]
        wanted = [
            (chunk, needed(chunk, order.first_step), needed_shards(chunk, order.first_step))
            for chunk in fresh
        ]
        shards = {shard for _, wholes, _ in wanted for shard in wholes}
        shards |= {shard for _, _, parts in wanted for names in parts.values() for shard in names}
        peers = _processes(order, next(chunk.tensor for chunk in chunks), self._equipment.tp_rank)
        connections = self._equipment.engine.connections()
        self._link.on_leave = connections.break_off
        connections.opens_more()
        try:
            if self._link.asked > order.generation:
                raise Interrupted
            collected = self._collect(shards, order, order.restore, peers)
            images = await guarded_wait(collected, self._equipment.active)
        finally:
            self._link.on_leave = None
            connections.close()
        if gone := sorted(shards - _shards_of(images)):
            raise CopiesGoneError(f"{order.restore}: no node has {', '.join(gone)} in memory any more")
        accepts = self._equipment.options.accepts_changes
        for chunk, wholes, parts in wanted:
            states = {
                shard: _holder(images, shard).state(shard, about, accepts_changes=accepts)
                for shard, about in wholes.items()
            }
            for name, names in parts.items():
                states[name][SHARDS] = [
                    stored_shard(_holder(images, shard).state(shard, about, accepts_changes=accepts))
                    for shard, about in names.items()
                ]
            apply_states(chunk, states, order.restore)
            _log.info("chunk %d continues with %s from memory", chunk.number, order.restore)
            if chunk.is_first or chunk.is_last:
                # What has to be drawn to get there is drawn now, while nobody waits.
                chunk.data.approach(order.first_step)

    async def _collect(
        self, shards: set[str], order: Go, name: str, peers: Sequence[_Process]
    ) -> list[Image]:
        """The images of a copy that this node has, and those that the shards need beside them."""
        here = [] if self._memory is None else images_in(self._memory.files, name)
        offers = [_Offer(image.data.numel(), tuple(image.names)) for image in here]
        store = await self._equipment.engine.meeting_place()
        me = order.role, self._equipment.tp_rank
        told = await self._exchange(store, order, me, peers, offers, sorted(shards - _shards_of(here)))
        ways = list(_ways(told))
        given: list[Queue[None]] = [
            self._send(here[number].data, _way(order, giver, taker, number))
            for giver, taker, number, _ in ways
            if giver == me
        ]
        for giver, taker, number, size in ways:
            if taker == me:
                data = await receive_bytes(self._meet, _way(order, giver, taker, number), size)
                image = read_image(data)
                here += [] if image is None or image.name != name else [image]
        for each in given:
            # What others receive goes over connections that end with this.
            await each.get(None)
        return here

    async def _exchange(
        self,
        store: MeetingPlace,
        order: Go,
        me: _Process,
        peers: Sequence[_Process],
        offers: Sequence[_Offer],
        missing: Sequence[str],
    ) -> dict[_Process, tuple[list[_Offer], list[str]]]:
        """Images that each of these processes offers, and shards that it lacks."""
        place = f"g{order.generation}/copies"
        await store.set(f"{place}/{_text(me)}", json.dumps([offers, missing]))
        told: dict[_Process, tuple[list[_Offer], list[str]]] = {}
        for peer in peers:
            found, needs = json.loads(await store.get(f"{place}/{_text(peer)}"))
            told[peer] = [_Offer(int(size), tuple(names)) for size, names in found], needs
        return told

    def _send(self, data: torch.Tensor, name: str) -> "Queue[None]":
        """By a thread, for this process may have to receive at the same time; says when it is over."""
        around = self._equipment.surroundings
        is_over: Queue[None] = around.queue()

        async def give() -> None:
            # Whoever it is for may be gone; the next generation deals with that.
            with suppress(RuntimeError, WireError, StoreError):
                await send_bytes(data, self._meet, name)
            is_over.put(None)

        around.start(give, "copy")
        return is_over


def _processes(order: Go, tensor: int, tp_rank: int) -> list[_Process]:
    """Those that give each other images: of every worker the process of one rank. Where processes stand for
    several ranks, they and those of all these ranks."""
    fewer = dict(order.fewer)
    stands_for = {role: tensor // fewer.get(role, tensor) for role in sorted(workers_in(order.grid))}
    together = lcm(*stands_for.values())
    first = tp_rank - tp_rank % together
    return [
        (role, rank) for role, step in stands_for.items() for rank in range(first, first + together, step)
    ]


def _text(process: _Process) -> str:
    return f"{worker_text(process[0])}/{process[1]}"


def _way(order: Go, giver: _Process, taker: _Process, number: int) -> str:
    return f"g{order.generation}/images/{_text(giver)}/{_text(taker)}/{number}"


def _ways(
    told: Mapping[_Process, tuple[list[_Offer], list[str]]],
) -> Iterator[tuple[_Process, _Process, int, int]]:
    """Giver, taker, number and size of each image that travels: the same for all who compute it."""
    for taker, (_, needs) in told.items():
        left = set(needs)
        for giver, (offers, _) in told.items():
            for number, offer in enumerate(offers):
                if giver != taker and left & set(offer.shards):
                    left -= set(offer.shards)
                    yield giver, taker, number, offer.size


def _shards_of(images: Collection[Image]) -> set[str]:
    return {name for image in images for name in image.names}


def _holder(images: Sequence[Image], shard: str) -> Image:
    return next(image for image in images if shard in image.names)


def _words(error: BaseException) -> str:
    words = sentence(error) if isinstance(error, OSError) else str(error) or type(error).__name__
    return words[:_LONGEST]
