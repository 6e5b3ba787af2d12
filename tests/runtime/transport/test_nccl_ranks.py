"""Collectives of a worker's ranks over NCCL give what gloo gives; what is aborted ends for good."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from recycle_runtime.transport.gloo import drop
from recycle_runtime.transport.guarded import PeerError
from recycle_runtime.transport.nccl_library import Membership
from recycle_runtime.transport.nccl_ranks import NcclRanks
from recycle_runtime.transport.user_group import StandingGroup, user_group
from tests.runtime.transport.standing import PATIENCE, HostQueues, StandingLibrary

RANKS = 3
_dist: Any = dist
gather_into_one, scatter_one = _dist.all_gather_into_tensor, _dist.reduce_scatter_tensor
"""Newer versions of torch have other names beside these."""
Does = Callable[[Any, torch.Tensor], object]
"""Something that a program does with its group and the numbers of its rank; what it gets."""


class Job:
    """The ranks of one worker as threads, over NCCL's stand-in or over gloo."""

    def __init__(self) -> None:
        self.library, self.queues = StandingLibrary(), HostQueues()
        name = self.library.unique_id()
        self.groups = [StandingGroup(rank, RANKS) for rank in range(RANKS)]
        self.given_up = threading.Event()
        with ThreadPoolExecutor(RANKS) as threads:
            wanted = [[Membership(name, rank, RANKS)] for rank in range(RANKS)]
            made = [joined for (joined,) in threads.map(self.library.join, wanted)]
        self.communicators = made
        for rank, communicator in enumerate(made):
            end = SimpleNamespace(communicator=communicator, lane="ranks", last=None)
            behind = NcclRanks(end, self.library, self.queues, rank, RANKS)
            self.groups[rank].stand_before(behind, self.given_up)

    def all(self, does: Does, numbers: Callable[[int], torch.Tensor]) -> list[Any]:
        with ThreadPoolExecutor(RANKS) as threads:
            return list(threads.map(does, self.groups, map(numbers, range(RANKS))))

    def end(self) -> None:
        for each in self.communicators:
            each.abort()


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job()
    yield made
    made.end()


@pytest.fixture(scope="module")
def over_gloo() -> Iterator[list[StandingGroup]]:
    store, gloo = dist.HashStore(), vars(dist)["ProcessGroupGloo"]

    def connected(rank: int) -> Any:
        return gloo(store, rank, RANKS, timedelta(seconds=PATIENCE))

    groups = [StandingGroup(rank, RANKS) for rank in range(RANKS)]
    with ThreadPoolExecutor(RANKS) as threads:
        made = list(threads.map(connected, range(RANKS)))
    for group, each in zip(groups, made, strict=True):
        behind = user_group(each, dist.ProcessGroup.BackendType.GLOO, ("cpu",))
        group.stand_before(behind, threading.Event())
    yield groups
    drop(made)


def summed(operation: Any) -> Does:
    def does(group: Any, own: torch.Tensor) -> object:
        dist.all_reduce(own, operation, group=group)
        return own

    return does


def sum_by_future(group: Any, own: torch.Tensor) -> object:
    work: Any = dist.all_reduce(own, group=group, async_op=True)
    return work.get_future().wait()


def reduced(group: Any, own: torch.Tensor) -> object:
    dist.reduce(own, group=group, group_dst=1)
    return own if group.rank() == 1 else None


def sent_to_all(group: Any, own: torch.Tensor) -> object:
    dist.broadcast(own, group=group, group_src=2)
    return own


def gathered(group: Any, own: torch.Tensor) -> object:
    dist.all_gather(values := [torch.zeros_like(own) for _ in range(RANKS)], own, group=group)
    return values


def gathered_in_one(group: Any, own: torch.Tensor) -> object:
    gather_into_one(value := own.repeat(RANKS, 1), own[:, ::2].repeat(1, 2), group=group)
    return value


def scattered(group: Any, own: torch.Tensor) -> object:
    parts = [own[:, :2] * factor for factor in range(1, RANKS + 1)]
    dist.reduce_scatter(value := torch.zeros_like(own[:, :2].contiguous()), parts, group=group)
    return value


def scattered_of_one(group: Any, own: torch.Tensor) -> object:
    whole = torch.cat([own * factor for factor in range(1, RANKS + 1)])
    scatter_one(value := torch.zeros_like(own), whole, group=group)
    return value


def exchanged(group: Any, own: torch.Tensor) -> object:
    """Rank i gives i + 1 rows to each, so gets as many as the other has."""
    rank = group.rank()
    rows = own.repeat(RANKS, 1)[: RANKS * (rank + 1)]
    value = torch.zeros(sum(range(1, RANKS + 1)), own.shape[1], dtype=own.dtype)
    dist.all_to_all_single(value, rows, [1, 2, 3], [rank + 1] * RANKS, group=group)
    return value


def exchanged_evenly(group: Any, own: torch.Tensor) -> object:
    value = torch.zeros_like(own[:RANKS])
    dist.all_to_all_single(value, own[:RANKS], group=group)
    return value


def gathered_by_one(group: Any, own: torch.Tensor) -> object:
    values = [torch.zeros_like(own) for _ in range(RANKS)] if group.rank() == 1 else None
    dist.gather(own, values, group=group, group_dst=1)
    return values


def scattered_by_one(group: Any, own: torch.Tensor) -> object:
    parts = [own * factor for factor in range(RANKS)] if group.rank() == 1 else None
    dist.scatter(value := torch.zeros_like(own), parts, group=group, group_src=1)
    return value


