"""Lines about refused connections: some of each host in a minute, and then how many there were.

Whoever reaches the port can be refused thousands of times a second, and the log lies beside the job's state.
Needs no torch.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

_EVERY = 60.0
"""Seconds that are summed up."""
_LINES = 5
"""Of one host in that time."""
_MOST_HOSTS = 100
"""Number of hosts that are counted apart in that time."""
_OTHERS = "other hosts"


@dataclass(slots=True)
class _Host:
    lines: int = 0
    untold: int = 0
    last: str = ""


class Refusals:
    """Tells of them, and keeps count of those that it does not tell of."""

    def __init__(self, log: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._log, self._now = log, now
        self._hosts: dict[str, _Host] = {}
        self._since = now()

    def tell(self, who: str, address: str, why: str) -> None:
        """One was refused."""
        self.look()
        host = address.rpartition(":")[0] or address
        if host not in self._hosts and len(self._hosts) >= _MOST_HOSTS:
            host = _OTHERS
        found = self._hosts.setdefault(host, _Host())
        if found.lines < _LINES:
            found.lines += 1
            self._log.warning("refused %s at %s: %s", who, address, why)
        else:
            found.untold += 1
            found.last = why

    def look(self) -> None:
        """Tell of the last minute, once it is over."""
        if self._hosts and self._now() - self._since >= _EVERY:
            self.end()
        elif not self._hosts:
            self._since = self._now()

    def end(self) -> None:
        """Report those that were not reported."""
        for host, found in self._hosts.items():
            if found.untold:
                self._log.warning(
                    "refused %d more connections of %s within %.0f s; the last: %s",
                    found.untold,
                    host,
                    self._now() - self._since,
                    found.last,
                )
        self._hosts.clear()
        self._since = self._now()
