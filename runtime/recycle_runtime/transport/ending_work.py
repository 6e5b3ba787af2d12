"""A collective of the user's program that ends when its group is given up, whether gloo wakes it or not.

Gloo forgets whom to tell when a socket breaks in the middle of a message, and the wait for that message lasts
until its time is up. A thread of the runtime that waits so is left behind for another (`worker.takeover`).
That will not do in the middle of the program's forward: locks and contexts that the program has entered must
be left. So nobody waits for gloo here without looking up now and then, and a wait for what will never come
ends with an error, as it would if gloo had reported it.
"""

import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime.transport.guarded import PeerError

_LOOK_EVERY = timedelta(seconds=0.2)
_NO_LIMIT = timedelta(0)


class EndingWork(dist.Work):
    """Around gloo's work of a collective, or of a message."""

    def __init__(self, work: Any, given_up: threading.Event, *, has_limits: bool) -> None:
        """`given_up` is set, by another thread, when nobody will come any more.

        `has_limits` says that a wait for this work can have a limit, and another wait can follow it. Gloo's
        reduce-scatter waits without end whatever its timeout, and messages close connections at the limit.
        """
        super().__init__()
        self._work, self._given_up = (work if has_limits else _InThread(work)), given_up

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """PeerError if the group is given up."""
        deadline = time.monotonic() + timeout.total_seconds() if timeout else None
        while True:
            try:
                return self._work.wait(min(timeout, _LOOK_EVERY) if timeout else _LOOK_EVERY)
            except RuntimeError:
                if self._work.is_completed():
                    # It has just come, or that is what is wrong with it.
                    return self._work.wait()
                if self._given_up.is_set():
                    raise PeerError("the group was given up during a collective of the program") from None
                if deadline is not None and time.monotonic() >= deadline:
                    raise

    def get_future(self) -> Any:
        """One that ends as `wait` does."""
        future: torch.futures.Future[Any] = torch.futures.Future()

        def settle() -> None:
            try:
                self.wait()
                future.set_result(self._work.get_future().value())
            except Exception as error:
                future.set_exception(error)

        threading.Thread(target=settle, name="future", daemon=True).start()
        return future

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def is_success(self) -> bool:
        return self._work.is_success()

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> Any:
        return self._work.result()

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self._work.source_rank()

    def _source_rank(self) -> int:
        return self._work._source_rank()


class _InThread:
    """Work that a thread of its own waits for from the first wait on, so that other waits can have limits."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta | None = None) -> bool:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._wait, name="collective", daemon=True)
                self._thread.start()
        if not self._is_over.wait(None if timeout is None else timeout.total_seconds()):
            raise RuntimeError("the wait for another rank took too long")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._is_over.is_set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def _wait(self) -> None:
        try:
            self._work.wait()
        except Exception as error:
            self._error = error
        finally:
            self._is_over.set()
