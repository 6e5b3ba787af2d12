"""The simulated transport of a group of workers, and pairs of processes that hand over a state."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

from recycle_runtime.execution.optimizer import Totals
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.transport.guarded import PeerError, Waits, guarded_wait
from recycle_runtime.transport.interface import Grid
from tests.runtime.world.arithmetic import Gradients
from tests.runtime.world.loop import LoopProcess, Pending
from tests.runtime.world.network import End, Network, Node, Pipe


class Wire:
    """A connection between two worker processes: what has arrived, and who waits for it."""

    def __init__(self) -> None:
        self.data: deque[Any] = deque()
        """Messages that nobody has asked for yet."""
        self.waiting: deque[Pending] = deque()
        self.sums: dict[Any, Any] = {}
        self.sum_waits: dict[Any, Pending] = {}
        self.error: str | None = None
        self.is_forgetful = False
        """Whoever waits is not told when it breaks."""
        self.pipe: Pipe | None = None
        self.end: End | None = None

    def arrived(self, message: Any) -> None:
        key, value = message
        if key is not None:
            self.sums[key] = value
            if (waiting := self.sum_waits.pop(key, None)) is not None:
                waiting.give()
        elif self.waiting:
            self.waiting.popleft().give(value)
        else:
            self.data.append(value)

    def broken(self, why: str = "connection reset by peer") -> None:
        if self.error is not None:
            return
        self.error = why
        if self.is_forgetful:
            return
        for waiting in self.take_noticing():
            waiting.fail(RuntimeError(why))

    def take_noticing(self) -> list[Pending]:
        """The waits that fail when the connection breaks."""
        waits, self.waiting, self.sum_waits = [*self.waiting, *self.sum_waits.values()], deque(), {}
        return waits

    def send(self, key: Any, value: Any) -> None:
        if self.error is not None:
            raise RuntimeError(self.error)
        assert self.pipe is not None and self.end is not None
        self.pipe.send(self.end, (key, value))

    def receive(self) -> Pending:
        """The next message, in the order in which they are asked for."""
        pending = Pending()
        if self.data:
            pending.give(self.data.popleft())
        elif self.error is not None:
            pending.fail(RuntimeError(self.error))
        else:
            self.waiting.append(pending)
        return pending

    def wait_for(self, key: Any) -> Pending:
        pending = Pending()
        if key in self.sums:
            pending.give()
        elif self.error is not None:
            pending.fail(RuntimeError(self.error))
        else:
            self.sum_waits[key] = pending
        return pending

    def close(self) -> None:
        if self.pipe is not None and self.end is not None:
            self.pipe.close(self.end)
        self.broken("the group is left")


class Listener:
    """A process that waits for others to connect, as gloo's pairs do."""

    def __init__(self, process: LoopProcess, node: Node) -> None:
        self.process, self.node = process, node
        self.is_open = True
        self.connected: dict[Any, Wire] = {}
        """By who they say they are."""
        self.waits: dict[Any, Pending] = {}

    def accept(self, who: Any, wire: Wire) -> None:
        self.connected[who] = wire
        if (waiting := self.waits.pop(who, None)) is not None:
            waiting.give()

    def fail(self, why: str) -> None:
        self.is_open = False
        waits, self.waits = self.waits, {}
        for waiting in waits.values():
            waiting.fail(RuntimeError(why))
        for wire in self.connected.values():
            wire.close()


