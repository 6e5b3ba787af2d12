"""For how long an agent looks for the coordinator, by what it has met so far. No torch.

Whoever is not there, does not answer yet or hangs up may be a coordinator that starts again or is paused: it
is looked for as long as the agent has patience. One that reads a large checkpoint answers. Whoever answers
and refuses, or speaks another protocol, is on its way out, or will refuse for ever: that is soon clear.
"""

import logging

from recycle_runtime.protocol.codec import MismatchError, RefusalError, WireError

_LOGGER = logging.getLogger(__name__)
_RETRY_EVERY = 0.1
_RETRY_REFUSED_EVERY = 1.0
"""Each attempt leaves a line in the log of who refuses."""
_REFUSED_FOR = 30.0
_TELL_AFTER = 5.0


class Search:
    """From the first attempt on, until one succeeds."""

    def __init__(self, patience: float, began: float) -> None:
        self._began, self._patience = began, patience
        self._refused: float | None = None
        """Since when all attempts were."""
        self._told: bool | None = None
        """True if an attempt was refused, when that was last said."""

    def failed(self, error: WireError, now: float) -> float | None:
        """Seconds until the next attempt; None if there is no use in one."""
        if isinstance(error, MismatchError):
            return None
        is_refused = isinstance(error, RefusalError)
        if not is_refused:
            self._refused = None
        elif self._refused is None:
            self._refused = now
        until = self._began + self._patience
        if self._refused is not None:
            until = min(until, self._refused + _REFUSED_FOR)
        if now > until:
            return None
        if now - self._began > _TELL_AFTER and self._told is not is_refused:
            self._told = is_refused
            _LOGGER.warning("%s; tries again for %.0f s", error, until - now)
        return _RETRY_REFUSED_EVERY if is_refused else _RETRY_EVERY
