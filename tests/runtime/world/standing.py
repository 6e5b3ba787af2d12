"""Groups whose calls stand until they are aborted, as those of NCCL do.

Messages and sums of gradients do not notice that another worker is gone: a wait for one stands until its own
process aborts the group. An aborted call ends without an error, and with a number that means nothing. The
device has queued a few instructions behind it, which run on that number before anybody asks whether to leave.
Sums of the norm and barriers travel over gloo, and fail when a connection breaks.
"""

import random
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.transport.interface import Grid
from tests.runtime.world.group import GroupTransport, Wire
from tests.runtime.world.loop import Pending

_OVER_GLOO = ("norm", "barrier")
_LARGEST = 1_000_000
"""Of the numbers that an abort leaves behind."""
_MOST_QUEUED = 8
"""Instructions that a device has queued behind the one that it stands in."""


class Queued(NamedTuple):
    """Work that a device has queued when its group is aborted."""

    instructions: int
    sums: frozenset[int]
    """Chunks whose gradients these instructions sum, with peers or alone."""


class StandingWire(Wire):
    """A connection whose messages and sums of gradients end when they arrive, or by an abort."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self._is_over = False

    def arrived(self, message: Any) -> None:
        if not self._is_over:
            super().arrived(message)

    def send(self, key: Any, value: Any) -> None:
        if self.error is None or _is_over_gloo(key):
            super().send(key, value)

    def broken(self, why: str = "connection reset by peer") -> None:
        # A send ends when it is received: what nobody has used so far is gone with its sender.
        self.data.clear()
        for key in [key for key in self.sums if not _is_over_gloo(key)]:
            del self.sums[key]
        super().broken(why)

    def receive(self) -> Pending:
        pending = Pending()
        if self._is_over:
            pending.give(drawn(self._chance))
        elif self.data:
            pending.give(self.data.popleft())
        else:
            self.waiting.append(pending)
        return pending

    def wait_for(self, key: Any) -> Pending:
        if _is_over_gloo(key):
            return super().wait_for(key)
        pending = self.sum_waits[key] = Pending()
        if key in self.sums or self._is_over:
            self.sum_waits.pop(key).give()
        return pending

    def abort(self) -> None:
        """Nothing arrives and nothing leaves from now on."""
        self._is_over = True
        super().broken("the group is broken off")
        self.data.clear()
        while self.waiting:
            self.waiting.popleft().give(drawn(self._chance))
        for key in [key for key in self.sum_waits if not _is_over_gloo(key)]:
            self.sum_waits.pop(key).give()

    def take_noticing(self) -> list[Pending]:
        return [self.sum_waits.pop(key) for key in list(self.sum_waits) if _is_over_gloo(key)]


def _is_over_gloo(key: Any) -> bool:
    return key is not None and key[0] in _OVER_GLOO


def drawn(chance: random.Random) -> int:
    """A number as an abort leaves it behind."""
    return chance.randrange(1, _LARGEST)


class StandingTransport(GroupTransport):
    """One process's side of such a group."""

    def __init__(
        self,
        grid: Grid,
        worker: Worker,
        wires: dict[Worker, Wire],
        ranks: dict[int, Wire],
        far: list[Wire],
        chance: random.Random,
    ) -> None:
        super().__init__(grid, worker, wires, ranks, far)
        self._chance = chance
        self._is_over = False
        self._standing = 0
        """Waits of the device for other workers."""
        self._host_waits = False
        """True if the host waits for other workers: then nothing is queued behind it."""
        self._open_sums: dict[int, Callable[[], bool]] = {}
        """True if each sum of gradients under way has come to its end, by chunk."""
        self.queued: Callable[[int], Queued] = lambda most: Queued(0, frozenset())
        """What the device has queued, at most so many instructions."""

    @property
    def waits_on_device(self) -> bool:
        return self._standing > 0 and not self._is_over

    @property
    def is_over(self) -> bool:
        """True if it was aborted."""
        return self._is_over

    async def join(self) -> None:
        """Make communicators with all others; RuntimeError when an abort calls it off."""
        others, key = [*self.wires.values(), *self._ranks.values()], ("join",)
        for wire in others:
            wire.send(key, None)
        for wire in others:
            await wire.wait_for(key)
        if self._is_over:
            raise RuntimeError("called off while the group was being made")

    async def waited(self, pending: Any) -> Any:
        self._host_waits = True
        try:
            return await super().waited(pending)
        finally:
            self._host_waits = False

    async def arrived(self, pending: Any) -> Any:
        self._standing += 1
        try:
            return await pending
        finally:
            self._standing -= 1

    async def gather(self, own: Sequence[int]) -> list[Sequence[int]]:
        key, others = self._start_gather(own), list(self._ranks.values())
        await self._all_arrive(others, key)
        if not _is_whole(others, key):
            return [own, *(self._garbage(own) for _ in others)]
        return [own, *(wire.sums.pop(key) for wire in others)]

    async def peer_sums(self, chunk: int, sums: Sequence[float]) -> list[Sequence[float]]:
        key, peers = self._start_peer_sum(chunk, sums)
        self._open_sums[chunk] = partial(_is_whole, peers, key)
        await self.arrived(self._all_arrive(peers, key))
        del self._open_sums[chunk]
        if chunk in self.broken_sums:
            return [self._garbage(sums)]
        return [sums, *(wire.sums.pop(key) for wire in peers)]

    async def shares(
        self, chunk: int, key: Any, wanted: Collection[int], *, are_sums: bool
    ) -> dict[int, Sequence[Any]] | None:
        wires = self.share_wires(chunk, wanted)
        everyone = list(wires.values())
        if are_sums:
            self._open_sums[chunk] = partial(_is_whole, everyone, key)
        await self.arrived(self._all_arrive(everyone, key))
        if are_sums:
            del self._open_sums[chunk]
        if not _is_whole(everyone, key) or (are_sums and chunk in self.broken_sums):
            return None
        return {number: wire.sums.pop(key) for number, wire in wires.items()}

    async def _all_arrive(self, wires: Sequence[Wire], key: Any) -> None:
        """Stand until the shares of all others are here, or an abort; that of one who leaves is gone."""
        while not self._is_over and (missing := [wire for wire in wires if key not in wire.sums]):
            await missing[0].wait_for(key)

    def abort(self) -> None:
        """Broken sums are decided before the first wait ends."""
        if self._is_over:
            return
        self._is_over = True
        most = 0 if self._host_waits else self._chance.randint(0, _MOST_QUEUED)
        self.queued_left, queued = self.queued(most)
        cut_off = {chunk for chunk, is_whole in self._open_sums.items() if not is_whole()}
        self.broken_sums = queued | cut_off
        for wire in self.everybody:
            assert isinstance(wire, StandingWire)
            wire.abort()

    def close(self) -> None:
        self.abort()
        super().close()

    def drawn(self) -> int:
        """A number as this group's abort leaves it behind."""
        return drawn(self._chance)

    def _garbage(self, like: Sequence[float]) -> list[int]:
        return [drawn(self._chance) for _ in like]


def _is_whole(wires: Sequence[Wire], key: Any) -> bool:
    """True if the shares of all others have arrived."""
    return all(key in wire.sums for wire in wires)
