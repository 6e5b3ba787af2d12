"""Fence between a coordinator that may be replaced and the rest of its job. Needs no torch.

Before anything that clients say or that time brings is handled, the lease is looked at. A coordinator without
one ends at once, as if it had been killed: it tells nobody anything, writes nothing, and whoever keeps it
starts it again, to wait for its turn.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable

from recycle_runtime.coordinator.leadership import Candidacy, Leadership
from recycle_runtime.protocol.messages.agents import AgentJoin
from recycle_runtime.protocol.messages.wire import Message
from recycle_runtime.protocol.server import Connection, Served

_LOGGER = logging.getLogger(__name__)
_RENEW_EVERY = 0.1
"""Of a lease."""
_LOOK_EVERY = 0.2


def stand_by(leadership: Leadership, is_stopped: Callable[[], bool]) -> Candidacy:
    """Wait until this coordinator leads or the job has ended, or somebody wants this process to end."""
    is_told = False
    while (found := leadership.look()) is Candidacy.WAITS and not is_stopped():
        if not is_told:
            is_told = True
            _LOGGER.info("stands by: another coordinator leads, or is about to begin")
        time.sleep(_LOOK_EVERY)
    return found


class LeaderFence:
    """Around one who is served; only a coordinator that leads handles anything."""

    def __init__(
        self, leadership: Leadership, lease: float, give_up: Callable[[], None] | None = None
    ) -> None:
        """`give_up` is for tests."""
        self._leadership, self._every = leadership, _RENEW_EVERY * lease
        self._give_up = give_up or _die
        self._has_ended = threading.Event()

    @property
    def term(self) -> int:
        """Of the coordinator that has it."""
        return self._leadership.number

    def around(self, served: Served) -> "Fenced":
        return Fenced(served, self)

    def keep(self) -> None:
        """Renew the lease from now on, on a thread: long work of the main one must not lose it."""
        threading.Thread(target=self._renew, name="lease", daemon=True).start()

    def end(self) -> None:
        """The job has ended."""
        self.check()
        self._has_ended.set()
        self._leadership.end()

    def check(self, term: int = 0) -> None:
        """True if this coordinator still leads; `term` is that of a client, who may know of a newer one."""
        if term > self._leadership.number:
            self._leadership.lose()
        if not self._leadership.is_held:
            self._give_up()

    def _renew(self) -> None:
        while not self._has_ended.wait(self._every):
            self._leadership.renew()
            self.check()


class Fenced:
    """Stand-in that the server calls in place of who is served."""

    def __init__(self, served: Served, fence: LeaderFence) -> None:
        self._served, self._fence = served, fence

    def message(self, connection: Connection, message: Message) -> None:
        self._fence.check(message.term if isinstance(message, AgentJoin) else 0)
        self._served.message(connection, message)

    def closed(self, connection: Connection) -> None:
        self._fence.check()
        self._served.closed(connection)

    def tick(self) -> None:
        self._fence.check()
        self._served.tick()


def _die() -> None:
    """Without a last word to anybody: the words of one who leads no more must not be heard."""
    _LOGGER.error("this coordinator has lost its lease: another one may have taken over, so it ends")
    for handler in logging.getLogger().handlers:
        handler.flush()
    os.kill(os.getpid(), signal.SIGKILL)
