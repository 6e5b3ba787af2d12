"""Which sockets an order to leave shuts down, and which it must not."""

import socket
from collections.abc import Generator
from contextlib import contextmanager

from recycle_runtime.transport.sockets import GroupSockets, keep, making_group


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