class Ports:
    """All listeners of the world by their number, and how one connects to them."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._listeners: list[Listener] = []

    def listen(self, process: LoopProcess, node: Node) -> tuple[int, Listener]:
        self._listeners.append(Listener(process, node))
        return len(self._listeners) - 1, self._listeners[-1]

    def connect(
        self, process: LoopProcess, node: Node, number: int, who: Any, make: Callable[[], Wire] = Wire
    ) -> Pending:
        """A wire, once there is a connection; RuntimeError if nobody listens any more."""
        found = Pending()
        network, listener = self._network, self._listeners[number]
        loop = network.loop

        def knock() -> None:
            if not network.reaches(node, listener.node):
                loop.at(loop.now + 1.0, process, knock)
            elif not (listener.is_open and listener.process.is_alive):
                found.fail(RuntimeError("connection refused"))
            else:
                mine, theirs = make(), make()
                near = End(process, node, mine.arrived, mine.broken, patience=(30.0, 60.0))
                far = End(
                    listener.process, listener.node, theirs.arrived, theirs.broken, patience=(30.0, 60.0)
                )
                pipe = network.pipe(near, far)
                mine.pipe = theirs.pipe = pipe
                mine.end, theirs.end = near, far
                loop.at(
                    loop.now + network.delay(node, listener.node),
                    listener.process,
                    listener.accept,
                    who,
                    theirs,
                )
                found.give(mine)

        loop.at(loop.now + network.delay(node, listener.node), process, knock)
        return found


class GroupSum:
    """A sum over all workers that is under way."""

    def __init__(self, group: "GroupTransport", key: Any, own: Totals) -> None:
        self._group, self._key, self._own = group, key, own

    async def arrive(self) -> None:
        for wire in self._group.everybody:
            await self._group.waited(wire.wait_for(self._key))

    @property
    def is_whole(self) -> bool:
        """True if the shares of all others have arrived."""
        return all(self._key in wire.sums for wire in self._group.everybody)

    def total(self) -> Totals:
        shares = [self._own, *(wire.sums[self._key] for wire in self._group.everybody)]
        return Totals(sum(each.squares for each in shares), sum(each.not_finite for each in shares))


class RankGroup:
    """Stands for the process group of a worker's ranks: what goes through it is `GroupTransport.gather`."""

    def name(self) -> str:
        return "simulated"


class GroupTransport:
    """A transport for numbers, as `transport.interface.Transport` is for tensors."""

    tensor_group = RankGroup()
    broken_sums: frozenset[int] = frozenset()
    queued_left = 0
    """Instructions that a device had queued when the group was aborted, and that have not been run."""

    def __init__(
        self, grid: Grid, worker: Worker, wires: dict[Worker, Wire], ranks: dict[int, Wire], far: list[Wire]
    ) -> None:
        """`wires` go to this rank of other workers, `ranks` to the others of this one, `far` to the rest."""
        self.grid, self.worker, self.wires, self._ranks = grid, worker, wires, ranks
        self.everybody = [*wires.values(), *ranks.values(), *far]
        self._gathers = 0
        self.given_up = threading.Event()
        """Nobody waits for it here."""
        self.waits: Waits | None = None
        self._sums = 0
        self._peer_sums: dict[int, int] = {}
        self._barriers = 0

    @property
    def waits_on_device(self) -> bool:
        return False

    async def waited(self, pending: Any) -> Any:
        """For other workers, and shown to be so."""
        assert self.waits is not None
        if isinstance(pending, Pending) and pending.is_done and pending.error is None:
            return pending.value
        return await guarded_wait(pending, self.waits)

    arrived = waited
    """For a message, or a share of gradients."""

    def send(self, worker: Worker, value: Any) -> None:
        self._post([self.wires[worker]], None, value)

    def _post(self, wires: Iterable[Wire], key: Any, value: Any) -> None:
        try:
            for wire in wires:
                wire.send(key, value)
        except RuntimeError as error:
            raise PeerError(str(error)) from error

    def receive(self, worker: Worker) -> Pending:
        return self.wires[worker].receive()

    async def gather(self, own: Sequence[int]) -> list[Sequence[int]]:
        """Shares of all ranks of this worker: a collective of the user's program, which nobody guards."""
        key = self._start_gather(own)
        for wire in self._ranks.values():
            await wire.wait_for(key)
        return [own, *(wire.sums.pop(key) for wire in self._ranks.values())]

    def _start_gather(self, own: Sequence[int]) -> Any:
        self._gathers += 1
        key = "gather", self._gathers
        for wire in self._ranks.values():
            wire.send(key, tuple(own))
        return key

    def start_sum(self, own: Totals) -> GroupSum:
        self._sums += 1
        key = "norm", self._sums
        self._post(self.everybody, key, own)
        return GroupSum(self, key, own)

    async def peer_sums(self, chunk: int, sums: Sequence[float]) -> list[Sequence[float]]:
        """Shares of all live holders of a chunk, this one first; all holders ask in the same order."""
        key, peers = self._start_peer_sum(chunk, sums)
        for wire in peers:
            await self.arrived(wire.wait_for(key))
        return [sums, *(wire.sums.pop(key) for wire in peers)]

    def _start_peer_sum(self, chunk: int, sums: Sequence[float]) -> tuple[Any, list[Wire]]:
        number = self._peer_sums[chunk] = self._peer_sums.get(chunk, 0) + 1
        key, peers = ("gradients", chunk, number), self._peers(chunk)
        self._post(peers, key, tuple(sums))
        return key, peers

    def start_shares(self, chunk: int, shares: Sequence[Sequence[Any] | None]) -> Any:
        """Send each holder of a chunk what is for it, if there is anything; all of them begin in the same
        order."""
        number = self._peer_sums[chunk] = self._peer_sums.get(chunk, 0) + 1
        key = "gradients", chunk, number
        for worker, share in zip(self.grid.holders(chunk), shares, strict=True):
            if share is not None and any(each is not None for each in share):
                self._post([self.wires[worker]], key, share)
        return key

    async def shares(
        self, chunk: int, key: Any, wanted: Collection[int], *, are_sums: bool
    ) -> dict[int, Sequence[Any]] | None:
        """Tensors that some holders have sent, by their numbers; None where an abort leaves anything there.

        `are_sums`: a step is made with them. Copies that are cut off are made again.
        """
        wires = self.share_wires(chunk, wanted)
        for wire in wires.values():
            await self.arrived(wire.wait_for(key))
        return {number: wire.sums.pop(key) for number, wire in wires.items()}

    def share_wires(self, chunk: int, wanted: Collection[int]) -> dict[int, Wire]:
        holders = self.grid.holders(chunk)
        return {number: self.wires[holders[number]] for number in sorted(wanted)}

    def _peers(self, chunk: int) -> list[Wire]:
        """To the other live holders of a chunk."""
        return [self.wires[worker] for worker in self.grid.holders(chunk) if worker != self.worker]

    async def barrier(self) -> None:
        self._barriers += 1
        key = "barrier", self._barriers
        self._post(self.everybody, key, None)
        for wire in self.everybody:
            await self.waited(wire.wait_for(key))

    def abort(self) -> None:
        for wire in self.everybody:
            wire.broken("the group is broken off")

    def close(self) -> None:
        for wire in self.everybody:
            wire.close()


