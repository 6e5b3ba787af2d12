"""Messages and sums over gloo: CPU tensors, any machine."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.transport import Arrival, Pending, TensorSpec
from recycle_runtime.transport.grid import Grid
from recycle_runtime.transport.meeting import meet
from recycle_runtime.transport.parting import drop
from recycle_runtime.transport.user_group import user_group

_TAG = 0
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
    """A posted send. Gloo tells only those who wait for it that it is gone, and loses what nobody holds."""

    def __init__(self, held: "dict[_Departure, None]", works: list[Any], tensors: list[torch.Tensor]) -> None:
        self._held, self._works, self._tensors = held, works, tensors
        held[self] = None

    def wait(self) -> None:
        """Returns when the receiver has it all; what was held is let go of."""
        for work in self._works:
            work.wait()
        self._works, self._tensors = [], []
        self._held.pop(self, None)


class GlooTransport:
    """One process's side of it. `name` sets this group of workers apart from others in the same store."""

    def __init__(
        self, store: dist.Store, name: str, grid: Grid, worker: Worker, part: int, timeout: timedelta
    ) -> None:
        self._grid, self._part = grid, part
        groups: list[tuple[str, list[int]]] = [("all", list(range(grid.size)))]
        peers = [grid.rank(peer, part) for peer in grid.peers(worker[1])]
        groups.append((f"peers/{worker[1]}/{part}", peers))
        if grid.tensor > 1:
            pieces = [grid.rank(worker, piece) for piece in range(grid.tensor)]
            groups.append((f"tensor/{worker[0]}/{worker[1]}", pieces))
        me = grid.rank(worker, part)
        made = [_group(store, f"{name}/{label}", ranks, me, timeout) for label, ranks in groups]
        self._all: Any = made[0]
        self._peers: Any = made[1]
        self.tensor_group: Any = user_group(made[2], _GLOO, ("cpu", "cuda")) if grid.tensor > 1 else None
        """The processes of this worker, None if there is only this one."""
        self._sent: dict[_Departure, None] = {}

    def send(self, worker: Worker, tensors: Sequence[torch.Tensor]) -> Pending:
        rank = self._grid.rank(worker, self._part)
        whole = [tensor.contiguous() for tensor in tensors]
        works = [self._all.send([tensor], rank, _TAG) for tensor in whole]
        return _Departure(self._sent, works, whole)

    def receive(self, worker: Worker, specs: Sequence[TensorSpec]) -> Arrival:
        rank = self._grid.rank(worker, self._part)
        tensors = [torch.empty(spec.shape, dtype=spec.dtype) for spec in specs]
        return _Arrival(tensors, [self._all.recv([tensor], rank, _TAG) for tensor in tensors])

    def start_peer_sum(self, tensor: torch.Tensor) -> Pending | None:
        return self._peers.allreduce([tensor]) if self._peers.size() > 1 else None

    def start_sum(self, tensor: torch.Tensor) -> Pending | None:
        return self._all.allreduce([tensor])

    def barrier(self) -> None:
        self._all.barrier().wait()

    def flush(self) -> None:
        for departure in list(self._sent):
            departure.wait()

    def close(self) -> None:
        # Whoever waits for this process hears of it when the last reference goes.
        self._sent.clear()
        groups = [self._all, self._peers, self.tensor_group]
        self._all = self._peers = self.tensor_group = None
        drop(groups)


def _group(store: dist.Store, name: str, ranks: list[int], me: int, timeout: timedelta) -> Any:
    return meet(dist.PrefixStore(name, store), ranks.index(me), len(ranks), timeout)
