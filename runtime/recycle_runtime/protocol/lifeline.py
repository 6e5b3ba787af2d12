"""Processes that end when the one that started the job does, however that ends. Needs no torch.

The first process holds one end of a pipe, and no other process has that end. Whoever depends on it asks the
kernel for a signal when the pipe closes: SIGKILL, so that neither a held interpreter lock nor a handler of
the user's can be in the way. Restarts in between do not matter: a worker outlives its agent, and not the job.
"""

import fcntl
import os
import select
import signal

FROM_PARENT = "RECYCLE_LIFELINE"
"""The environment variable that holds the number of the inherited descriptor."""
_SET_SIGNAL = 10
"""F_SETSIG, which Python does not name."""


class Lifeline:
    """Of the first process; processes that are started with `reader` passed on can hold on to it."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    @property
    def environment(self) -> dict[str, str]:
        """For processes that get `reader`."""
        return {FROM_PARENT: str(self.reader)}

    def cut(self) -> None:
        """Everybody who holds on to it is killed."""
        for descriptor in (self._writer, self.reader):
            if descriptor >= 0:
                os.close(descriptor)
        self._writer = self.reader = -1


def is_held() -> bool:
    """True if this process was started by one that others hold on to."""
    number = os.environ.get(FROM_PARENT, "")
    return number.isdigit() and os.path.exists(f"/proc/self/fd/{number}")


def hold_on() -> None:
    """Be killed when the job's first process ends, if there is one; to be called again after a fork."""
    number = os.environ.get(FROM_PARENT, "")
    if not number.isdigit():
        return
    try:
        # Opened again: whom the kernel tells belongs to what was opened, and a forked process shares that.
        descriptor = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        # Started by hand from a shell that had the variable.
        return
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, _SET_SIGNAL, signal.SIGKILL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([descriptor], [], [], 0.0)[0]:
        # It had ended before anybody could be told.
        os.kill(os.getpid(), signal.SIGKILL)
