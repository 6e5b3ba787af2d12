"""Processes that a test forks."""

import os
from collections.abc import Callable


def child(life: Callable[[], None]) -> int:
    """One that lives like this and then ends."""
    pid = os.fork()
    if pid == 0:
        try:
            life()
        finally:
            os._exit(7)
    return pid
