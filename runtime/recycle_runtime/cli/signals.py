"""Signals that ask us to end do so like an interrupt: no process stays, no file is half written."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

_ASK_TO_END = (signal.SIGTERM, signal.SIGHUP)
_WORDS = {signal.SIGTERM: "terminated", signal.SIGHUP: "hung up", signal.SIGINT: "interrupted"}


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


class StopRequests:
    """Which signal has asked us to end, if one has."""

    number: int | None = None

    def why(self) -> str | None:
        """In a word."""
        return None if self.number is None else how(self.number)


def how(number: int) -> str:
    """A process that such a signal has ended was..."""
    return _WORDS.get(signal.Signals(number), "ended by a signal")


@contextmanager
def stop_requests(requests: StopRequests) -> Generator[None]:
    """While this is open, the first signal that asks us to end is a request; the second raises Stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _WORDS}
    ours = [number for number, handler in before.items() if handler is not signal.SIG_IGN]

    def stop(number: int, frame: FrameType | None) -> None:
        if requests.number is None:
            requests.number = number
            return
        for each in ours:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
