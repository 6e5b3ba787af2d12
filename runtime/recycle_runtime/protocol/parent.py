"""A process that gets a signal when the one that started it ends. Standard library only.

Unlike a lifeline, which belongs to a whole job, this ties one process to another, and nobody has to pass on
anything. The kernel sends the signal when the *thread* that started this process ends, so that thread should
live as long as its process.
"""

import ctypes
import os
import signal
import threading
import time

_SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG, which Python does not name."""
_LOOK_EVERY = 0.5


def end_with_parent(number: signal.Signals, parent: int | None = None) -> None:
    """Get this signal when the parent ends. Not passed on by a fork.

    `parent` is who that should be, for one that may have ended before this is called; default: who it is now.
    """
    parent = os.getppid() if parent is None else parent
    if not _ask_kernel(number):
        threading.Thread(target=_watch, args=(parent, number), daemon=True).start()
    if os.getppid() != parent:
        # It had ended before anybody could be told.
        os.kill(os.getpid(), number)


def _ask_kernel(number: signal.Signals) -> bool:
    """Whether it will send the signal."""
    try:
        return ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, int(number), 0, 0, 0) == 0
    except (OSError, AttributeError):
        # No such library, or none with this function; a sandbox may refuse it too.
        return False


def _watch(parent: int, number: signal.Signals) -> None:
    """Until the parent is another one: whoever has lost theirs gets one that buries it."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY)
    os.kill(os.getpid(), number)
