"""The group that programs get: what waits in it ends when the generation does, though gloo wakes nobody."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from recycle_runtime.transport.gloo import drop
from recycle_runtime.transport.guarded import PeerError
from recycle_runtime.transport.user_group import StandingGroup, user_group

SECONDS = 120.0
_gloo: Any = dist.ProcessGroupGloo

Waits = Callable[[Any], object]
"""Something that a program does with its group and that needs the other rank."""


class Ranks:
    """Both ranks of a worker in one process: connections stay as they are, so gloo has nothing to tell."""

    def __init__(self) -> None:
        store = dist.HashStore()
        self.given_up = threading.Event()
        self.groups = [StandingGroup(rank, 2) for rank in range(2)]

        def make(rank: int) -> Any:
            return _gloo(store, rank, 2, timedelta(seconds=5 * SECONDS))

        with ThreadPoolExecutor(2) as threads:
            self.made = list(threads.map(make, range(2)))
        for group, made in zip(self.groups, self.made, strict=True):
            behind = user_group(made, dist.ProcessGroup.BackendType.GLOO, ("cpu",))
            group.stand_before(behind, self.given_up)

    def both(self, does: Waits) -> list[Any]:
        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(does, self.groups))


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    made = Ranks()
    yield made
    made.given_up.set()
    for group in made.groups:
        group.stand_alone()
    # What waits in one for ever comes out when the other goes.
    drop(made.made)


def own(group: Any) -> torch.Tensor:
    return torch.full((2,), 1.0 + group.rank())


def plainly(group: Any) -> Any:
    dist.all_reduce(value := own(group), group=group)
    return value


def later(group: Any) -> Any:
    work = dist.all_reduce(value := own(group), group=group, async_op=True)
    assert work is not None
    work.wait()
    return value


def by_future(group: Any) -> Any:
    work = dist.all_reduce(own(group), group=group, async_op=True)
    assert work is not None
    return work.get_future().wait()[0]


def functionally(group: Any) -> Any:
    return functional.all_reduce(own(group), "sum", group) + 0


def gathering(group: Any) -> Any:
    dist.all_gather(values := [torch.zeros(2), torch.zeros(2)], own(group), group=group)
    return sum(values)


def scattering(group: Any) -> Any:
    group._reduce_scatter_base(value := torch.zeros(2), own(group).repeat(2)).wait()
    return value


def in_backward(group: Any) -> Any:
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            dist.all_reduce(value := own(group) * gradients[0], group=group)
            return value

    leaf = torch.zeros(2, requires_grad=True)
    result: Any = Sum.apply(leaf)
    result.sum().backward()
    return leaf.grad


def by_messages(group: Any) -> Any:
    other = 1 - group.rank()
    received = torch.zeros(2)
    works = [group.send([own(group)], other, 0), group.recv([received], other, 0)]
    for work in works:
        work.wait()
    return received + own(group)


# The first functional collective loads a compiler.
ALL = [plainly, later, by_future, gathering, scattering, in_backward, by_messages]
_functionally = pytest.param(functionally, marks=pytest.mark.slow)
_names = pytest.mark.parametrize("does", [*ALL, _functionally], ids=lambda does: does.__name__)


@_names
def test_what_both_enter_comes_to_an_end(ranks: Ranks, does: Waits) -> None:
    assert all(torch.equal(found, torch.full((2,), 3.0)) for found in ranks.both(does))


@_names
def test_what_only_one_enters_ends_when_the_group_is_given_up(ranks: Ranks, does: Waits) -> None:
    failed: list[BaseException] = []

    def enter() -> None:
        try:
            does(ranks.groups[0])
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    thread.join(0.3)
    assert (thread.is_alive(), failed) == (True, [])
    ranks.given_up.set()
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert "the group was given up" in str(failed[0])


def test_a_wait_with_a_limit_ends_at_it(ranks: Ranks) -> None:
    group: Any = ranks.groups[0]
    for work in (group.allreduce([own(group)]), group.recv([own(group)], 1, 0)):
        with pytest.raises(RuntimeError) as found:
            work.wait(timedelta(seconds=0.3))
        assert not isinstance(found.value, PeerError)


def test_what_gloo_says_is_passed_on(ranks: Ranks) -> None:
    group: Any = ranks.groups[0]
    work = group.allreduce([own(group)])
    del ranks.groups[1]
    ranks.made.pop()
    with pytest.raises(RuntimeError, match=r"(?i)connection|socket") as found:
        work.wait()
    assert not isinstance(found.value, PeerError)
    assert work.is_completed()


def test_a_rank_in_no_group_says_so() -> None:
    with pytest.raises(RuntimeError, match="allreduce was called while this worker is in no group"):
        dist.all_reduce(torch.zeros(1), group=StandingGroup(0, 2))
