"""A thread that tells the coordinator where this process is, and which hosts do not answer it."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from recycle_runtime.protocol.messages import Reach
from recycle_runtime.transport.sockets import look

_EVERY = 1.0
_SAY_AGAIN = 10.0
"""Another coordinator may be there, or this process may be another worker."""
_REMEMBERED = 1.5
"""Seconds: a connection that is tried again and again is not late at each try."""


class ReachReporter:
    """Looks at the sockets of the process's group, for as long as the process lives."""

    def __init__(
        self,
        sockets: Callable[[], dict[int, int]],
        coordinators_port: int,
        say: Callable[[Reach], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sockets, self._port, self._say, self._clock = sockets, coordinators_port, say, clock
        self._unanswered: dict[str, float] = {}
        """Hosts, and when they last gave no answer."""
        self._said: Reach | None = None
        self._said_at = 0.0

    def begin(self) -> None:
        threading.Thread(target=self._watch, name="reach", daemon=True).start()

    def look(self) -> None:
        """Once. What is as it should be is said now and then, what is not as long as it lasts."""
        ends = look(self._sockets(), self._port)
        if not ends.here:
            return
        now = self._clock()
        self._unanswered |= dict.fromkeys(ends.unanswered, now)
        self._unanswered = {host: at for host, at in self._unanswered.items() if now - at <= _REMEMBERED}
        message = Reach(tuple(sorted(ends.here)), tuple(sorted(self._unanswered)))
        if message != self._said or self._unanswered or now - self._said_at > _SAY_AGAIN:
            self._said, self._said_at = message, now
            self._say(message)

    def _watch(self) -> None:
        while True:
            time.sleep(_EVERY)
            # A process that has too many files open cannot look now.
            with suppress(OSError):
                self.look()
