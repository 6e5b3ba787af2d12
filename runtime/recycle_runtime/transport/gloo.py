"""Messages and sums over gloo: CPU tensors, any machine.

Neither making a group nor dropping it may block without limit. So a thread of its own makes the group (see
`meeting`).

A group that goes waits for the sums under way in it, and it must: they may still write into gradients. But if
the sockets are broken off and the thread of a sum gets no notice, that wait ends only when its time is up. So
`drop` leaves it to a thread after a few seconds.
"""

import threading
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.transport.interface import Arrival, Grid, PeerSum, Pending, TensorSpec
from recycle_runtime.transport.meeting import hold_meeting
from recycle_runtime.transport.near_links import are_small, connect_near, is_small_message
from recycle_runtime.transport.peer_proof import Prove
from recycle_runtime.transport.sparse_group import make_group, met_by
from recycle_runtime.transport.user_group import user_group


def meet(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    """The group, when all processes are there; RuntimeError if one does not come, or it is called off.

    All processes of it are connected to each other. What goes wrong with the store is raised as it is.
    """
    gloo: Any = dist.ProcessGroupGloo
    return hold_meeting(lambda: gloo(store, rank, size, timeout))


def meet_neighbours(
    store: dist.Store, rank: int, size: int, timeout: timedelta, neighbours: Collection[int] = ()
) -> Any:
    """The same, with connections only to neighbours and to those that sums and barriers need."""
    return hold_meeting(lambda: make_group(store, rank, size, timeout, neighbours))


_PARTING_SECONDS = 3.0
"""Sums that are notified end in less; those that are not write nothing any more."""


def drop(groups: list[Any], seconds: float = _PARTING_SECONDS) -> None:
    """Empties the list, which should have the last references to the groups."""
    thread = threading.Thread(target=groups.clear, name="parting", daemon=True)
    thread.start()
    thread.join(seconds)


_TAG = 0
_FIRST_OF_PEERS = 2
"""The tag of the first of several copies among peers; 1 is that of the first hello."""
_GLOO = dist.ProcessGroup.BackendType.GLOO


class _Arrival:
    """A posted receive."""

    def __init__(self, tensors: list[torch.Tensor], works: list[Any]) -> None:
        self._tensors, self._works = tensors, works

    def wait(self) -> list[torch.Tensor]:
        for work in self._works:
            work.wait()
        return self._tensors


class _Departure:
    """A posted send. Gloo reports its end only to a wait, and drops tensors that are not referenced."""

    def __init__(self, held: "dict[_Departure, None]", works: list[Any], tensors: list[torch.Tensor]) -> None:
        self._held, self._works, self._tensors = held, works, tensors
        held[self] = None

    def wait(self) -> None:
        """Returns when the receiver has it all; what was held is let go of."""
        for work in self._works:
            work.wait()
        self._works, self._tensors = [], []
        self._held.pop(self, None)


class _Departures:
    """The same message to several processes of a worker."""

    def __init__(self, sent: list[Pending]) -> None:
        self._sent = sent

    def wait(self) -> None:
        for each in self._sent:
            each.wait()


class _PeerSums:
    """Sums among the holders of a chunk: one holder gets each, and sends it to the other takers. Copies alone
    begin at once."""

    def __init__(self, group: Any, sums: Sequence[PeerSum]) -> None:
        self._group, self._sums = group, sums
        self._me: int = group.rank()
        self._copies = [
            (number, each.tensor, (each.sources or each.takers or (0,))[0], each.takers)
            for number, each in enumerate(sums)
            if each.is_copy or len(each.takers) > 1
        ]
        """Tensors that go from one holder to others."""
        added = [each for each in sums if not each.is_copy]
        self._works = [_start_sum(group, each) for each in added] or self._start_copies()

    def wait(self) -> None:
        for work in self._works:
            work.wait()
        for work in self._start_copies():
            work.wait()

    def _start_copies(self) -> list[Any]:
        """Once."""
        works: list[Any] = []
        copies, self._copies = self._copies, []
        for number, tensor, source, takers in copies:
            others = [taker for taker in takers or range(self._group.size()) if taker != source]
            if self._me == source:
                works += [self._group.send([tensor], taker, _FIRST_OF_PEERS + number) for taker in others]
            elif self._me in others:
                works.append(self._group.recv([tensor], source, _FIRST_OF_PEERS + number))
        return works


def _start_sum(group: Any, one: PeerSum) -> Any:
    if not one.takers:
        return group.allreduce([one.tensor])
    options = dist.ReduceOptions()
    options.rootRank = one.takers[0]
    return group.reduce([one.tensor], options)


class GlooTransport:
    """One process's side of it. `name` tells this group from others in the same store."""

    broken_sums: frozenset[int] = frozenset()
    """None: a sum that is cut off raises an error."""

    def __init__(
        self,
        store: dist.Store,
        name: str,
        grid: Grid,
        worker: Worker,
        tp_rank: int,
        timeout: timedelta,
        neighbours: Iterable[Worker] = (),
        prove: Prove | None = None,
        *,
        is_beside: bool = False,
    ) -> None:
        """Messages go to and come from neighbours, who name this worker among theirs.

        With `prove`, those that are connected prove to each other that they belong to the job. One that
        `is_beside` another transport only adds up the few numbers of all workers, in copies: nothing is lost
        if gloo writes into these after the group is left.
        """
        self._grid, self._tp_rank, self._is_beside = grid, tp_rank, is_beside
        me = grid.rank(worker, tp_rank)

        def part(label: str, ranks: list[int], others: Collection[int] | None = ()) -> Any:
            """All processes make their groups in the same order; without `others`, each meets each."""
            inner, rank, size = dist.PrefixStore(f"{name}/{label}", store), ranks.index(me), len(ranks)
            if others is None:
                made, met = meet(inner, rank, size, timeout), [each for each in range(size) if each != rank]
            else:
                made = meet_neighbours(inner, rank, size, timeout, others)
                met = met_by(rank, size, others)
            if prove is not None:
                prove(made, f"{name}/{label}", rank, met)
            return made

        self._out = {neighbour: grid.receivers(worker, tp_rank, neighbour) for neighbour in neighbours}
        """Processes that get what is sent to a worker."""
        sources = {grid.rank(neighbour, tp_rank) for neighbour in self._out}
        others = sorted(sources.union(*self._out.values()))
        self._all: Any = part("all", list(range(grid.size)), others)
        self._holders: dict[int, Any] = {
            group.number: part(
                f"holders/{group.name}", group.ranks, range(len(group.ranks)) if grid.has_shards else ()
            )
            for group in ([] if is_beside else grid.sum_groups(worker, tp_rank))
        }
        """Of each chunk of this worker, those that hold it."""
        self.tensor_group: Any = None
        """The processes of this worker, None if there is only this one."""
        tensor_ranks = grid.tensor_ranks(worker)
        if len(tensor_ranks) > 1 and not is_beside:
            # What the user's program does in it is not known.
            made = part(f"tensor/{worker[0]}/{worker[1]}", tensor_ranks, None)
            self.tensor_group = user_group(made, _GLOO, ("cpu", "cuda"))
        self._sent: dict[_Departure, None] = {}
        self._near = connect_near(self._all, me, others, timeout)
        """To those of the neighbours that are on this host, for small messages."""

    def send(self, worker: Worker, tensors: Sequence[torch.Tensor]) -> Pending | None:
        whole = [tensor.contiguous() for tensor in tensors]
        sent = [self._send_to(rank, whole) for rank in self._out[worker]]
        under_way = [each for each in sent if each is not None]
        return under_way[0] if len(under_way) == 1 else _Departures(under_way) if under_way else None

    def _send_to(self, rank: int, tensors: list[torch.Tensor]) -> Pending | None:
        near = self._near.get(rank)
        if near is not None and are_small(tensors):
            return near.send(tensors)
        works = [self._all.send([tensor], rank, _TAG) for tensor in tensors]
        return _Departure(self._sent, works, tensors)

    def receive(self, worker: Worker, specs: Sequence[TensorSpec]) -> Arrival:
        rank = self._grid.rank(worker, self._tp_rank)
        near = self._near.get(rank)
        if near is not None and is_small_message(specs):
            return near.receive(specs)
        tensors = [torch.empty(spec.shape, dtype=spec.dtype) for spec in specs]
        return _Arrival(tensors, [self._all.recv([tensor], rank, _TAG) for tensor in tensors])

    def start_peer_sum(self, chunk: int, tensor: torch.Tensor) -> Pending | None:
        holders = self._holders[chunk]
        return holders.allreduce([tensor]) if holders.size() > 1 else None

    def start_peer_sums(
        self, chunk: int, sums: Sequence[PeerSum], *, goes_on: bool = False, after: Any = None
    ) -> Pending | None:
        holders = self._holders[chunk]
        return _PeerSums(holders, sums) if holders.size() > 1 else None

    def start_sum(self, tensor: torch.Tensor) -> Pending | None:
        return self._all.allreduce([tensor])

    def barrier(self) -> None:
        self._all.barrier().wait()

    def flush(self) -> None:
        for departure in list(self._sent):
            departure.wait()
        for near in self._near.values():
            near.flush()

    def close(self) -> None:
        for near in self._near.values():
            near.close()
        self._near.clear()
        # Whoever waits for this process hears of it when the last reference goes.
        self._sent.clear()
        groups = [self._all, *self._holders.values(), self.tensor_group]
        self._all = self.tensor_group = None
        self._holders.clear()
        drop(groups, 0.0 if self._is_beside else _PARTING_SECONDS)
