"""A group that is being made can be called off; one that is made is a group."""

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from recycle_runtime.protocol.codec import WireError
from recycle_runtime.transport.gloo import meet
from recycle_runtime.transport.meeting import CalledOffError, call_off

LONG = timedelta(seconds=120)


def test_two_meet() -> None:
    store = dist.HashStore()
    sums: dict[int, float] = {}

    def one(rank: int) -> None:
        group = meet(store, rank, 2, LONG)
        tensor = torch.tensor([float(rank + 1)])
        group.allreduce([tensor]).wait()
        sums[rank] = float(tensor)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {0: 3.0, 1: 3.0}


def test_whoever_waits_for_nobody_is_called_off() -> None:
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            meet(dist.HashStore(), 0, 2, LONG)
        except RuntimeError as error:
            outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while thread.is_alive():
        call_off()
        thread.join(0.05)
    assert [type(error) for error in outcome] == [CalledOffError]
    call_off()


def test_what_goes_wrong_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"timed out|Timeout|Wait"):
        meet(dist.HashStore(), 0, 2, timedelta(seconds=0.2))


class GoneStore(dist.Store):  # pyright: ignore[reportUntypedBaseClass]
    """As when the coordinator is gone."""

    def set(self, key: str, value: str | bytes) -> None:
        raise WireError("gone")


def test_so_is_a_store_that_is_gone() -> None:
    with pytest.raises(WireError, match="gone"):
        meet(GoneStore(), 0, 2, LONG)
