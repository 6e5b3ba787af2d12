"""The sockets of a group of workers: another thread breaks them off, and sees which get no answer.

A thread that waits for a message over gloo cannot be called back, and groups end by waiting for what is under
way. But gloo's connections are sockets of this process: when they are shut down, whatever waits for them ends
with an error at once, here and at the other end.

Gloo waits for a message until its timeout, ten minutes here, whether the other host still answers or
not. The kernel knows better: it counts how often it has sent something again, or asked in vain.
"""

import os
import socket
import stat
import struct
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from recycle_runtime.protocol.framing import ask_now_and_then

_kept: set[int] = set()
_not_forked: set[int] = set()
_groups: "weakref.WeakSet[GroupSockets]" = weakref.WeakSet()
_has_registered = False


def keep(descriptor: int) -> None:
    """This socket belongs to no group, whenever it was opened."""
    _register()
    _kept.add(os.fstat(descriptor).st_ino)


def not_after_fork(descriptor: int) -> None:
    """A process that is forked from this one has no part in this socket."""
    _register()
    _not_forked.add(os.fstat(descriptor).st_ino)


def _register() -> None:
    """A process that the user's code forks has no part in the job's connections.

    It would keep them open when this process is killed, and whoever is at their other end would wait.
    """
    global _has_registered
    if not _has_registered:
        _has_registered = True
        os.register_at_fork(after_in_child=let_go_after_fork)


def let_go_after_fork() -> None:
    """Close the job's sockets in a process that was forked; those of the user's code are left alone.

    Their numbers stay taken: objects that were copied along may still close them. No lock is taken, since a
    thread that is not here may have held it.
    """
    groups, known = list(_groups), _kept | _not_forked
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, identity in _sockets().items():
        if identity in known or any(group.may_own(descriptor, identity) for group in groups):
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


class GroupSockets:
    """Sockets that were opened while a group was made. No other thread should open any meanwhile."""

    def __init__(self) -> None:
        self._before = frozenset(_sockets().values())
        self._own: frozenset[int] | None = None
        self._is_sole = False
        self._lock = threading.Lock()
        _register()
        _groups.add(self)

    def complete(self) -> None:
        """The group is made; sockets opened from now on belong to other groups."""
        with self._lock:
            if self._own is None:
                now = _sockets()
                self._own = frozenset(now.values()) - self._before
                for descriptor, identity in now.items():
                    # Programs that the user's code starts would keep them open.
                    if identity in self._own:
                        # Threads of NCCL close some meanwhile.
                        with suppress(OSError):
                            os.set_inheritable(descriptor, False)

    def claim(self) -> None:
        """From now on no other group takes these sockets for its own, and those that listen are shut too:
        threads of NCCL that look up seldom wait at them."""
        self.complete()
        with self._lock:
            self._own = (self._own or frozenset()) - _kept
            self._is_sole = True
            _kept.update(self._own)

    def break_off(self) -> None:
        """Shut them down, from any thread and as often as one likes; those opened later are left alone."""
        with self._lock:
            for descriptor, identity in _sockets().items():
                if self._is_its(identity):
                    _shut_descriptor(descriptor, also_listening=self._is_sole)

    def _is_its(self, identity: int) -> bool:
        if identity in _kept and not self._is_sole:
            return False
        return identity not in self._before if self._own is None else identity in self._own

    def may_own(self, descriptor: int, identity: int) -> bool:
        """Without a lock; while a group opens more, whatever is on the network is taken for its own."""
        if self._own is not None:
            return identity in self._own
        return identity not in self._before and _is_on_network(descriptor)

    def opened(self) -> dict[int, int]:
        """Those that are open now: descriptor to identity."""
        with self._lock:
            found = _sockets().items()
            return {number: identity for number, identity in found if self._is_its(identity)}

    def retire(self) -> None:
        """The group is gone: from now on nothing is shut down any more."""
        with self._lock:
            if self._is_sole:
                _kept.difference_update(self._own or ())
            self._own = frozenset()


def break_off_everything() -> None:
    """All sockets of this process."""
    for descriptor in _sockets():
        _shut_descriptor(descriptor)


def _shut_descriptor(descriptor: int, *, also_listening: bool = False) -> None:
    try:
        copy = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return
    with copy:
        shut(copy, also_listening=also_listening)


def shut(sock: socket.socket, *, also_listening: bool = False) -> None:
    """End a connection in both directions. One that listens is left alone, since gloo needs it, unless that
    is said and it has a network address."""
    try:
        is_on_network = sock.family in (socket.AF_INET, socket.AF_INET6)
        listens = bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        if not listens or (also_listening and is_on_network):
            sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        # It has ended by itself.
        return


@contextmanager
def making_group(sockets: GroupSockets) -> Generator[None]:
    """Whatever is opened inside belongs to the group."""
    yield
    sockets.complete()


def _is_on_network(descriptor: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            return copy.family in (socket.AF_INET, socket.AF_INET6)
    except OSError:
        return False


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


_ESTABLISHED, _CONNECTING, _LISTENING = 1, 2, 10
_MOST_SENT_AGAIN = 3
"""The fourth time comes three seconds after the first, each after twice the time."""
_MOST_ASKED = 2
_MOST_KNOCKS = 0
_ASK_TIMES = 60
_INFO = struct.Struct("@8B")


class Ends(NamedTuple):
    """Addresses of hosts."""

    here: frozenset[str]
    """Those of this process."""
    unanswered: frozenset[str]


def look(sockets: dict[int, int], except_port: int) -> Ends:
    """At sockets, descriptor to identity; those that go to this port, the coordinator's, are left out."""
    here: set[str] = set()
    unanswered: set[str] = set()
    knocking: set[int] = set()
    for descriptor, identity in sockets.items():
        try:
            copy = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
        with copy, suppress(OSError):
            state, _, sent_again, asked, *_ = _INFO.unpack(
                copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
            )
            if state == _CONNECTING and sent_again > _MOST_KNOCKS:
                knocking.add(identity)
            if state not in (_ESTABLISHED, _LISTENING):
                continue
            if state == _LISTENING:
                here.add(_plain(copy.getsockname()[0]))
                continue
            address, port = copy.getpeername()[:2]
            if port == except_port:
                continue
            here.add(_plain(copy.getsockname()[0]))
            if not copy.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
                ask_now_and_then(copy, every=1, times=_ASK_TIMES)
            if sent_again > _MOST_SENT_AGAIN or asked > _MOST_ASKED:
                unanswered.add(_plain(address))
    if knocking:
        unanswered |= _wanted(knocking, except_port)
    return Ends(frozenset(here), frozenset(unanswered - here))


def _wanted(identities: set[int], except_port: int) -> set[str]:
    """Addresses of connections that are not made yet; only the system's table says so."""
    found: set[str] = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/self/net/{name}").read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                address, _, port = fields[2].partition(":")
                if int(fields[9]) in identities and int(port, 16) != except_port:
                    found.add(_plain(_address(address)))
    return found


def _address(digits: str) -> str:
    """From the words of 32 bits that the system's table shows."""
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    data = b"".join(struct.pack("=I", word) for word in words)
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)


def _plain(address: str) -> str:
    return address.removeprefix("::ffff:")