class PeerSum:
    """Hands `WorkerSteps` what has been summed already."""

    def __init__(self) -> None:
        self.shares: list[Sequence[float]] = []

    def start(self, gradients: Gradients) -> None:
        gradients.set([sum(column) for column in zip(*self.shares, strict=True)])


class GroupConnections:
    """Connections that a generation has opened: see `worker.connections`."""

    def __init__(self) -> None:
        self._opened: list[Any] = []

    def opening(self) -> Any:
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def opens_more(self) -> None: ...

    def use(self, transport: Any) -> None:
        self._opened.append(transport)

    def add(self, listener: Listener) -> None:
        self._opened.append(listener)

    def break_off(self) -> None:
        for each in list(self._opened):
            if isinstance(each, Listener):
                each.fail("the group is broken off")
            elif isinstance(each, GroupTransport):
                each.abort()
            else:
                each()

    def close(self) -> None:
        self.break_off()
        self._opened.clear()

    def opened(self) -> dict[int, int]:
        return {}


class SimulatedPair:
    """Two processes, one that sends and one that receives."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def send(self, data: torch.Tensor, meanwhile: Callable[[], None] | None = None) -> None:
        self._wire.send(None, data)
        if meanwhile is not None:
            meanwhile()
        await self._wire.receive()

    async def end(self) -> None:
        self._wire.send(None, None)

    async def receive(self, largest: int, meanwhile: Callable[[], None] | None = None) -> torch.Tensor | None:
        data = await self._wire.receive()
        if meanwhile is not None:
            meanwhile()
        if data is not None:
            self._wire.send(None, True)
        return data
