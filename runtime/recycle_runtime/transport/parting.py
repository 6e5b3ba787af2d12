"""Dropping gloo groups without waiting for ever.

A group that goes waits for the sums under way in it, and it must: they may still write into gradients. But if
the sockets are broken off and the thread of a sum is not told, that wait ends only when its time is up.
"""

import threading
from typing import Any

_SECONDS = 3.0
"""Sums that are told end in less; those that are not write nothing any more."""


def drop(groups: list[Any]) -> None:
    """Empties the list, which should have the last references to the groups."""
    thread = threading.Thread(target=groups.clear, name="parting", daemon=True)
    thread.start()
    thread.join(_SECONDS)
