"""A process that gets a signal when the one that started it ends. Needs no torch.

Unlike a lifeline, which belongs to a whole job, this ties one process to another, and nobody has to pass on
anything. The kernel sends its signal when the *thread* ends that started this process, and again when another
thread of the parent, which the child has been given to, ends too.
"""

import ctypes
import os
import signal
import threading
import time

_SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG, which Python does not name."""
_NEWS = signal.SIGURG
"""Has no other use here, and where it is not handled it does nothing."""
_LOOK_EVERY = 0.5


def die_with_parent(parent: int) -> None:
    """Be killed when the parent ends, or the thread of it that has started this process.

    `parent` is who that should be, since it may have ended by now. Not passed on by a fork.
    """
    _tell_when_it_ends(parent, signal.SIGKILL)
    if os.getppid() != parent:
        # It had ended before anybody could be told.
        os.kill(os.getpid(), signal.SIGKILL)


def end_with_parent(number: signal.Signals) -> None:
    """Get this signal, once, when the parent ends, whichever of its threads has started this process.

    To be called on the main thread, which is where the signals of the kernel are looked into.
    """
    parent, is_told = os.getppid(), False

    def look(*_: object) -> None:
        nonlocal is_told
        if os.getppid() != parent and not is_told:
            is_told = True
            os.kill(os.getpid(), number)

    signal.signal(_NEWS, look)
    _tell_when_it_ends(parent, _NEWS)
    look()


def _tell_when_it_ends(parent: int, number: signal.Signals) -> None:
    if not _ask_kernel(number):
        threading.Thread(target=_watch, args=(parent, number), daemon=True).start()


def _ask_kernel(number: signal.Signals) -> bool:
    """True if it will send the signal."""
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
