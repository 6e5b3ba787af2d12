"""The thread that does a worker process's work, and how another takes over from one that is never woken.

Gloo forgets whom to tell when a socket breaks in the middle of a message: a thread that waits for that
message waits until its time is up, though all others have left. Nothing calls it back. So it is left behind
where it waits, and another thread does from then on what it would have done.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from recycle_runtime.execution.hooks import Hooks
from recycle_runtime.protocol.surroundings import Machine, Surroundings


class ShowsWaiting(Protocol):
    """A heartbeat."""

    is_waiting: bool


class ActiveThread:
    """The thread that does the work: the one that made this, until another takes over.

    It is notified when the thread waits for other workers (`guarded.Waits`), and can be replaced only then.
    """

    def __init__(
        self,
        heartbeat: ShowsWaiting,
        on_resume: Callable[[], None] = lambda: None,
        hooks: Hooks | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        """`on_resume` is called whenever a wait is over."""
        self._heartbeat, self._on_resume, self._hooks = heartbeat, on_resume, hooks or Hooks()
        self._around = surroundings or Machine()
        self._thread = self._around.thread()
        self._lock = threading.Lock()
        self._since: float | None = None
        """Time at which the current wait began; None without one."""

    @property
    def is_waiting(self) -> bool:
        """True if the active thread waits for other workers."""
        return self._since is not None

    def begin(self) -> None:
        """The active thread is about to wait for other workers."""
        self._heartbeat.is_waiting, self._since = True, self._around.now()
        self._hooks.before_wait()

    def end(self) -> None:
        """A wait is over; a thread that has been replaced meanwhile stays here."""
        with self._lock:
            is_active = self._around.thread() == self._thread
            if is_active:
                self._heartbeat.is_waiting, self._since = False, None
        if not is_active:
            # Too late: what this thread would do next has been done.
            self._around.stay()
        self._on_resume()

    def take_over(self, seconds: float) -> bool:
        """True if the caller is active now: only if the active thread has waited so long, and waits still."""
        with self._lock:
            if self._since is None or self._around.now() - self._since < seconds:
                return False
            self._thread = self._around.thread()
            self._heartbeat.is_waiting, self._since = False, None
            return True
