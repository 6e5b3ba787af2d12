"""Harm that a worker process does to itself when it is told to, to see what becomes of the others."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from recycle_runtime.transport.sockets import GroupSockets


class Fault(NamedTuple):
    """What to do before which instruction of which step."""

    kind: str
    step: int
    position: int
    """None of the stream's instructions if negative: then the one in the middle."""


class InjectedError(RuntimeError):
    """Raised where an exception was asked for."""


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _terminate() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _raise() -> None:
    raise InjectedError("a fault that was asked for")


def _exit() -> None:
    os._exit(7)


def _hold_the_interpreter() -> None:
    """No other thread of this process runs Python while this call lasts."""
    ctypes.PyDLL(None).sleep(3600)


def _hang() -> None:
    """Other threads go on, this one does not."""
    time.sleep(3600)


def _close_sockets() -> None:
    """Every connection breaks, that to the coordinator too, as when a cable is pulled for a moment."""
    GroupSockets.of_everything().break_off()


KINDS: Mapping[str, Callable[[], None]] = {
    "kill": _kill,
    "stop": _stop,
    "term": _terminate,
    "exception": _raise,
    "exit": _exit,
    "gil": _hold_the_interpreter,
    "hang": _hang,
    "socket": _close_sockets,
}
