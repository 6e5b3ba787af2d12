"""Small messages between processes of one host."""

import socket
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from recycle_runtime.transport import near_links
from recycle_runtime.transport.gloo import GlooTransport
from recycle_runtime.transport.interface import Grid, TensorSpec
from recycle_runtime.transport.near_links import LARGEST, NearLink, are_small, connect_near, is_small_message
from recycle_runtime.transport.sockets import GroupSockets, making_group
from recycle_runtime.transport.sparse_group import make_group
from tests.runtime.transport.workers import in_threads

LONG = timedelta(seconds=120)
Ends = tuple[NearLink, NearLink]


@pytest.fixture
def ends() -> Generator[Ends]:
    here, there = (NearLink(each, LONG) for each in socket.socketpair())
    yield here, there
    here.close()
    there.close()


def specs_of(tensors: list[torch.Tensor]) -> list[TensorSpec]:
    return [TensorSpec.of(tensor) for tensor in tensors]


def are_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other)) and specs_of(one) == specs_of(other)


MESSAGES = [
    [torch.arange(12.0).view(3, 4)],
    [torch.tensor(7, dtype=torch.int64), torch.tensor([True, False]), torch.ones(5, dtype=torch.bfloat16)],
    [],
    [torch.empty(0, 3), torch.full((2, 2), 0.5, dtype=torch.float64)],
]


def test_messages_arrive_in_order_whatever_is_waited_for_first(ends: Ends) -> None:
    here, there = ends
    arrivals = [there.receive(specs_of(message)) for message in MESSAGES]
    assert [here.send(message) for message in MESSAGES] == [None] * len(MESSAGES)
    for place in (2, 0, 3, 1):
        assert are_equal(arrivals[place].wait(), MESSAGES[place])


