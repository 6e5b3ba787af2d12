"""Signals that ask us to end do so like an interrupt: no process stays, no file is half written."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

_ASK_TO_END = (signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """Raised where the main thread is when a signal asks us to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def stopping_on_signals() -> Generator[None]:
    """While this is open, signals that would end us on the spot raise Stopped instead."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # What is ignored, as under nohup, stays ignored.
    ours = [number for number in _ASK_TO_END if signal.getsignal(number) is signal.SIG_DFL]

    def stop(number: int, frame: FrameType | None) -> None:
        # Once is enough: a second one must not cut the clean-up short.
        for each in ours:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
