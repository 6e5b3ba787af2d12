"""A thread that tells the coordinator where this process is, and which hosts do not answer it."""

from collections.abc import Callable
from contextlib import suppress

from recycle_runtime.protocol.messages.generations import Reach
from recycle_runtime.protocol.surroundings import Surroundings
from recycle_runtime.transport.sockets import Ends

_EVERY = 1.0
_SAY_AGAIN = 10.0
"""Another coordinator may be there, or this process may be another worker."""
_REMEMBERED = 1.5
"""Seconds: a connection that is tried again and again is not late at each try."""


class ReachReporter:
    """Looks at the sockets of the process's group, for as long as the process lives."""

    def __init__(
        self,
        ends: Callable[[], Ends],
        say: Callable[[Reach], None],
        surroundings: Surroundings,
    ) -> None:
        self._ends, self._say, self._around = ends, say, surroundings
        self._unanswered: dict[str, float] = {}
        """Hosts, and when they last gave no answer."""
        self._said: Reach | None = None
        self._said_at = 0.0

    def begin(self) -> None:
        self._around.start(self._watch, "reach")

    def look(self) -> None:
        """Once. What is as it should be is said now and then, what is not as long as it lasts."""
        ends = self._ends()
        if not ends.here:
            return
        now = self._around.now()
        self._unanswered |= dict.fromkeys(ends.unanswered, now)
        self._unanswered = {host: at for host, at in self._unanswered.items() if now - at <= _REMEMBERED}
        message = Reach(tuple(sorted(ends.here)), tuple(sorted(self._unanswered)))
        if message != self._said or self._unanswered or now - self._said_at > _SAY_AGAIN:
            self._said, self._said_at = message, now
            self._say(message)

    async def _watch(self) -> None:
        while True:
            await self._around.sleep(_EVERY)
            # A process that has too many files open cannot look now.
            with suppress(OSError):
                self.look()
