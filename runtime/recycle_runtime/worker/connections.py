"""Connections of a generation's group, kept so that another thread can break it off."""

import threading
from collections.abc import Generator
from contextlib import contextmanager

from recycle_runtime.transport.guarded import GuardedTransport
from recycle_runtime.transport.meeting import call_off
from recycle_runtime.transport.sockets import GroupSockets, making_group


class GroupConnections:
    """Sockets and the transport of one generation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[GroupSockets] = []
        self._transport: GuardedTransport | None = None

    @contextmanager
    def opening(self) -> Generator[None]:
        """Context in which connections are opened that belong to the group."""
        with making_group(self._new()):
            yield

    def opens_more(self) -> None:
        """So does everything that is opened from now on."""
        self._new()

    def use(self, transport: GuardedTransport) -> None:
        """The transport of the group, when it is made."""
        self._transport = transport

    def break_off(self) -> None:
        """End every wait for another worker, from any thread and as often as one likes."""
        for sockets in self._all():
            sockets.break_off()
        call_off()
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """The group is gone: from now on nothing is broken off any more."""
        with self._lock:
            gone, self._sockets = self._sockets, []
            transport, self._transport = self._transport, None
        for sockets in gone:
            sockets.break_off()
            sockets.retire()
        if transport is not None:
            # After the sockets: what an abort leaves behind on a device must not reach anybody.
            transport.abort()

    def opened(self) -> dict[int, int]:
        """Sockets that are open now, descriptor to identity, for another thread to look at."""
        found: dict[int, int] = {}
        for sockets in self._all():
            found |= sockets.opened()
        return found

    def _new(self) -> GroupSockets:
        sockets = GroupSockets()
        with self._lock:
            self._sockets.append(sockets)
        return sockets

    def _all(self) -> list[GroupSockets]:
        with self._lock:
            return list(self._sockets)
