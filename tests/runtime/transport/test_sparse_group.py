"""Groups in which each process connects only to those that it talks to."""

import os
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.transport import sparse_group
from recycle_runtime.transport.sparse_group import make_group
from tests.runtime.transport.workers import in_threads

LONG = timedelta(seconds=120)


class CountingStore(dist.Store):  # pyright: ignore[reportUntypedBaseClass]
    """Counts what is read from it."""

    def __init__(self, table: dist.Store) -> None:
        super().__init__()
        self._table, self.read = table, set[str]()

    def set(self, key: str, value: str | bytes) -> None:
        table: Any = self._table
        table.set(key, value)

    def get(self, key: str) -> bytes:
        self.read.add(key)
        return self._table.get(key)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self._table.get(key) for key in keys]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._table.wait(keys)

    def check(self, keys: list[str]) -> bool:
        return self._table.check(keys)


def sockets() -> int:
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return sum(os.path.islink(link) and os.readlink(link).startswith("socket:") for link in links)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_everything_that_is_used_is_connected_before(size: int) -> None:
    table = dist.HashStore()
    stores = [CountingStore(table) for _ in range(size)]
    groups: dict[int, Any] = {}
    apart = size // 2

    def meet(rank: int) -> None:
        neighbours = {(rank + apart) % size, (rank - apart) % size}
        groups[rank] = make_group(stores[rank], rank, size, LONG, neighbours)

    in_threads([lambda rank=rank: meet(rank) for rank in range(size)])
    before = sockets()

    def use(rank: int) -> None:
        for length in (1, 10_000):
            tensor = torch.full((length,), float(rank))
            groups[rank].allreduce([tensor]).wait()
            assert tensor.unique().tolist() == [sum(range(size))]
        groups[rank].barrier().wait()
        if apart:
            sent, got = torch.tensor([float(rank)]), torch.zeros(1)
            work = groups[rank].send([sent], (rank + apart) % size, 0)
            groups[rank].recv([got], (rank - apart) % size, 0).wait()
            work.wait()
            assert got.item() == (rank - apart) % size

    in_threads([lambda rank=rank: use(rank) for rank in range(size)])
    assert sockets() == before
    # The addresses of a process's own circle and neighbours, and no others.
    assert all(len(store.read) <= min(size - 1, 8) for store in stores)


@given(st.integers(2, 200), st.data())
def test_both_ends_agree_on_the_order(size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, size - 1))
    others = [other for other in range(size) if other != rank]
    orders = [sparse_group._order(rank, other, size) for other in others]  # pyright: ignore[reportPrivateUsage]
    assert len(set(orders)) == len(orders)
    assert orders == [
        sparse_group._order(other, rank, size)  # pyright: ignore[reportPrivateUsage]
        for other in others
    ]
    circle = sparse_group._on_circle(rank, size)  # pyright: ignore[reportPrivateUsage]
    assert all(rank in sparse_group._on_circle(other, size) for other in circle)  # pyright: ignore[reportPrivateUsage]
