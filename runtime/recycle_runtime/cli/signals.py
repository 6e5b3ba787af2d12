"""Signals that ask us to end do so like an interrupt: no process stays, no file is half written."""

import signal
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

from recycle_runtime.launcher.kept_process import PASSED_ON

_ASK_TO_END = (signal.SIGTERM, signal.SIGHUP)
_MEANT: dict[int, int] = {stands: number for number, stands in PASSED_ON.items()}
_WORDS = {signal.SIGTERM: "terminated", signal.SIGHUP: "hung up", signal.SIGINT: "interrupted"}


class Stopped(KeyboardInterrupt):
    """Raised where the main thread is when a signal asks us to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def _handled(
    numbers: Iterable[int], is_request: Callable[[int], bool] = lambda number: False
) -> Generator[None]:
    """While this is open these signals raise Stopped, once, unless they are taken as requests.

    What is ignored, as under nohup, stays ignored; only the main thread may handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = {number: signal.getsignal(number) for number in numbers}
    ours = {number: handler for number, handler in found.items() if handler is not signal.SIG_IGN}

    def stop(number: int, frame: FrameType | None) -> None:
        number = _MEANT.get(number, number)
        if is_request(number):
            return
        # Once is enough: a second one must not cut the clean-up short.
        for each in ours:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


def stopping_on_signals() -> AbstractContextManager[None]:
    """While this is open, signals that would end us on the spot raise Stopped instead."""
    asks = (number for number in _ASK_TO_END if signal.getsignal(number) is signal.SIG_DFL)
    return _handled((*asks, *_passed_on()))


class StopRequests:
    """The signal that has asked us to end, if one has."""

    number: int | None = None

    def why(self) -> str | None:
        """In a word."""
        return None if self.number is None else how(self.number)


def how(number: int) -> str:
    """A process that such a signal has ended was..."""
    return _WORDS.get(signal.Signals(number), "ended by a signal")


@contextmanager
def interrupts_ignored() -> Generator[None]:
    """While this is open, ctrl-C is for somebody else who hears it too."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def stop_requests(requests: StopRequests, *, patient: bool = False) -> AbstractContextManager[None]:
    """While this is open, the first signal that asks us to end is a request; the second raises Stopped.

    `patient`: only ctrl-C does. An engine may send SIGTERM twice, by itself and through what has started us.
    """

    def is_first(number: int) -> bool:
        first = requests.number is None
        if first:
            requests.number = number
        return first or (patient and number != signal.SIGINT)

    return _handled((*_WORDS, *_passed_on()), is_first)


def _passed_on() -> list[int]:
    """Signals that stand for those which this process does not hear, since its parent passes them on."""
    return [stands for number, stands in PASSED_ON.items() if signal.getsignal(number) is signal.SIG_IGN]