def test_what_the_kernel_does_not_take_is_sent_later_and_in_order(ends: Ends) -> None:
    here, there = ends
    messages = [torch.full((LARGEST // 4,), float(number)) for number in range(200)]
    pending = [here.send([message]) for message in messages]
    assert pending[0] is None and pending[-1] is not None, "the kernel takes all of it: send more"
    for message in messages:
        assert torch.equal(there.receive(specs_of([message])).wait()[0], message)
    here.flush()
    for each in pending:
        assert each is None or each.wait() is None
    here.send([messages[3]])
    assert torch.equal(there.receive(specs_of([messages[3]])).wait()[0], messages[3])


def test_both_ends_hear_when_one_goes(ends: Ends) -> None:
    here, there = ends
    here.send(MESSAGES[0])
    here.close()
    assert are_equal(there.receive(specs_of(MESSAGES[0])).wait(), MESSAGES[0])
    with pytest.raises(RuntimeError, match="closed by a process of this host"):
        there.receive(specs_of(MESSAGES[0])).wait()
    with pytest.raises(RuntimeError, match="connection to a process of this host"):
        there.send(MESSAGES[0])


def test_what_waits_to_be_sent_ends_when_the_other_goes(ends: Ends) -> None:
    here, there = ends
    message = [torch.zeros(LARGEST // 4)]
    while (pending := here.send(message)) is None:
        pass
    there.close()
    with pytest.raises(RuntimeError, match="connection to a process of this host"):
        pending.wait()
    with pytest.raises(RuntimeError, match="connection to a process of this host"):
        here.flush()


@pytest.mark.parametrize("length", [3, 5])
def test_a_message_of_another_length_is_an_error(ends: Ends, length: int) -> None:
    here, there = ends
    here.send([torch.zeros(4)])
    with pytest.raises(RuntimeError, match=f"16 bytes came in the place of one of {4 * length}"):
        there.receive([TensorSpec((length,), torch.float32)]).wait()


def test_nobody_waits_forever() -> None:
    here, there = (NearLink(each, timedelta(milliseconds=20)) for each in socket.socketpair())
    with pytest.raises(RuntimeError, match="in time"):
        there.receive(specs_of(MESSAGES[0])).wait()
    here.close()
    there.close()


def test_both_ends_agree_on_what_is_small() -> None:
    for count, small in ((LARGEST // 4, True), (LARGEST // 4 + 1, False)):
        tensors = [torch.zeros(1), torch.zeros(count - 1)]
        assert are_small(tensors) is small and is_small_message(specs_of(tensors)) is small


def linked(size: int) -> list[dict[int, NearLink]]:
    """Each of so many processes with links to its neighbours on a line."""
    table = dist.HashStore()
    links: list[dict[int, NearLink]] = [{} for _ in range(size)]

    def join(rank: int) -> None:
        others = [other for other in (rank - 1, rank + 1) if 0 <= other < size]
        group: Any = make_group(table, rank, size, LONG, others)
        links[rank] = connect_near(group, rank, others, LONG)
        group.barrier().wait()

    in_threads([lambda rank=rank: join(rank) for rank in range(size)])
    return links


def test_neighbours_find_each_other() -> None:
    links = linked(4)
    assert [sorted(each) for each in links] == [[1], [0, 2], [1, 3], [2]]
    links[2][1].send([torch.tensor([2.0, 1.0])])
    links[0][1].send([torch.tensor([0.0, 1.0])])
    spec = [TensorSpec((2,), torch.float32)]
    assert [links[1][other].receive(spec).wait()[0].tolist() for other in (0, 2)] == [[0.0, 1.0], [2.0, 1.0]]  # pyright: ignore[reportUnknownMemberType]
    for each in links:
        for link in each.values():
            link.close()


def test_a_name_that_leads_nowhere_leaves_it_to_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on another host, or in another network namespace."""
    reach: Any = near_links._reached  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(near_links, "_reached", lambda offer, rank: reach(b"0" * 32 + offer[32:], rank))  # pyright: ignore
    assert linked(3) == [{}, {}, {}]


def test_a_stranger_is_sent_away() -> None:
    listener: Any = near_links._Listener(2)  # pyright: ignore[reportPrivateUsage]
    reach: Any = near_links._reached  # pyright: ignore[reportPrivateUsage]
    stranger = reach(listener.offer[:-1] + bytes([listener.offer[-1] ^ 1]), 1)
    other = reach(listener.offer, 5)
    friend = reach(listener.offer, 1)
    found = listener.accepted([1])
    friend.sendall(b"hello")
    assert found[1].recv(5) == b"hello"
    assert stranger.recv(1) == b"" and other.recv(1) == b""
    for each in (stranger, other, friend, found[1]):
        each.close()
    listener.close()


def in_pair(work: Callable[[GlooTransport, int], None]) -> None:
    """Two neighbours, each in a thread with its transport."""
    grid, table = Grid([(0, 0), (0, 1)], 1, 1), dist.HashStore()

    def join(stage: int) -> None:
        made = GlooTransport(table, "first", grid, (0, stage), 0, LONG, [(0, 1 - stage)])
        work(made, stage)

    in_threads([lambda stage=stage: join(stage) for stage in (0, 1)])


def test_small_and_large_messages_between_two_workers() -> None:
    small, large = torch.arange(8.0), torch.arange(LARGEST / 2)

    def work(made: GlooTransport, stage: int) -> None:
        other = (0, 1 - stage)
        arrivals = [made.receive(other, specs_of([each])) for each in (large, small, large, small)]
        for each in (large, small, large + 1, small + 1):
            made.send(other, [each + stage])
        got = [arrival.wait()[0] - (1 - stage) for arrival in arrivals]
        assert are_equal(got, [large, small, large + 1, small + 1])
        made.flush()
        made.barrier()
        made.close()

    in_pair(work)


def test_a_wait_ends_when_the_sockets_of_the_group_are_broken_off() -> None:
    sockets = GroupSockets()
    arrivals: list[Any] = []

    def ask(made: GlooTransport, stage: int) -> None:
        arrivals.append((made, made.receive((0, 1 - stage), specs_of(MESSAGES[0]))))

    with making_group(sockets):
        in_pair(ask)

    def wait() -> None:
        with pytest.raises(RuntimeError, match="closed by a process of this host"):
            arrivals[0][1].wait()

    in_threads([wait, sockets.break_off])
    for made, _ in arrivals:
        made.close()
