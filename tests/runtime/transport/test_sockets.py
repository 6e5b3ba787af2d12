"""Sockets that an order to leave shuts down, and those that it must not."""

import os
import select
import socket
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from recycle_runtime.transport import sockets as module
from recycle_runtime.transport.sockets import GroupSockets, keep, making_group, not_after_fork


@contextmanager
def pair() -> Generator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def is_shut(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False


def test_what_the_group_has_opened_and_nothing_else() -> None:
    with pair() as (before, _):
        sockets = GroupSockets()
        with pair() as (own, _), pair() as (kept, end):
            keep(kept.fileno())
            keep(end.fileno())
            sockets.break_off()
            assert [is_shut(sock) for sock in (before, own, kept)] == [False, True, False]


def test_connections_that_a_group_opens_while_it_is_being_left() -> None:
    sockets = GroupSockets()
    sockets.break_off()
    with pair() as (later, _):
        sockets.break_off()
        assert is_shut(later)


def test_one_that_is_closed_while_the_group_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """As threads of NCCL do: it is seen, and gone before anything can be done with it."""

    def seen() -> dict[int, int]:
        found = see()
        passing.close()
        return found

    sockets, see = GroupSockets(), module._sockets  # pyright: ignore[reportPrivateUsage]
    with pair() as (own, _), pair() as (passing, _):
        monkeypatch.setattr(module, "_sockets", seen)
        with making_group(sockets):
            pass
        sockets.break_off()
        assert is_shut(own)


def test_what_is_opened_later_belongs_to_others() -> None:
    sockets = GroupSockets()
    with pair() as (own, _):
        with making_group(sockets):
            pass
        with pair() as (later, _):
            sockets.break_off()
            assert is_shut(own) and not is_shut(later)


def test_a_group_that_is_gone_shuts_nothing_of_the_next() -> None:
    sockets = GroupSockets()
    sockets.retire()
    sockets.complete()
    with pair() as (of_the_next, _):
        sockets.break_off()
        assert not is_shut(of_the_next)


def test_a_forked_process_keeps_no_connection_of_the_job_open() -> None:
    """The other end of each sees its end while the child lives; what the user's code has opened stays."""
    sockets = GroupSockets()
    with making_group(sockets):
        group, group_end = socket.socketpair()
    link, link_end = socket.socketpair()
    store, store_end = socket.socketpair()
    users, users_end = socket.socketpair()
    with group, group_end, link, link_end, store, store_end, users, users_end:
        assert not os.get_inheritable(group.fileno())
        keep(link.fileno())
        not_after_fork(store.fileno())
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            users.sendall(b"here")
            os.read(reader, 1)
            os._exit(0)
        try:
            assert users_end.recv(4) == b"here", "it has let go of the others by now"
            for own in (group, link, store, users):
                own.close()
            # One end of the group's pair is as much its own as the other.
            assert select.select([link_end, store_end], [], [], 0)[0] == [link_end, store_end]
            assert link_end.recv(1) == store_end.recv(1) == b""
            assert not select.select([users_end], [], [], 0)[0], "the child has it still"
            assert group_end.recv(1) == b""
        finally:
            os.close(writer)
            os.close(reader)
            os.waitpid(child, 0)


def test_one_that_listens_is_shut_where_a_group_has_it_to_itself() -> None:
    """Whoever waits at it looks up at once, twice if need be."""
    for claims in (False, True):
        sockets = GroupSockets()
        with socket.create_server(("127.0.0.1", 0)) as server:
            sockets.complete()
            if claims:
                sockets.claim()
            sockets.break_off()
            for _ in range(2):
                assert bool(select.select([server], [], [], 0)[0]) == claims
            sockets.retire()
