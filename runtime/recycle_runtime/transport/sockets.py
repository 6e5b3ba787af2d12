"""The sockets of a group of workers, found so that another thread can break them off.

A thread that waits for a message over gloo cannot be called back, and groups end by waiting for what is under
way. But gloo's connections are sockets of this process: when they are shut down, whatever waits for them ends
with an error at once, here and at the other end.
"""

import os
import socket
import stat
import threading
from collections.abc import Generator
from contextlib import contextmanager

_kept: set[int] = set()


def keep(descriptor: int) -> None:
    """This socket belongs to no group, whenever it was opened."""
    _kept.add(os.fstat(descriptor).st_ino)


class GroupSockets:
    """Sockets that were opened while a group was made. No other thread should open any meanwhile."""

    def __init__(self) -> None:
        self._before = frozenset(_sockets().values())
        self._own: frozenset[int] | None = None
        self._lock = threading.Lock()

    def complete(self) -> None:
        """The group is made; sockets opened from now on belong to others."""
        with self._lock:
            if self._own is None:
                self._own = frozenset(_sockets().values()) - self._before

    def break_off(self) -> None:
        """Shut them down, from any thread and as often as one likes; those opened later are left alone."""
        with self._lock:
            for descriptor, identity in _sockets().items():
                if self._is_its(identity):
                    _shut_descriptor(descriptor)

    def _is_its(self, identity: int) -> bool:
        if identity in _kept:
            return False
        return identity not in self._before if self._own is None else identity in self._own

    def opened(self) -> dict[int, int]:
        """Those that are open now: descriptor to identity."""
        with self._lock:
            found = _sockets().items()
            return {number: identity for number, identity in found if self._is_its(identity)}

    def retire(self) -> None:
        """The group is gone: from now on nothing is shut down, whoever still asks for it."""
        with self._lock:
            self._own = frozenset()


def break_off_everything() -> None:
    """All sockets of this process, whoever opened them."""
    for descriptor in _sockets():
        _shut_descriptor(descriptor)


def _shut_descriptor(descriptor: int) -> None:
    try:
        copy = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return
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
