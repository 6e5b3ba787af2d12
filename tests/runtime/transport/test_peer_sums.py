"""Sums among the holders of a chunk that some of them get, over every transport."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

from recycle_runtime.transport.cuda_ipc import CudaIpcTransport
from recycle_runtime.transport.gloo import GlooTransport
from recycle_runtime.transport.interface import Grid, PeerSum
from recycle_runtime.transport.nccl import NcclTransport
from tests.runtime.transport.shared_host import SharedHost
from tests.runtime.transport.standing import HostQueues, StandingLibrary
from tests.runtime.transport.workers import in_threads

WORKERS = [(0, 0), (1, 0), (2, 0)]
GRID = Grid(WORKERS, 1, 3, has_shards=True)
PATIENCE = timedelta(seconds=120)
Join = Callable[[dist.Store, Any, tuple[int, int]], Any]


def gloo(store: dist.Store, _: Any, worker: tuple[int, int]) -> Any:
    return GlooTransport(store, "group", GRID, worker, 0, PATIENCE)


def nccl(store: dist.Store, library: Any, worker: tuple[int, int]) -> Any:
    return NcclTransport(store, "group", GRID, worker, 0, PATIENCE, [], library, HostQueues())


def shared(store: dist.Store, device: Any, worker: tuple[int, int]) -> Any:
    return CudaIpcTransport(store, "group", GRID, worker, 0, PATIENCE, device, {})


every_transport = pytest.mark.parametrize(
    ("join", "between"), [(gloo, object), (nccl, StandingLibrary), (shared, SharedHost)]
)


@every_transport
def test_takers_get_the_same_bits(join: Join, between: Callable[[], Any]) -> None:
    store, common = dist.HashStore(), between()
    found: dict[int, list[torch.Tensor]] = {}

    def talk(number: int) -> None:
        transport = join(store, common, WORKERS[number])
        flat = torch.arange(12, dtype=torch.float32) / 3 + number
        code = torch.full((5,), number, dtype=torch.uint8)
        given = torch.full((4,), 10 * number + 1, dtype=torch.uint8)
        for _ in range(2):
            # The second time, with what the first has left where it counts.
            sums = [
                PeerSum(flat[:4], takers=(1, 2)),
                PeerSum(flat[4:9], takers=(2,)),
                PeerSum(flat[9:]),
                PeerSum(code, sources=(1,)),
                PeerSum(given, sources=(2,), takers=(0,)),
            ]
            pending = transport.start_peer_sums(0, sums)
            pending.wait()
            found.setdefault(number, []).append(flat.clone())
            flat.copy_(torch.arange(12, dtype=torch.float32) / 3 + number)
        total = torch.full((3,), 2.0**number)
        pending = transport.start_peer_sums(0, [PeerSum(total)], goes_on=True)
        pending.wait()
        assert total.tolist() == [7.0] * 3
        assert code.tolist() == [1] * 5
        assert given.tolist() == [21 if number in (0, 2) else 11] * 4
        transport.barrier()
        transport.close()

    in_threads([lambda number=number: talk(number) for number in range(3)])
    expected = torch.arange(12, dtype=torch.float32) + 3
    for once in range(2):
        torch.testing.assert_close(found[1][once][:4], expected[:4])
        assert torch.equal(found[1][once][:4], found[2][once][:4])
        torch.testing.assert_close(found[2][once][4:9], expected[4:9])
        for number in range(3):
            torch.testing.assert_close(found[number][once][9:], expected[9:])


@every_transport
def test_memory_is_held_until_it_has_been_used(join: Join, between: Callable[[], Any]) -> None:
    """Whoever starts a copy and lets go of its tensor may be given the same memory for the next one."""
    store, common = dist.HashStore(), between()
    held: dict[int, bool] = {}

    def talk(number: int) -> None:
        transport = join(store, common, WORKERS[number])
        tensor = torch.full((5,), float(number))
        memory = StorageWeakRef(tensor.untyped_storage())
        pending = transport.start_peer_sums(0, [PeerSum(tensor, (0,), (1, 2))])
        del tensor
        held[number] = not memory.expired()
        pending.wait()
        transport.barrier()
        transport.close()

    in_threads([lambda number=number: talk(number) for number in range(3)])
    assert held == dict.fromkeys(range(3), True)