def passed_on(group: Any, own: torch.Tensor) -> object:
    group.send([own], (group.rank() + 1) % RANKS, 0)
    group.recv([value := torch.zeros_like(own)], (group.rank() - 1) % RANKS, 0).wait()
    return value


def met(group: Any, own: torch.Tensor) -> object:
    group.barrier().wait()
    return own


def functionally(group: Any, own: torch.Tensor) -> object:
    summed = functional.all_reduce(own, "sum", group)
    whole = functional.all_gather_tensor(summed * (1 + group.rank()), 0, group)
    part: Any = functional.reduce_scatter_tensor(whole, "sum", 0, group)
    return functional.wait_tensor(part)


ALL: list[Does] = [
    *(summed(getattr(dist.ReduceOp, name)) for name in ("SUM", "MAX", "MIN", "PRODUCT")),
    sum_by_future, reduced, sent_to_all, gathered, gathered_in_one, scattered_of_one, exchanged,
    exchanged_evenly, gathered_by_one, scattered_by_one, met, functionally,
]  # fmt: skip


def numbers_of(dtype: torch.dtype) -> Callable[[int], torch.Tensor]:
    def numbers(rank: int) -> torch.Tensor:
        chosen = torch.randint(1, 5, (4, 4), generator=torch.Generator().manual_seed(rank))
        return chosen.to(dtype) if dtype != torch.bool else chosen > 2

    return numbers


@pytest.mark.parametrize("does", ALL, ids=lambda does: does.__qualname__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
def test_as_gloo_does(job: Job, over_gloo: list[StandingGroup], does: Does, dtype: torch.dtype) -> None:
    found = job.all(does, numbers_of(dtype))
    job.groups = over_gloo
    torch.testing.assert_close(found, job.all(does, numbers_of(dtype)), rtol=0, atol=0)


def test_what_gloo_does_not(job: Job) -> None:
    numbers = numbers_of(torch.float64)
    every = torch.stack([numbers(rank) for rank in range(RANKS)])
    for found in job.all(summed(dist.ReduceOp.AVG), numbers):
        torch.testing.assert_close(found, every.mean(0))
    for rank, found in enumerate(job.all(scattered, numbers)):
        torch.testing.assert_close(found, every.sum(0)[:, :2] * (rank + 1))


def test_bools_are_added_up_as_torch_does(job: Job) -> None:
    numbers = numbers_of(torch.bool)
    every = torch.stack([numbers(rank) for rank in range(RANKS)])
    for found in job.all(summed(dist.ReduceOp.SUM), numbers):
        assert torch.equal(found, every.any(0))
    for found in job.all(summed(dist.ReduceOp.PRODUCT), numbers):
        assert torch.equal(found, every.all(0))


def test_messages(job: Job) -> None:
    def one_way(group: Any, own: torch.Tensor) -> object:
        if group.rank() < RANKS - 1:
            group.send([own], group.rank() + 1, 0)
        if group.rank() == 0:
            return own
        group.recv([value := torch.zeros_like(own)], group.rank() - 1, 0).wait()
        return value

    numbers = numbers_of(torch.float64)
    found = job.all(one_way, numbers)
    assert torch.equal(found[1], numbers(0))


def test_memory_is_held_until_computation_comes_after_it(job: Job) -> None:
    def does(group: Any, own: torch.Tensor) -> object:
        # Nobody but the group holds what is given; the stand-in looks.
        works = [group.allreduce([own + number]) for number in range(200)]
        works[-1].wait()
        return works[-1].result()[0]

    numbers = numbers_of(torch.float64)
    every = torch.stack([numbers(rank) for rank in range(RANKS)]).sum(0) + RANKS * 199
    assert all(torch.equal(found, every) for found in job.all(does, numbers))


def test_what_is_aborted_ends_and_nothing_begins_later(job: Job) -> None:
    group: Any = job.groups[0]
    lonely = group.allreduce([torch.zeros(2)])
    meeting = group.barrier()
    job.library.abort(job.communicators[:1], lambda: None, lambda: True)
    lonely.wait()
    with pytest.raises(PeerError, match="given up"):
        meeting.wait()
    with pytest.raises(PeerError, match="aborted"):
        group.allreduce([torch.zeros(2)])


def summed_up_by_xor(group: Any) -> None:
    dist.all_reduce(torch.zeros(2), dist.ReduceOp.BXOR, group=group)


def gathered_in_too_much(group: Any) -> None:
    gather_into_one(torch.zeros(5), torch.zeros(2), group=group)


def elsewhere(group: Any) -> None:
    dist.all_reduce(torch.zeros(2, device="meta"), group=group)


def uneven(group: Any) -> None:
    dist.all_to_all_single(torch.zeros(4), torch.zeros(4), group=group)


def scattered_memory(group: Any) -> None:
    group.allreduce([torch.zeros(4)[::2]])


MISTAKES: list[tuple[Callable[[Any], None], str]] = [
    (summed_up_by_xor, "NCCL has no collective with"),
    (gathered_in_too_much, "3 parts of 2 torch.float32 do not make 5"),
    (elsewhere, "a tensor on meta; it takes those on their devices"),
    (uneven, "4 rows cannot be divided among 3 ranks"),
    (scattered_memory, "must be contiguous"),
]


@pytest.mark.parametrize(("mistake", "why"), MISTAKES)
def test_mistakes(job: Job, mistake: Callable[[Any], None], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        mistake(job.groups[0])
