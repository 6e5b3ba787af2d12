"""The sockets of a group of workers, found so that another thread can break them off.

A thread that waits for a message over gloo cannot be called back, and groups end by waiting for what is under
way. But gloo's connections are sockets of this process: when they are shut down, whatever waits for them ends
with an error at once, here and at the other end.
"""

import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager


class GroupSockets:
    """Sockets that were opened while a group was made. No other thread should open any meanwhile."""

    def __init__(self, before: frozenset[int] | None = None) -> None:
        self._before = frozenset(_sockets().values()) if before is None else before
        self._own: frozenset[int] | None = None

    @classmethod
    def of_everything(cls) -> "GroupSockets":
        """All of this process, whoever opened them."""
        return cls(frozenset())

    def complete(self) -> None:
        """The group is made; sockets opened from now on belong to others."""
        self._own = frozenset(_sockets().values()) - self._before

    def break_off(self) -> None:
        """Shut them down, from any thread and as often as one likes; those opened later are left alone."""
        for descriptor, identity in _sockets().items():
            if (identity in self._before) if self._own is None else (identity not in self._own):
                continue
            try:
                copy = socket.socket(fileno=os.dup(descriptor))
            except OSError:
                continue
            with copy:
                shut(copy)


def shut(sock: socket.socket) -> None:
    """End a connection in both directions. One that listens is left alone: gloo cannot bear to lose it."""
    try:
        if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        # It has ended by itself.
        return


@contextmanager
def making_group(sockets: GroupSockets) -> Generator[None]:
    """Whatever is opened inside belongs to the group."""
    yield
    sockets.complete()


def _sockets() -> dict[int, int]:
    """Every socket of this process that has a network address: descriptor to identity."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = status.st_ino
        except OSError:
            continue
    return found
