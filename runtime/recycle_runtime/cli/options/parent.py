"""Ends with the process that has started this one."""

import signal

from recycle_runtime.options.run import RunOptions
from recycle_runtime.protocol.lifeline import is_held
from recycle_runtime.protocol.parent import end_with_parent


def heed_parent(options: RunOptions) -> None:
    """From now on, if it was asked for."""
    # Whoever holds a lifeline ends with its parent anyway.
    if options.end_with_parent and not is_held():
        end_with_parent(signal.SIGTERM)
